"""What a lineage says: a row for each step from training to the target, how it begins, and what is wrong with it."""

import re
from collections.abc import Callable, Iterator, Mapping

from reshard.core.conversion.lineage import Lineage, LineageStep, Signed, StepKind
from reshard.core.reports.blocks import GAP, Block, Line, Table

_RIGHT = ("ended", "ranks")
_LESS_NEEDED = ("run", "fingerprint", "by", "ended", "layout", "step", "signed by", "changed", "signed")
_KEY = re.compile(r"\b(?:the key with SHA-256 )([0-9a-f]{12})[0-9a-f]{52}\b")


def lineage_blocks(lineage: Lineage) -> Iterator[Block]:
    """Yield the steps, the earliest first, then the sentences on the whole."""
    columns = {header: [text(step) for step in lineage.steps] for header, text in _COLUMNS.items()}
    if not any(step.kind is StepKind.JOIN for step in lineage.steps):  # each was made of the one above it
        del columns["into"]
    filled = {header: cells for header, cells in columns.items() if any(cells)}
    rows = list(zip(*filled.values(), strict=True))
    yield Line("from training to this target, by the statements beside it:")
    yield GAP
    yield Table(tuple(filled), rows, right=_RIGHT, optional=_LESS_NEEDED, keys=("checkpoint",))
    yield from (GAP, Line(lineage.beginning))
    yield Line(_verdict(lineage))
    yield from (Line(f"  {problem}") for step in lineage.steps for problem in step.problems)


def _verdict(lineage: Lineage) -> str:
    conversions = [step for step in lineage.steps if step.made_by or step.problems]
    if not all(step.linked for step in conversions):
        return "the chain is BROKEN:"
    linked = "the chain is intact: each statement is the one that the next one refers to"
    if lineage.intact:
        signed = all(step.signed is Signed.VALID for step in conversions)
        more = "and all signatures are valid" if signed else "but signatures were not checked"
        return f"{linked}, {more}. No files were read: 'reshard verify' does that"
    return f"{linked}. But NOT ALL ARE SIGNED as asked for:"


def _changed(step: LineageStep) -> str:
    if step.changes is None:
        return "not known"
    plain = "only joined" if step.kind is StepKind.JOIN else "only resharded"
    return step.changes or (plain if step.made_by else "")


def _values(step: LineageStep) -> str:
    if step.kind is StepKind.JOIN:
        return "files copied"
    return {None: "", True: "equal", False: "not compared"}[step.values_compared]


def _signed(step: LineageStep) -> str:
    return str(step.signed) if step.made_by or step.problems else ""


_COLUMNS: Mapping[str, Callable[[LineageStep], str]] = {
    "what": lambda step: str(step.kind),
    "checkpoint": lambda step: step.place,
    "into": lambda step: ", ".join(each.rstrip("/").rpartition("/")[2] for each in step.into),
    "step": lambda step: step.step or "",
    "ranks": lambda step: "" if step.ranks is None else str(step.ranks),
    "layout": lambda step: f"{step.layout}, .{step.format}" if step.layout else "",
    "changed": _changed,
    "values": _values,
    "link": lambda step: "broken" if not step.linked else "intact" if step.made_by else "",
    "signed": _signed,
    "signed by": lambda step: _KEY.sub(r"key \1…", step.signer),
    "ended": lambda step: f"{step.ended:%Y-%m-%d %H:%M}" if step.ended else "",
    "by": lambda step: step.made_by,
    "run": lambda step: step.run,
    "fingerprint": lambda step: step.fingerprint or "",
}

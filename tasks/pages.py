"""The pages of Prefect's UI, as markdown: a manager reads a page's head, an engineer its tables.

The UI opens no links to files or buckets: places are shown as code, to be copied.

Names and messages are not trusted: every text on a page is escaped unless its type is `_Markdown`. The UI also renders
cells of table artifacts, and descriptions, as markdown.
"""

import errno
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from shlex import quote
from typing import Any

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.latest import LatestOutcome, LatestReport
from reshard.core.conversion.merge_strategy import MergeReport
from reshard.core.conversion.plan_notes import substitutes_text
from reshard.core.conversion.report import (
    ConversionReport,
    Outcome,
    PlanFacts,
    PlanSummary,
    RankReport,
    shapes_reservation,
    worlds_text,
)
from reshard.core.custody.summary import CustodySummary
from reshard.core.errors import (
    DifferenceError,
    InputError,
    ReshardError,
    TargetBusyError,
    VerificationError,
    notes_of,
)
from reshard.core.plan.whole_shapes import NOT_CONFIRMED
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.summary import RANK
from reshard.core.runtime.wording import (
    counted,
    listed_ranks,
    moment_text,
    ranks_text,
    seconds_text,
    shortened_in_middle,
    size_text,
)
from reshard.core.source.damage import Substitute
from reshard.core.storage.publishing import no_room_text
from reshard.core.text.options import option, spelled
from reshard.core.text.printing import printable, printable_lines
from reshard.core.text.secrets import scrubbed
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.report import VerificationReport

MAX_TABLE_ROWS = 5000
"""The UI's tables are quick up to this size."""
_MAX_MARKDOWN_ROWS = 100
_MAX_LISTED = 4
_MAX_SOURCES = 16
"""Ranks and ranges that a row lists: thousands of rows may each have thousands."""
_MAX_FILE_CHARACTERS = 40
_MAX_MESSAGE_CHARACTERS = 100_000
# markup in the middle of a line, and the beginnings of text that the UI turns into links
_MARKUP = re.compile(r"[\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_])|(?<=[a-zA-Z]):(?=//)|(?<=www)\.", re.IGNORECASE)
# markup at the beginning of a line: escaped by a backslash in front of it, or after a list item's number
_MARKUP_AT_BEGIN = re.compile(r"\A(\d+(?=[.)](?:\s|\Z))|(?=[#+=>-]))")

_VERIFIED = {
    VerifyLevel.NONE: "Not verified.",
    VerifyLevel.STRUCTURE: "Verified: every file's parameters, dtypes and shapes.",
    VerifyLevel.CHECKSUM: "Verified: every byte was read back and is what was written.",
    VerifyLevel.CONTENT: "Verified: every byte was read back, and every value of every copy is the source's.",
}
_HEADLINES = {
    LatestOutcome.CONVERTED: "Converted",
    LatestOutcome.NOTHING_NEW: "Nothing new",
    LatestOutcome.BUSY: "Another run is converting it",
    LatestOutcome.WOULD_CONVERT: "Dry run: would convert",
    LatestOutcome.WOULD_WAIT: "Dry run: would wait",
}
_CORRECT = (
    "A parameter, or a file or storage that it refers to, is wrong, so 'Retry' cannot help. Correct what the message "
    "says, and start a new run: 'Copy to new run', in the menu ⋮, keeps the other fields. Nothing was published."
)
_DO_AGAIN = (
    "A written file is damaged. Run the conversion again with the same parameters: it keeps intact files and writes "
    "the others again. If that fails too, suspect the storage or the machine."
)
_WAIT = (
    "Another run is working on this target. When it has ended, retry this run ('Retry', in its menu ⋮): ranks that the "
    "other run finished are kept."
)
_DIFFERENT = (
    "The two checkpoints do not hold the same model. If replicas within one checkpoint differ, it is damaged, or its "
    "ranks were saved at different times. To leave out what should not be compared, such as optimizer state, use "
    f"{option('select')}, {option('include')}, {option('exclude')}, {option('ignore_dtype')}."
)
_RETRY = (
    "The request is valid, but storage, disk space or a server failed. Fix what the message says, then retry this run "
    "('Retry', in its menu ⋮), or start one with the same parameters: finished ranks are kept."
)
_MAKE_ROOM = (
    "Free the missing space, then retry this run ('Retry', in its menu ⋮): finished ranks are kept. Or start a new run "
    "with a target that has more space. You need not clean up first."
)


class _Markdown(str):
    """Markdown, which is not escaped."""

    __slots__ = ()


def plan_page(summary: PlanSummary, target: str, picture: str) -> str:
    """Return the page of a plan for `target`; `picture` is an SVG of which ranks feed which, or empty."""
    copies = sum(rank.copy_of is not None for rank in summary.ranks)
    facts = {
        "Source": _code(summary.source),
        "Target": _code(target),
        "Step": summary.step or "-",
        "Ranks": _worlds(summary) + (f", {copies} of them copies of another" if copies else ""),
        "Parameters": _parameter_counts(summary),
        **_shapes(summary),
        "Format": summary.format,
        "To read": size_text(summary.read_bytes),
        "To write": size_text(summary.written_bytes),
        "Workers": f"{summary.workers}, with {size_text(summary.buffer_bytes)} of buffers",
    }
    number = "Rank" if summary.target_kind == RANK else "Number"
    head = f"# Plan: {_worlds(summary, 'ranks')}\n\n{size_text(summary.written_bytes)} will be written."
    rows = (
        (
            rank.rank,
            _code(rank.file),
            size_text(rank.shard_bytes),
            listed_ranks(rank.source_ranks, _MAX_SOURCES),
            _copy(rank.copy_of),
        )
        for rank in summary.ranks[:_MAX_MARKDOWN_ROWS]
    )
    return _page(
        head,
        _recovered(summary.stand_ins),
        _facts(facts),
        _notes(summary.notes),
        _effects(summary),
        _under("## Which ranks feed which", _image("Bytes from each source rank to each target rank", picture)),
        f"## Target {summary.target_kind}s",
        _table((number, "File", "Shards", "Source ranks", "Copy of"), rows),
        _rest(len(summary.ranks)),
    )


def approval_page(
    summary: PlanSummary, request: ConversionRequest, until: datetime, *, replaces: bool, changed: bool
) -> str:
    """Return what somebody is to approve; `changed` since another plan of the same run was shown.

    The UI's dialog is narrow: the page is short, and without tables.
    """
    again = "**Source, strategies or target have changed since you were last asked. This is the new plan.**"
    overwritten = "The checkpoint that is at the target now **will be replaced**." if replaces else ""
    some = f" Only target ranks {request.ranks} are converted." if request.ranks.strip() else ""
    head = (
        f"**{size_text(summary.written_bytes)} to write** into {_code(request.target)}: {_worlds(summary, 'ranks')}, "
        f"{summary.format}.{_as_text(some)}"
    )
    step = f", step {summary.step}" if summary.step else ""
    read = f"{size_text(summary.read_bytes)} to read from {_code(summary.source)}{_as_text(step)}."
    time = _time(summary)
    verified = f"Verification: {request.verify}."
    more = (
        f"The run waits until {moment_text(until)}, then fails. The complete plan, with a picture and every rank, is "
        "this run's artifact `conversion-plan`."
    )
    return _page(
        again if changed else "",
        head,
        overwritten,
        _room(summary),
        " ".join([read, time, verified]),
        f"**Recovered: {_as_text(substitutes_text(summary.stand_ins))}.**" if summary.stand_ins else "",
        _notes(summary.notes),
        more,
    )


def question_text(summary: PlanSummary, request: ConversionRequest, until: datetime, *, replaces: bool) -> str:
    """Return what somebody is asked, in plain text on one line: for alerts, the state of the run, and its log."""
    step = f", step {summary.step}" if summary.step else ""
    some = f" Only target ranks {request.ranks}." if request.ranks.strip() else ""
    source, target = (printable(scrubbed(url)) for url in (summary.source, request.target))
    size = f"{_worlds(summary, 'ranks')}, {summary.format}, {size_text(summary.written_bytes)} to write"
    sentences = (
        f"Convert {source}{step} to {target}? {size}.{some}",
        "The checkpoint that is at the target now will be replaced." if replaces else "",
        _room(summary).replace("**", ""),
        "Answer on the run's page, menu ⋮, Resume: convert or refuse.",
        f"The run waits until {moment_text(until)}, then fails.",
    )
    return " ".join(filter(None, sentences))


def _room(summary: PlanSummary) -> str:
    """Sentence on the room at the target; empty if its storage does not tell."""
    if summary.needed_bytes is None or summary.free_bytes is None:
        return ""
    if summary.needed_bytes > summary.free_bytes:
        short = no_room_text(summary.needed_bytes, summary.free_bytes)
        return f"**The target {short}.** Free some space before you approve: the run would fail at once."
    return f"Room at the target: {size_text(summary.needed_bytes)} needed, {size_text(summary.free_bytes)} free."


def _time(summary: PlanSummary) -> str:
    """Sentence on the estimated time; empty without an estimate."""
    traffic, rate_bytes = summary.traffic, summary.assumed_rate_bytes
    if traffic is None or rate_bytes is None:
        return ""
    seconds = seconds_text(summary.estimated_seconds or 0)
    return f"At {size_text(rate_bytes)}/s, {size_text(traffic.total_bytes)} take {seconds}: {traffic}."


def _shapes(summary: PlanFacts) -> dict[str, str]:
    return {"Whole shapes": str(summary.whole_shapes)} if summary.whole_shapes.kinds else {}


def _custody(found: CustodySummary | None) -> dict[str, str]:
    """What the page of a run says to those who have to prove what its target is."""
    if found is None:
        return {}
    facts = {"SHA-256": f"taken of {counted(found.files, 'file')} of the target, {found.source_files} of the source"}
    if found.signature_sha256:
        facts["Signed by"] = found.signed_by or "another run"
        facts["SHA-256 of model.sig"] = _code(found.signature_sha256)
    if found.provenance_sha256:
        facts["SHA-256 of the provenance"] = _code(found.provenance_sha256)
        facts["Earlier conversions in its chain"] = str(found.predecessors)
    return facts


def _what_to_check(found: CustodySummary | None) -> list[str]:
    """Options of `reshard verify` for what a target has."""
    if found is None:
        return []
    provenance = ["--provenance"] if found.provenance_sha256 else []
    return provenance + (["--signed-by", "PUBLIC_KEY"] if found.signature_sha256 else [])


def _effects(summary: PlanSummary) -> str:
    """Tables of the effects of changes, and of excluded parameters; empty without changes."""
    changed = [
        (
            _code(effect.parameter),
            _Markdown(", ".join(map(_code, effect.sources[:_MAX_LISTED]))),
            ", ".join(effect.how),
            f"{', '.join(effect.source_dtypes)} → {effect.dtype}",
            f"{', '.join(str(list(shape)) for shape in effect.source_shapes[:_MAX_LISTED])} → {list(effect.shape)}",
        )
        for effect in summary.effects[:_MAX_MARKDOWN_ROWS]
    ]
    left_out = [(_code(each.parameter), _code(each.by)) for each in summary.excluded[:_MAX_MARKDOWN_ROWS]]
    tables = [
        _page(_table(("Parameter", "Made from", "How", "Dtype", "Shape"), changed), _rest(len(summary.effects)))
        if changed
        else "",
        _page(_table(("Left out", "By"), left_out), _rest(len(summary.excluded))) if left_out else "",
    ]
    return _under("## What is changed", _page(*tables).rstrip())


def report_page(report: ConversionReport) -> str:
    """Return the page of a finished conversion."""
    missing = (
        f"**Not complete yet: target {report.target_kind}s {ranks_text(report.missing_ranks)} are still to be "
        "converted.**"
    )
    facts = {
        "Source": _code(report.source),
        "Target": _code(report.target),
        "Step": report.step or "-",
        "Ranks": f"{_worlds(report)}: {_outcomes(report.ranks)}",
        "Size": size_text(sum(rank.size_bytes for rank in report.ranks)),
        **_traffic(report),
        "Took": seconds_text(report.seconds),
        "Verification": f"{report.verified}{shapes_reservation(report)}",
        **_shapes(report),
        "Plan": _code(report.identity),
        **_custody(report.custody),
    }
    return _page(
        _headline(report),
        _what_was_done(report),
        _recovered(report.stand_ins),
        "" if report.committed else missing,
        _facts(facts),
        _under("## To note", _notes(report.notes)),
        "## To check it again, at any time",
        _command("reshard", "verify", report.target, *_what_to_check(report.custody)),
    )


def report_text(report: ConversionReport) -> str:
    """Return the head of a finished conversion's page in plain text."""
    return f"{_headline(report).removeprefix('# ')}. {_what_was_done(report).replace('**', '')}"


def failure_page(title: str, error: ReshardError) -> str:
    """Return the page of a failed run."""
    message = str(error)[:_MAX_MESSAGE_CHARACTERS]
    notes = map(_message, notes_of(error))
    return _page(f"# Failed: {_as_text(title)}", _message(message), *notes, "## What to do next", _advice(error))


def _advice(error: ReshardError) -> str:
    if isinstance(error, TargetBusyError):
        return _WAIT
    if isinstance(error, InputError):
        return _CORRECT
    if isinstance(error, DifferenceError):
        return spelled(_DIFFERENT)
    if isinstance(error, VerificationError):
        return _DO_AGAIN
    return _MAKE_ROOM if _is_shortage(error) else _RETRY


def _is_shortage(error: ReshardError) -> bool:
    """True if a disk or a quota was too small."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)


def verification_page(report: VerificationReport) -> str:
    """Return the page of a successful check."""
    facts = {
        "Checkpoint": _code(report.target),
        "Verification": str(report.level),
        "Read": size_text(report.read_bytes),
        "Took": seconds_text(report.seconds),
    }
    how = {
        VerifyLevel.STRUCTURE: "Every file has the parameters, dtypes and shapes that it was written with.",
        VerifyLevel.CHECKSUM: "Every byte was read, and is what was written.",
        VerifyLevel.CONTENT: "Every byte was read, and every value of every copy is the source's.",
    }
    return _page(f"# All is as written: {counted(report.ranks, report.kind)}", how.get(report.level, ""), _facts(facts))


def comparison_page(report: ComparisonReport) -> str:
    """Return the page of two checkpoints that hold the same model."""
    facts = {
        "A": _code(report.a.url),
        "B": _code(report.b.url),
        "Parameters": f"{report.a.parameters}, {size_text(report.a.size_bytes)}",
        "Read": size_text(report.read_bytes),
        "Took": seconds_text(report.seconds),
    }
    how = "Every copy of every slice was read on both sides: names, dtypes, shapes and values are the same."
    return _page("# The same model", how, _facts(facts), _notes([*report.a.notes, *report.b.notes, *report.notes]))


def difference_rows(rows: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return the table of differences between two checkpoints."""
    shown = rows[:MAX_TABLE_ROWS]
    table = [
        {"parameter": as_paragraph(name), "differs in": kind, "what": as_paragraph(what)} for name, kind, what in shown
    ]
    if len(rows) > len(shown):
        table.append({"parameter": f"and {len(rows) - len(shown)} more", "differs in": "", "what": ""})
    return table


def merge_page(report: MergeReport) -> str:
    """Return the page of a merged strategy."""
    facts = {
        "Strategy": _code(report.url),
        "Pipeline stages": str(report.stages),
        "Devices of each": str(report.devices_per_stage),
        "Parameters": str(report.parameters),
    }
    head = f"# Merged: a strategy for {counted(report.stages * report.devices_per_stage, 'rank')}"
    return _page(head, _facts(facts), "## To look at it", _command("reshard", "inspect", report.url))


def latest_page(report: LatestReport) -> str:
    """Return the page of a scheduled conversion."""
    facts = {
        "Source": _code(report.source),
        "Newest complete step": report.step or "none yet",
        "Target": _code(report.target) if report.target else "-",
        "Would be removed" if report.dry_run else "Removed": ", ".join(report.removed) or "nothing",
        "Kept": ", ".join(report.kept) or "all that is there",
    }
    head = f"# {_HEADLINES[report.outcome]}{f': step {report.step}' if report.step else ''}\n\n{_sentence(report)}"
    return _page(head, _facts(facts), _under("## Notes", _notes(report.notes)))


def rank_rows(ranks: Sequence[RankReport]) -> list[dict[str, Any]]:
    """Return the table of the ranks: what fits the page; the manifest has each rank's digests and exact bytes."""
    table: list[dict[str, Any]] = [
        {
            "rank": rank.rank,
            "outcome": str(rank.outcome),
            "sources": listed_ranks(rank.source_ranks, _MAX_SOURCES),
            "size": size_text(rank.size_bytes),
            "seconds": rank.seconds,
            "file": as_paragraph(shortened_in_middle(printable(rank.file), _MAX_FILE_CHARACTERS)),
        }
        for rank in ranks[:MAX_TABLE_ROWS]
    ]
    if len(ranks) > len(table):
        table.append(dict.fromkeys(table[0], "") | {"rank": f"and {len(ranks) - len(table)} more"})
    return table


def _sentence(report: LatestReport) -> str:
    return as_paragraph(f"{report.message[:1].upper()}{report.message[1:]}.")


def _headline(report: ConversionReport) -> str:
    if not report.committed:
        return f"# Converted in part: {len(report.ranks)} of {counted(report.target_world_size, report.target_kind)}"
    already = all(rank.outcome is Outcome.RESUMED for rank in report.ranks)
    worlds = _worlds(report, "rank" if report.target_world_size == 1 else "ranks")
    return f"# Converted{' already' if already else ''}: {worlds}"


def _what_was_done(report: ConversionReport) -> str:
    """Sentences for managers."""
    resumed = [rank for rank in report.ranks if rank.outcome is Outcome.RESUMED]
    there = f"{counted(len(resumed), report.target_kind)} ({size_text(sum(rank.size_bytes for rank in resumed))})"
    if len(resumed) == len(report.ranks):
        return (
            f"Nothing was left to do: {there} had been converted by an earlier run, and were checked again in "
            f"{seconds_text(report.seconds)}. {_VERIFIED[report.verified]}"
        )
    rate = size_text(report.written_bytes / report.seconds) if report.seconds else "-"
    done = f"**{size_text(report.written_bytes)}** written in **{seconds_text(report.seconds)}** ({rate}/s)."
    kept = f" {there} had been done by an earlier run, and were checked again." if resumed else ""
    reserved = "" if report.whole_shapes.confirmed else f" {NOT_CONFIRMED.capitalize()}."
    return f"{done}{kept} {_VERIFIED[report.verified]}{reserved}"


def _recovered(stand_ins: Sequence[Substitute]) -> str:
    """Table of lost ranks and their substitutes; empty if no rank was lost."""
    if not stand_ins:
        return ""
    rows = [(each.rank, each.why, each.stand_in, each.slices) for each in stand_ins[:_MAX_MARKDOWN_ROWS]]
    table = _table(("Lost rank", "Why", "Stand-in", "Slices"), rows)
    return _page(f"**Recovered: {substitutes_text(stand_ins)}.**", table, _rest(len(stand_ins))).rstrip()


def _worlds(report: ConversionReport | PlanSummary, noun: str = "") -> str:
    """Format both world sizes, followed by `noun` if both are ranks."""
    worlds = worlds_text(report).replace("->", "→")
    return f"{worlds} {noun}" if noun and report.source_kind == report.target_kind == RANK else worlds


def _parameter_counts(summary: PlanSummary) -> str:
    if summary.is_whole:
        return f"{summary.parameters} made whole"
    carried = f"; {len(summary.carried)} copied to every rank" if summary.carried else ""
    return f"{summary.parameters} resharded, in {counted(summary.layout_classes, 'way')}{carried}"


def _outcomes(ranks: Sequence[RankReport]) -> str:
    words = {Outcome.WRITTEN: "written", Outcome.COPIED: "copied from another", Outcome.RESUMED: "from an earlier run"}
    counts = {outcome: sum(rank.outcome is outcome for rank in ranks) for outcome in Outcome}
    return ", ".join(f"{count} {words[outcome]}" for outcome, count in counts.items() if count)


def _traffic(report: ConversionReport) -> dict[str, str]:
    """Figures of reads and writes; zeros are left out."""
    sizes = {
        "Read": report.read_bytes,
        "Read to check CRCs": report.crc_bytes,
        "Written": report.written_bytes,
        "Read back": report.verified_bytes,
        "Read to compare values": report.compared_bytes,
    }
    counts = {
        "Repeated requests": report.retried_requests,
        "Dropped parameters": len(report.dropped),
        "Missing, as allowed": len(report.excused),
    }
    facts = {name: size_text(count) for name, count in sizes.items() if count}
    return facts | {name: str(count) for name, count in counts.items() if count}


def _image(description: str, svg: str) -> str:
    """Embed an SVG in the page: below an image artifact the UI would write out all of its data."""
    return f"![{description}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})" if svg else ""


def _page(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _under(heading: str, text: str) -> str:
    return f"{heading}\n\n{text}" if text else ""


def _facts(facts: dict[str, str]) -> str:
    return _table(("", ""), facts.items())


def _notes(notes: Sequence[str]) -> str:
    return "\n".join(f"- {as_paragraph(note)}" for note in notes)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, [_Markdown("---")] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(content: object) -> str:
    return content.replace("|", "\\|") if isinstance(content, _Markdown) else _as_text(str(content))


def _rest(count: int) -> str:
    hidden = count - _MAX_MARKDOWN_ROWS
    return f"… and {hidden} more." if hidden > 0 else ""


def _as_text(text: str) -> str:
    """Escape a text for the middle of a markdown line: no emphasis, links, images or HTML."""
    return _MARKUP.sub(r"\\\g<0>", printable(scrubbed(text)))


def as_paragraph(text: str) -> str:
    """Escape a text for the beginning of a markdown line: no heading or list either."""
    return _MARKUP_AT_BEGIN.sub(r"\1\\", _as_text(text))


def _code(text: str) -> _Markdown:
    """Format a name as markdown code, whatever backticks it contains."""
    # in a table the backslash would escape the bar
    text = printable(scrubbed(text)).replace("\\|", "\\x7c")
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text or not text.strip() else ""
    return _Markdown(f"{fence}{space}{text}{space}{fence}")


def _message(text: str) -> str:
    """Format a message line by line, indented ones as a list: unlike a block of code, this wraps long lines."""
    lines = [line for line in printable_lines(scrubbed(text)).split("\n") if line.strip()]
    return "\n\n".join(f"{'- ' if line[0] == ' ' else ''}{as_paragraph(line.strip())}" for line in lines)


def _command(*words: str) -> str:
    """Format a command as code that wraps."""
    return _code(" ".join(quote(printable(word)) for word in words))


def _copy(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}"

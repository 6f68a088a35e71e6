"""The way from training to a target: a row for the training's checkpoint, and one for each conversion since.

Everything comes from the statements beside the target, and from nowhere else: what they refer to may be gone. They are
compared with each other (`reshard.core.custody.chain`). They prove nothing by themselves; signatures of them do.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from reshard.core.custody.chain import Step
from reshard.core.custody.chain_reading import examine_chain
from reshard.core.custody.equivalence import Equivalence
from reshard.core.custody.statements import url_of
from reshard.core.errors import SignatureError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.reports.blocks import Block
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed
from reshard.core.signing.verifier import Verifier
from reshard.core.storage.urls import Location
from reshard.core.text.foreign import shown_text

_MAX_LISTED = 6


class StepKind(StrEnum):
    """What happened in a step."""

    TRAINING = "training"
    CONVERSION = "conversion"


class Signed(StrEnum):
    """Whether the statements about a step are signed."""

    NO = "no"
    UNCHECKED = "not checked"
    VALID = "valid"
    INVALID = "not valid"


class LineageStep(Summary):
    """One step of the way from training to a target.

    Attributes:
        kind: what happened.
        place: URL of the checkpoint that it made, where it was then.
        step: the training's epoch and step, if it is known.
        ranks: number of ranks, or of files, that it was saved by.
        layout: how it lies in its directory; empty of a training's.
        format: format of its files; empty of a training's.
        begun: when the conversion began, by its machine's clock.
        ended: when it ended.
        made_by: the program and its version; empty of a training.
        run: id of the flow run that converted; empty without one.
        changes: what was changed by declaration, in words; empty if it was only resharded; None if that is withheld.
        values_compared: True if all values were compared with those of the step before; None: unknown.
        fingerprint: of its values, if they were compared and are not encrypted.
        signed: whether its statements are signed.
        signer: who signed them, as far as that is known; empty otherwise.
        linked: True if its statements are there and undamaged, are what the next step refers to, and agree with it.
        problems: what is wrong with statements or signatures, in sentences.
    """

    kind: StepKind
    place: str
    step: str | None = None
    ranks: int | None = None
    layout: str = ""
    format: str = ""
    begun: datetime | None = None
    ended: datetime | None = None
    made_by: str = ""
    run: str = ""
    changes: str | None = ""
    values_compared: bool | None = None
    fingerprint: str | None = None
    signed: Signed = Signed.NO
    signer: str = ""
    linked: bool = True
    problems: tuple[str, ...] = ()


class Lineage(Report):
    """The way from training to a target.

    Attributes:
        target: URL of the target.
        steps: the steps, from the earliest that is known to the target.
        beginning: how the chain begins, in a sentence.
        intact: True if all statements are there, and none contradicts another; and if signatures were checked, all are
            valid.
    """

    target: str
    steps: tuple[LineageStep, ...]
    beginning: str
    intact: bool

    def blocks(self) -> Iterable[Block]:
        """Return its content: a row for each step, then how the chain begins, and the problems."""
        from reshard.core.conversion.views.lineage import lineage_blocks

        return lineage_blocks(self)


def lineage_of(directory: Location, verifier: Verifier | None = None) -> Lineage | None:
    """Follow the statements beside a finished target back to the training; None if it has none.

    With a `verifier`, each step's statements must be signed by somebody whom it trusts.

    Raises:
        TargetError: the manifest is damaged.
        StorageError: a storage does not answer.
    """
    manifest = read_manifest(directory)
    if manifest is None or not manifest.statements:
        return None
    chain = examine_chain(directory, manifest)
    rows = [_conversion(step, directory, chain[step.number - 1 : step.number], verifier) for step in chain]
    earliest = _earliest(chain)
    return Lineage(
        target=shown_text(str(directory)),
        steps=(*earliest, *reversed(rows)),
        beginning=_beginning(chain),
        intact=bool(rows) and not any(row.problems for row in rows),
    )


def _conversion(step: Step, target: Location, successor: Sequence[Step], verifier: Verifier | None) -> LineageStep:
    signed, signer, problem = _signature(step, verifier)
    problems = tuple(shown_text(each) for each in (*step.problems, *([problem] if problem else [])))
    place = _place_by(successor[0]) if step.number and successor else str(target)
    row = LineageStep(
        kind=StepKind.CONVERSION,
        place=shown_text(place),
        signed=signed,
        signer=shown_text(signer),
        linked=not step.problems,
        problems=problems,
    )
    return row.model_copy(update={**_of_provenance(step), **_of_equivalence(step)})


def _place_by(successor: Step) -> str:
    """Where a conversion's target was when its successor read it."""
    uri = successor.predecessor.uri if successor.predecessor else None
    return url_of((uri or "").partition("/.reshard/")[0]) if uri else ""


def _of_provenance(step: Step) -> dict[str, object]:
    if step.provenance is None:
        return {}
    definition, run = step.provenance.predicate.build_definition, step.provenance.predicate.run_details
    internal, metadata = definition.internal_parameters, run.metadata
    return {
        "layout": shown_text(internal.layout),
        "format": shown_text(internal.format),
        "begun": _moment(metadata.started_on),
        "ended": _moment(metadata.finished_on),
        "made_by": shown_text(internal.writer),
        "run": shown_text(metadata.invocation_id.partition("/")[2]),
    }


def _of_equivalence(step: Step) -> dict[str, object]:
    if step.equivalence is None:
        return {"changes": None}
    found = step.equivalence.predicate
    return {
        "step": shown_text(found.source.step) if found.source.step else None,
        "ranks": found.target.ranks,
        "changes": _changes_text(found),
        "values_compared": found.values_compared,
        "fingerprint": shown_text(found.target.fingerprint) if found.target.fingerprint else None,
    }


def _changes_text(found: Equivalence) -> str | None:
    """What a conversion changed or left out by declaration; None if that is withheld."""
    if found.declared is None:
        return None
    left_out = found.declared.left_out
    texts = [
        f"preset {found.preset}" if found.preset else "",
        f"adapter {found.adapter} merged" if found.adapter else "",
        listed(sorted(found.declared.changes), _MAX_LISTED) if found.declared.changes else "",
        f"appended {listed(sorted(found.declared.appended), _MAX_LISTED)}" if found.declared.appended else "",
        f"{counted(len(left_out.excluded), 'parameter')} excluded" if left_out.excluded else "",
        f"{counted(len(left_out.dropped), 'parameter')} dropped" if left_out.dropped else "",
        f"{counted(len(left_out.excused), 'parameter')} missing, as allowed" if left_out.excused else "",
    ]
    return shown_text("; ".join(filter(None, texts)))


def _signature(step: Step, verifier: Verifier | None) -> tuple[Signed, str, str]:
    """Whether a step's statements are signed, by whom as far as that is known, and what is wrong with that."""
    claimed = _claimed_signer(step)
    if verifier is None:
        return (Signed.UNCHECKED if claimed else Signed.NO), claimed, ""
    try:
        return Signed.VALID, step.signer(verifier).text, ""
    except SignatureError as error:
        return (Signed.INVALID if claimed else Signed.NO), claimed, error.marked


def _claimed_signer(step: Step) -> str:
    if step.signature is not None and step.is_covered:
        return step.signature.material.text
    return f"the key with SHA-256 {step.envelopes[0].key_id}" if step.envelopes else ""


def _earliest(chain: Sequence[Step]) -> tuple[LineageStep, ...]:
    """The row before the first conversion that is known: a training's checkpoint, or a conversion not kept here."""
    if not chain:
        return ()
    first = chain[-1]
    if first.refers_to is not None:
        return (LineageStep(kind=StepKind.CONVERSION, place=shown_text(_place_by(first)), changes=None),)
    if first.equivalence is None:
        return ()
    source = first.equivalence.predicate.source
    return (
        LineageStep(
            kind=StepKind.TRAINING,
            place=shown_text(url_of(source.uri)),
            step=shown_text(source.step) if source.step else None,
            ranks=source.ranks,
            fingerprint=shown_text(source.fingerprint) if source.fingerprint else None,
        ),
    )


def _beginning(chain: Sequence[Step]) -> str:
    if not chain:
        return "the statements that the manifest lists are not there"
    first = chain[-1]
    if first.refers_to is not None:
        return (
            f"the chain is cut: the statements about {shown_text(_place_by(first))}, whose provenance has SHA-256 "
            f"{first.refers_to}, are not kept here"
        )
    return "the chain begins here: its source was not converted by reshard, or without SHA-256"


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None

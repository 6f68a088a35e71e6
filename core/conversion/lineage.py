"""The way from training to a target: a row for the training's checkpoint, and one for each conversion or join since.

Where parts were joined, the way of each part comes before the join, with a row for its training.

Everything comes from the statements beside the target, and from nowhere else: what they refer to may be gone. They are
compared with each other (`reshard.core.custody.chain`). They prove nothing by themselves; signatures of them do.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

from reshard.core.custody.chain import Reference, Step, links_to
from reshard.core.custody.chain_reading import examine_chain
from reshard.core.custody.equivalence import Equivalence, EquivalentSource
from reshard.core.custody.statements import url_of
from reshard.core.errors import SignatureError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.reports.blocks import Block
from reshard.core.reports.report import Report
from reshard.core.runtime.moments import parse_moment
from reshard.core.runtime.records import Record
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
    JOIN = "join"


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
        into: URLs of the checkpoints that were made of it.
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
    into: tuple[str, ...] = ()
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
    target, steps = shown_text(str(directory)), examine_chain(directory, manifest)
    if not steps:
        beginning = "the statements that the manifest lists are not there"
        return Lineage(target=target, steps=(), beginning=beginning, intact=False)
    tree = _Tree(directory, steps, verifier)
    rows = tuple(tree.rows)
    return Lineage(target=target, steps=rows, beginning=tree.beginning, intact=not any(row.problems for row in rows))


class _Tree(Record):
    """The steps of a chain, which branches where parts were joined; at least that of the target itself."""

    target: Location
    steps: Sequence[Step]
    verifier: Verifier | None

    @property
    def rows(self) -> Iterator[LineageStep]:
        """A row for each step, behind those of all that it was made of."""
        ordered: dict[int, Step] = {}

        def add(step: Step) -> None:
            if step.number not in ordered:
                for reference in step.references:
                    for before in self._kept(reference):
                        add(before)
                ordered[step.number] = step

        add(self.steps[0])
        lost = [step for step in self.steps if step.number not in ordered]  # none refers to them: a problem of each
        for step in (*reversed(lost), *ordered.values()):
            yield from self._origins(step)
            into = [self._place(link.successor) for link in links_to(step, self.steps)]
            yield _row(step, self._place(step), into, self.verifier)

    def _kept(self, reference: Reference) -> list[Step]:
        return [step for step in self.steps if step.number and step.sha256 == reference.sha256]

    def _place(self, step: Step) -> str:
        links = links_to(step, self.steps)
        return links[0].reference.place if links else "" if step.number else str(self.target)

    def _cut(self, step: Step) -> list[Reference]:
        return [reference for reference in step.references if not self._kept(reference)]

    def _origins(self, step: Step) -> Iterator[LineageStep]:
        """Yield rows of what a step was made of, as far as no statements of it are kept here."""
        into = (shown_text(self._place(step)),)
        referred = {reference.place for reference in step.references}
        unstated = [place for place in step.parts if place not in referred]
        for place in (*(reference.place for reference in self._cut(step)), *unstated):
            yield LineageStep(kind=StepKind.CONVERSION, place=shown_text(place), into=into, changes=None)
        if not (step.references or step.is_join) and step.equivalence is not None:
            yield _training(step.equivalence.predicate.source, into)

    @property
    def beginning(self) -> str:
        """How the chain begins, in a sentence."""
        cut = [reference for step in self.steps for reference in self._cut(step)]
        if cut:
            places = [f"{shown_text(each.place)}, whose provenance has SHA-256 {each.sha256}" for each in cut]
            which = listed(places, _MAX_LISTED)
            return f"the chain is cut: the statements about {which}, are not kept here"
        if sum(1 for step in self.steps for _ in self._origins(step)) > 1:
            return "the chain begins with several checkpoints, which were not converted by reshard, or without SHA-256"
        return "the chain begins here: its source was not converted by reshard, or without SHA-256"


def _row(step: Step, place: str, into: Sequence[str], verifier: Verifier | None) -> LineageStep:
    signed, signer, problem = _signature(step, verifier)
    problems = tuple(shown_text(each) for each in (*step.problems, *([problem] if problem else [])))
    row = LineageStep(
        kind=StepKind.JOIN if step.is_join else StepKind.CONVERSION,
        place=shown_text(place),
        into=tuple(map(shown_text, into)),
        signed=signed,
        signer=shown_text(signer),
        linked=not step.problems,
        problems=problems,
    )
    return row.model_copy(update={**_of_provenance(step), **_of_equivalence(step)})


def _of_provenance(step: Step) -> dict[str, object]:
    if step.provenance is None:
        return {}
    definition, run = step.provenance.predicate.build_definition, step.provenance.predicate.run_details
    internal, metadata = definition.internal_parameters, run.metadata
    return {
        "layout": shown_text(internal.layout),
        "format": shown_text(internal.format),
        "begun": parse_moment(metadata.started_on),
        "ended": parse_moment(metadata.finished_on),
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


def _training(source: EquivalentSource, into: tuple[str, ...]) -> LineageStep:
    return LineageStep(
        kind=StepKind.TRAINING,
        place=shown_text(url_of(source.uri)),
        into=into,
        step=shown_text(source.step) if source.step else None,
        ranks=source.ranks,
        fingerprint=shown_text(source.fingerprint) if source.fingerprint else None,
    )

"""Joins parts, stages converted one by one and perhaps on different machines, into one checkpoint, atomically.

Each part is a finished conversion with its own manifest and records. All parts have the same target strategy, and
together contain all of its parameters. The files of each rank are copied side by side, checked against the records,
and published with one manifest, in which the files of a rank count as one. A parameter that several stages share is
written once, from the copy of one part.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import pairwise

import xxhash

from reshard import __version__
from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.checkpoint.manifest import Manifest, ParameterRecord, RankSummary, ShardRecord, read_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.part_changes import check_changed_alike
from reshard.core.errors import InputError, TargetError, VerificationError
from reshard.core.options.fields import SHARED_PARAMETERS
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.recipes import excluded_names
from reshard.core.records.plan_file import rebuild_plan
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.progress import Progress, SilentProgress, advancing
from reshard.core.runtime.retry import stoppable, with_retries
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import listed
from reshard.core.storage.copying import copy_file
from reshard.core.storage.filesystems import same_storage
from reshard.core.storage.joined import joined_name
from reshard.core.storage.lease_holder import new_holder
from reshard.core.storage.placement import check_apart
from reshard.core.storage.publishing import STATE_DIRECTORY, check_room, list_names, working_location
from reshard.core.storage.reading import open_source
from reshard.core.storage.removal import remove_files
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes, write_file
from reshard.core.target.claim import leased, publish_manifest, remove_leftovers
from reshard.core.target.place import check_beside, check_place
from reshard.core.target.workspace import IDENTITY_NAME, Workspace, read_identity, record_digest
from reshard.core.transfer.reduced_copy import copy_without
from reshard.core.verification.files import verify_rank
from reshard.core.verification.state import other_state_files
from reshard.core.verification.tied_parameters import PartCopies, differing_note, differing_text

FAIL = "fail"
_WORKERS = 4
_BLOCK_BYTES = 8 * 2**20
_NOT_EMPTY = "{}: is not empty. Name another target, or remove it"


class JoinReport(Summary):
    """The joined checkpoint: its pipeline stages, ranks, parameters of the strategy, and bytes."""

    target: str
    stages: tuple[int, ...]
    ranks: int
    parameters: int
    size_bytes: int
    seconds: float


@frozen
class _Part:
    """One stage's finished conversion."""

    location: Location
    manifest: Manifest
    plan: ConversionPlan
    stage: int

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.location, self.manifest.identity)

    @property
    def parameters(self) -> set[str]:
        return {parameter.name for parameter in self.plan.match.resharded}

    @property
    def selection(self) -> Changes:
        """The declared selection alone."""
        changes = self.plan.inputs.changes
        return Changes(select=changes.select, include=changes.include, exclude=changes.exclude)

    def left_out(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the target's names that the selection leaves out, of other stages too as far as is known."""
        changes = self.plan.inputs.changes
        if changes.steps or changes.split or changes.join or changes.rename:  # selections are of the source's names
            return self.plan.match.left_out
        return self.plan.match.left_out | excluded_names(sorted(names), self.selection, set()).keys()

    def allows_missing(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.plan.inputs.allow_missing)


def join_parts(
    parts: Sequence[str], target: str, progress: Progress | None = None, *, shared_parameters: str = FAIL
) -> JoinReport:
    """Copy parts into one checkpoint; the parts stay as they are.

    `shared_parameters` decides about parameters whose copies differ between parts: `fail`, take the `first` stage's
    copy, or the copy of the stage of this number. Equal copies are taken from the first stage, or the numbered one.

    Raises:
        InputError: the parts do not make one target, some are missing, or the target is occupied.
        VerificationError: a copied file differs from the part's record.
        StorageError: reading or writing failed, or there is no room.
    """
    started = time.monotonic()
    progress = progress or SilentProgress()
    final = parse_url(target)
    _check_target(final)
    found = sorted((_read_part(parse_url(url)) for url in parts), key=lambda part: part.stage)
    for part in found:
        check_apart(part.location, final)
    _check_together(found)
    shared = _shared(found, shared_parameters)
    note = _compared(found, shared, fails=shared_parameters == FAIL)
    if note:
        progress.note(note)
    joint = _Joint(found, final, shared, note)
    done = read_manifest(final)
    if done is not None and done.identity == joint.identity:
        progress.note(f"{final}: was joined from these parts already; reshard verify checks it")
        summaries: Sequence[RankSummary] = done.ranks
    else:
        summaries = joint.make(progress)
    return JoinReport(
        target=str(final),
        stages=tuple(part.stage for part in found),
        ranks=len(joint.ranks),
        parameters=len(set().union(*(part.parameters for part in found))),
        size_bytes=sum(rank.size_bytes for rank in summaries),
        seconds=round(time.monotonic() - started, 3),
    )


def _check_target(final: Location) -> None:
    """Refuse an unusable target before any part is read."""
    check_place(final)
    begun = read_identity(final.child(STATE_DIRECTORY)) is not None or read_manifest(final) is not None
    if not begun and set(list_names(final)) - ({STATE_DIRECTORY} if not final.is_local else set()):
        raise TargetError(_NOT_EMPTY.format(final))


def _read_part(location: Location) -> _Part:
    manifest = read_manifest(location)
    if manifest is None:
        raise InputError(
            f"{location}: has no .reshard/manifest.json: it is not a finished conversion, or was not made by reshard"
        )
    if manifest.encryption:
        raise InputError(f"{location}: is encrypted, and such parts cannot be joined; convert its stage unencrypted")
    plan = rebuild_plan(Workspace(location, manifest.identity).plan_url, manifest.plan_digest)
    if plan.part is None:
        raise InputError(
            f"{location}: is not a part: it was not converted with one pipeline stage's own strategy, to a target with "
            "other stages' parameters as well"
        )
    return _Part(location, manifest, plan, plan.part)


def _check_together(parts: Sequence[_Part]) -> None:
    """Check that parts are of one kind and make one complete target."""
    first = parts[0]
    for part in parts[1:]:
        for what, ours in _kind_of(part).items():
            if ours != _kind_of(first)[what]:
                raise InputError(f"{first.location} and {part.location} do not go together: they have different {what}")
    for part, other in pairwise(parts):
        if part.stage == other.stage:
            raise InputError(
                f"{part.location} and {other.location} are both of stage {part.stage}, and their files have the same "
                "names: they are not stages of one checkpoint. Name each stage once"
            )
    check_changed_alike({str(part.location): part.plan for part in parts})
    wanted = first.plan.inputs.target_strategy.parameters if first.plan.inputs.target_strategy else frozenset()
    lacking = wanted.difference(*(part.parameters for part in parts))
    left_out = frozenset(name for part in parts for name in part.left_out(wanted) if name in lacking)
    differing = [part for part in parts if part.selection != first.selection]
    if left_out and differing:
        raise InputError(
            f"{first.location} and {differing[0].location} do not go together: they have different selections, and "
            f"parameters of the target's strategy were left out of one of them only: {listed(sorted(left_out), 6)}. "
            "Convert all stages with the same --select, --include and --exclude"
        )
    missing = sorted(name for name in lacking - left_out if not any(part.allows_missing(name) for part in parts))
    if missing:
        raise InputError(
            f"no part has {len(missing)} parameters of the target's strategy ({listed(missing, 6)}): there are the "
            f"parts of stages {', '.join(str(part.stage) for part in parts)}; name the others' as well"
        )


def _shared(parts: Sequence[_Part], shared_parameters: str) -> dict[str, tuple[int, ...]]:
    """Shared parameters -> the stages with a copy; that of the first stage is taken."""
    if not SHARED_PARAMETERS.fullmatch(shared_parameters):
        raise InputError(f"--shared-parameters {shared_parameters}: must be first, fail, or the number of a stage")
    stages: dict[str, list[int]] = {}
    for part in parts:
        for name in part.parameters:
            stages.setdefault(name, []).append(part.stage)
    chosen = int(shared_parameters) if shared_parameters.isdigit() else None
    if chosen is not None and chosen not in {part.stage for part in parts}:
        raise InputError(
            f"the copies of stage {chosen} are to be taken of shared parameters (--shared-parameters), but there are "
            f"the parts of stages {', '.join(str(part.stage) for part in parts)}"
        )
    return {
        name: tuple(sorted(holders, key=lambda stage: stage != chosen))
        for name, holders in sorted(stages.items())
        if len(holders) > 1
    }


def _left_out(part: _Part, shared: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the parameters of a part that are taken from another part."""
    return frozenset(name for name, stages in shared.items() if part.stage in stages[1:])


def _compared(parts: Sequence[_Part], shared: Mapping[str, tuple[int, ...]], *, fails: bool) -> str:
    """Compare copies of shared parameters; return a note if they differ, or raise InputError if that `fails`."""
    if not shared:
        return ""
    copies = PartCopies(shared)

    def take(part: _Part, rank: int) -> None:
        record = _record_of(part, rank)
        if _left_out(part, shared).issuperset(parameter.name for parameter in record.parameters):
            raise InputError(
                f"{part.location}: has nothing for rank_{rank} but what other parts have as well, and a file without "
                f"parameters cannot be written. Take its copies, --shared-parameters {part.stage}, or convert all "
                "stages at once, with the directory of all strategies"
            )
        copies.add(part.stage, part.plan, record)

    pairs = [(part, rank) for part in parts for rank in part.plan.target_ranks]
    in_threads(lambda pair: take(*pair), pairs, _WORKERS, threading.Event())
    differing = differing_text(copies.differing())
    if differing and fails:
        raise InputError(
            f"{', '.join(str(part.location) for part in parts)}: have different copies of parameters that their stages "
            f"share: {differing}. Name the stage whose copies are right: --shared-parameters STAGE, or first"
        )
    return differing_note(differing) if differing else ""


def _kind_of(part: _Part) -> dict[str, object]:
    inputs = part.plan.inputs
    stages = inputs.target_strategy.stages if inputs.target_strategy else ()
    return {
        "formats": inputs.format,
        "prefixes": inputs.prefix,
        "numbers of copies (--replicas)": inputs.replicas,
        "source steps": inputs.catalog.step,
        "target strategies": [stage.layouts for stage in stages],
    }


def _record_of(part: _Part, rank: int) -> ShardRecord:
    record = part.workspace.read_record(rank, needs_digest=part.manifest.plan_digest is not None)
    if record_digest(record) not in [summary.record_digest for summary in part.manifest.ranks if summary.rank == rank]:
        raise TargetError(
            f"{part.location}: the record of rank_{rank} is not the one that its manifest was written for"
        )
    if record.file != part.plan.file_name(rank):
        raise TargetError(
            f"{part.location}: the record of rank_{rank} says that its file is {record.file!r}, its plan says "
            f"{part.plan.file_name(rank)!r}: one of them was changed"
        )
    return record


def _copied(
    part: _Part, record: ShardRecord, directory: Location, left_out: frozenset[str]
) -> tuple[int, tuple[str, ...]]:
    """Copy a part's file of a rank, without the parameters taken from another part; return its size and heads."""
    names = record.file.split("/")
    source, target = part.location.child(*names), directory.child(*names)
    if left_out.isdisjoint(parameter.name for parameter in record.parameters):
        _copy(source, target)
        return record.size_bytes, record.heads
    reduced = copy_without(source, target, part.plan, left_out)
    return reduced.size_bytes, (reduced.heads,)


def _copy(source: Location, target: Location) -> None:
    if same_storage(source.fs, target.fs):
        copy_file(source, target)
        return
    file = open_source(source)
    try:
        with write_file(target) as output:
            for start in range(0, file.size_bytes, _BLOCK_BYTES):
                block = memoryview(bytearray(min(_BLOCK_BYTES, file.size_bytes - start)))
                file.read_into(start, block)
                output.write(block)
    finally:
        file.close()


def _united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


class _Joint:
    """The joined checkpoint."""

    def __init__(
        self, parts: Sequence[_Part], final: Location, shared: Mapping[str, tuple[int, ...]], note: str
    ) -> None:
        self._parts = parts
        self._final = final
        self._note = note
        self._left_out = {part.stage: _left_out(part, shared) for part in parts}
        taken = sorted({stages[0] for stages in shared.values()})
        identities = "+".join([*(part.manifest.identity for part in parts), *(f"shared {stage}" for stage in taken)])
        self.identity = xxhash.xxh3_128_hexdigest(identities.encode())
        self.ranks = parts[0].plan.target_ranks

    def make(self, progress: Progress) -> Sequence[RankSummary]:
        """Copy, check and publish all files."""
        size_bytes = sum(rank.size_bytes for part in self._parts for rank in part.manifest.ranks)
        with self._claimed() as workspace:
            paths = [part.plan.file_name(rank) for part in self._parts for rank in self.ranks]
            workspace.abort_abandoned_uploads(paths)
            check_room(workspace.directory, size_bytes)
            progress.begin("copying, checking", 2 * size_bytes)
            with stoppable() as stop:
                advance = advancing(progress, stop)

                def join(rank: int) -> RankSummary:
                    return with_retries(lambda: self._join(workspace, rank, advance), progress.note)

                ranks = in_threads(join, self.ranks, _WORKERS, stop)
            remove_leftovers(workspace, self._final, [rank.file for rank in ranks], in_place=False)
            remove_files(other_state_files(workspace.directory, self.ranks, has_plan=False))
            publish_manifest(workspace, self._final, self._manifest(ranks))
        return ranks

    @contextmanager
    def _claimed(self) -> Iterator[Workspace]:
        """Provide the workspace while no other run may write there."""
        workspace = Workspace(working_location(self._final), self.identity)
        self._check_free(workspace)
        with leased(self._final, new_holder(self.ranks, self.identity)):
            self._check_free(workspace)
            write_bytes(workspace.state.child(IDENTITY_NAME), self.identity.encode())
            yield workspace

    def _check_free(self, workspace: Workspace) -> None:
        if self._final.is_local:
            check_beside(self._final)
        begun = read_identity(workspace.state)
        if begun not in (None, self.identity) and read_manifest(self._final) is None:
            raise TargetError(
                f"{self._final}: something else is unfinished in {workspace.directory}. Finish that, or remove it"
            )
        in_place = workspace.directory.path == self._final.path
        names = set(list_names(self._final)) - ({STATE_DIRECTORY} if in_place else set())
        if names and not (in_place and begun == self.identity):
            raise TargetError(_NOT_EMPTY.format(self._final))

    def _join(self, workspace: Workspace, rank: int, advance: Callable[[int], None]) -> RankSummary:
        """Copy the files of a rank of all parts, and check them as one against the parts' records.

        A record has a line for every parameter: thousands of them are never in memory together.
        """
        parameters: dict[str, ParameterRecord] = {}
        records = [_record_of(part, rank) for part in self._parts]
        files: list[tuple[int, tuple[str, ...]]] = []
        for part, record in zip(self._parts, records, strict=True):
            left_out = self._left_out[part.stage]
            for parameter in record.parameters:
                if parameter.name in left_out:
                    continue
                if parameters.setdefault(parameter.name, parameter) != parameter:
                    raise InputError(
                        f"{part.location}: parameter {parameter.name!r} of rank_{rank}, which no strategy knows, has "
                        "other contents than in other parts: they are not of one checkpoint"
                    )
            files.append(_copied(part, record, workspace.directory, left_out))
            advance(record.size_bytes)
        joined = ShardRecord(
            identity=self.identity,
            rank=rank,
            file=self._file_name(rank),
            size_bytes=sum(size_bytes for size_bytes, _ in files),
            copy_of=None,
            source_ranks=tuple(sorted({source for record in records for source in record.source_ranks})),
            read_bytes=sum(record.read_bytes for record in records),
            seconds=sum(record.seconds for record in records),
            verified=VerifyLevel.CHECKSUM,
            heads=tuple(digest for _, heads in files for digest in heads),
            parameters=tuple(parameters.values()),
        )
        found = verify_rank(workspace.directory, joined, VerifyLevel.CHECKSUM, advance=advance)
        if found.problems:
            advice = "reshard verify shows whether a part itself is damaged"
            raise VerificationError("\n".join([*found.problems, advice]))
        workspace.write_record(joined)
        return RankSummary(
            rank=rank, file=joined.file, size_bytes=joined.size_bytes, record_digest=record_digest(joined)
        )

    def _file_name(self, rank: int) -> str:
        first = self._parts[0].plan
        if len(self._parts) == 1:
            return first.file_name(rank)
        stem = f"rank_{rank}/{first.inputs.prefix}{rank}_part"
        return joined_name(stem, [part.stage for part in self._parts], f".{first.inputs.format}")

    def _manifest(self, ranks: Sequence[RankSummary]) -> Manifest:
        manifests = [part.manifest for part in self._parts]
        origins = "; ".join(f"stage {part.stage}: {part.location}" for part in self._parts)
        changes = manifests[0].changes
        return Manifest(
            identity=self.identity,
            writer=f"reshard {__version__}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            source=", ".join(manifest.source for manifest in manifests),
            step=manifests[0].step,
            source_world_size=sum(manifest.source_world_size for manifest in manifests),
            target_world_size=len(self.ranks),
            format=manifests[0].format,
            verified=VerifyLevel.CHECKSUM,
            dropped=_united(manifest.dropped for manifest in manifests),
            excused=_united(manifest.excused for manifest in manifests),
            carried=_united(manifest.carried for manifest in manifests),
            notes=(
                f"joined from the parts that stages were converted to: {origins}",
                *([self._note] if self._note else []),
            ),
            ranks=tuple(ranks),
            # they may differ between stages, because rules that match nothing in a stage are refused there
            changes=changes if all(manifest.changes == changes for manifest in manifests) else NO_CHANGES,
            excluded=_united(manifest.excluded for manifest in manifests),
            plan_digest="",
        )

"""Joins parts, stages converted one by one and perhaps on different machines, into one checkpoint, atomically.

Each part is a finished conversion with its own manifest and records. All parts have the same target strategy, and
together contain all of its parameters. The files of each rank are copied side by side, checked against the records,
and published with one manifest, in which the files of a rank count as one. A parameter that several stages share is
written once, from the copy of one part. Ranks that an interrupted run has joined are checked, and not copied again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cached_property

import xxhash

from reshard import __version__
from reshard.core.changes.changes import NO_CHANGES
from reshard.core.checkpoint.manifest import Manifest, ParameterRecord, RankSummary, ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.left_behind import noting_what_is_left
from reshard.core.conversion.parts import Part, check_together, read_part
from reshard.core.conversion.shared_copies import FAIL, SharedCopies, chosen_copies, compare_copies
from reshard.core.errors import InputError, TargetError, VerificationError
from reshard.core.reports.blocks import Block, Line
from reshard.core.reports.report import Report
from reshard.core.runtime.progress import Progress, SilentProgress, advancing, reporting_to
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import stoppable, with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted, seconds_text, size_text
from reshard.core.storage.copying import copy_file
from reshard.core.storage.joined import joined_name
from reshard.core.storage.placement import check_apart
from reshard.core.storage.publishing import check_room
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_file
from reshard.core.target.joined import JoinedTarget, check_joinable
from reshard.core.target.workspace import Workspace, record_digest
from reshard.core.transfer.reduced_copy import copy_without
from reshard.core.verification.files import verify_rank

_WORKERS = 4
_BLOCK_BYTES = 8 * 2**20


class JoinReport(Report):
    """The joined checkpoint: its pipeline stages, ranks, parameters of the strategy, and bytes."""

    target: str
    stages: tuple[int, ...]
    ranks: int
    parameters: int
    size_bytes: int
    seconds: float

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a line."""
        stages = ", ".join(map(str, self.stages))
        yield Line(
            f"{self.target}: the parts of stages {stages}, {counted(self.parameters, 'parameter')} on "
            f"{counted(self.ranks, 'rank')}, {size_text(self.size_bytes)} copied and checked in "
            f"{seconds_text(self.seconds)}"
        )


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
    check_joinable(final)
    found = sorted((read_part(parse_url(url)) for url in parts), key=lambda part: part.stage)
    for part in found:
        check_apart(part.location, final)
    check_together(found)
    shared = chosen_copies(found, shared_parameters)
    note = compare_copies(found, shared, fails=shared_parameters == FAIL)
    if note:
        progress.note(note)
    with reporting_to(progress):
        joint = _Joint(found, shared, note)
        ranks = joint.make(joint.target(final), progress)
    return JoinReport(
        target=str(final),
        stages=tuple(part.stage for part in found),
        ranks=len(joint.ranks),
        parameters=len(set().union(*(part.parameters for part in found))),
        size_bytes=sum(rank.size_bytes for rank in ranks),
        seconds=round(time.monotonic() - started, 3),
    )


class _Joint(Record, dict=True):
    """The joined checkpoint; `note` says which copies of shared parameters differ."""

    parts: Sequence[Part]
    shared: SharedCopies
    note: str

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return self.parts[0].plan.target_ranks

    @cached_property
    def identity(self) -> str:
        """Digest of the parts' identities and of the choice of copies."""
        of_parts = [part.manifest.identity for part in self.parts]
        identities = "+".join([*of_parts, *(f"shared {stage}" for stage in self.shared.taken)])
        return xxhash.xxh3_128_hexdigest(identities.encode())

    def target(self, final: Location) -> JoinedTarget:
        """Return the target of the parts at a place."""
        return JoinedTarget(final, self.parts[0].plan, parts_identity=self.identity)

    def make(self, target: JoinedTarget, progress: Progress) -> Sequence[RankSummary]:
        """Copy, check and publish all files, unless they are there already."""
        if (done := target.read_committed()) is not None:
            progress.note(f"{target.final}: was joined from these parts already; reshard verify checks it")
            return done.ranks
        with noting_what_is_left(lambda: target), target.claimed(self.ranks) as claim, stoppable() as stop:
            done = None if claim.is_new else target.read_committed()
            if done is not None:  # by another run, a moment ago
                return done.ranks
            workspace = claim.workspace
            workspace.abort_abandoned_uploads([part.plan.file_name(rank) for part in self.parts for rank in self.ranks])
            recorded = workspace.recorded_ranks() & {*self.ranks}
            if recorded:
                progress.note(f"resuming: {len(recorded)} of {len(self.ranks)} ranks are joined already; checking them")
            summaries = [rank for part in self.parts for rank in part.manifest.ranks]
            check_room(workspace.directory, sum(each.size_bytes for each in summaries if each.rank not in recorded))
            progress.begin("copying, checking", 2 * sum(each.size_bytes for each in summaries))
            advance = advancing(progress, stop)

            def join(rank: int) -> RankSummary:
                return with_retries(lambda: self._join(workspace, rank, advance), progress.note)

            ranks = in_threads(join, self.ranks, _WORKERS, stop)
            target.commit(self._manifest(ranks), was_empty=claim.was_empty)
        return ranks

    def _join(self, workspace: Workspace, rank: int, advance: Callable[[int], None]) -> RankSummary:
        """Copy the files of a rank of all parts, unless an earlier run did.

        A record has a line for every parameter: thousands of them are never in memory together.
        """
        records = [part.record(rank) for part in self.parts]
        parameters = self._parameters(records)
        joined = self._found(workspace, rank, parameters)
        if joined is None:
            joined = self._copied(workspace, records, parameters, advance)
        else:
            advance(2 * sum(record.size_bytes for record in records))
        return RankSummary(
            rank=rank, file=joined.file, size_bytes=joined.size_bytes, record_digest=record_digest(joined)
        )

    def _parameters(self, records: Sequence[ShardRecord]) -> tuple[ParameterRecord, ...]:
        """Return the parameters of a rank; those that no strategy knows are the same in all parts that have them."""
        parameters: dict[str, ParameterRecord] = {}
        for part, record in zip(self.parts, records, strict=True):
            of_others = self.shared.of_others(part)
            for parameter in record.parameters:
                if parameter.name in of_others:
                    continue
                if parameters.setdefault(parameter.name, parameter) != parameter:
                    raise InputError(
                        f"{part.location}: parameter {parameter.name!r} of rank_{record.rank}, which no strategy "
                        "knows, has other contents than in other parts: they are not of one checkpoint"
                    )
        return tuple(parameters.values())

    def _found(self, workspace: Workspace, rank: int, parameters: tuple[ParameterRecord, ...]) -> ShardRecord | None:
        """Return the record of a rank that an earlier run joined; None if there is none, or its files are wrong."""
        try:
            record = workspace.find_record(rank)
        except TargetError:  # damaged
            return None
        if record is None or record.file != self._file_name(rank) or record.parameters != parameters:
            return None
        return None if verify_rank(workspace.directory, record, VerifyLevel.CHECKSUM).problems else record

    def _copied(
        self,
        workspace: Workspace,
        records: Sequence[ShardRecord],
        parameters: tuple[ParameterRecord, ...],
        advance: Callable[[int], None],
    ) -> ShardRecord:
        """Copy the files of a rank, and check them as one against the parts' records."""
        rank = records[0].rank
        files = []
        for part, record in zip(self.parts, records, strict=True):
            files.append(_copied_file(part, record, workspace.directory, self.shared.of_others(part)))
            advance(record.size_bytes)
        joined = ShardRecord(
            identity=self.identity,
            rank=rank,
            file=self._file_name(rank),
            size_bytes=sum(file.size_bytes for file in files),
            copy_of=None,
            source_ranks=tuple(sorted({source for record in records for source in record.source_ranks})),
            read_bytes=sum(record.read_bytes for record in records),
            seconds=sum(record.seconds for record in records),
            verified=VerifyLevel.CHECKSUM,
            heads=tuple(digest for file in files for digest in file.heads),
            parameters=parameters,
        )
        found = verify_rank(workspace.directory, joined, VerifyLevel.CHECKSUM, advance=advance)
        if found.problems:
            advice = "reshard verify shows whether a part itself is damaged"
            raise VerificationError("\n".join([*found.problems, advice]))
        workspace.write_record(joined)
        return joined

    def _file_name(self, rank: int) -> str:
        first = self.parts[0].plan
        if len(self.parts) == 1:
            return first.file_name(rank)
        suffix = f".{first.inputs.format}"
        stem = first.file_name(rank).removesuffix(f"{first.part}{suffix}")
        return joined_name(stem, [part.stage for part in self.parts], f".{first.inputs.format}")

    def _manifest(self, ranks: Sequence[RankSummary]) -> Manifest:
        manifests = [part.manifest for part in self.parts]
        first = manifests[0]
        origins = "; ".join(f"stage {part.stage}: {part.location}" for part in self.parts)
        return Manifest(
            identity=self.identity,
            writer=f"reshard {__version__}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            source=", ".join(manifest.source for manifest in manifests),
            step=first.step,
            source_world_size=sum(manifest.source_world_size for manifest in manifests),
            target_world_size=len(self.ranks),
            format=first.format,
            verified=VerifyLevel.CHECKSUM,
            dropped=_united(manifest.dropped for manifest in manifests),
            excused=_united(manifest.excused for manifest in manifests),
            carried=_united(manifest.carried for manifest in manifests),
            notes=(
                f"joined from the parts that stages were converted to: {origins}",
                *([self.note] if self.note else []),
            ),
            ranks=tuple(ranks),
            # they may differ between stages, because rules that match nothing in a stage are refused there
            changes=first.changes if all(each.changes == first.changes for each in manifests) else NO_CHANGES,
            excluded=_united(manifest.excluded for manifest in manifests),
            plan_digest="",
        )


class _CopiedFile(Record):
    """A copied file's size, and the digests of the bytes around its contents."""

    size_bytes: int
    heads: tuple[str, ...]


def _copied_file(part: Part, record: ShardRecord, directory: Location, of_others: frozenset[str]) -> _CopiedFile:
    """Copy a part's file of a rank, without the parameters that are taken from another part."""
    names = record.file.split("/")
    source, target = part.location.child(*names), directory.child(*names)
    if of_others.isdisjoint(parameter.name for parameter in record.parameters):
        _copy(source, target)
        return _CopiedFile(record.size_bytes, record.heads)
    reduced = copy_without(source, target, part.plan, record.rank, of_others)
    return _CopiedFile(reduced.size_bytes, (reduced.heads,))


def _copy(source: Location, target: Location) -> None:
    """Copy a file, perhaps to another storage."""
    if source.store.is_same(target.store):
        copy_file(source, target)
        return
    with closing(open_source(source)) as file, write_file(target) as output:
        for start in range(0, file.size_bytes, _BLOCK_BYTES):
            block = memoryview(bytearray(min(_BLOCK_BYTES, file.size_bytes - start)))
            file.read_into(start, block)
            output.write(block)


def _united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return all names, each once."""
    return tuple(dict.fromkeys(name for some in names for name in some))

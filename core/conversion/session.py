"""A conversion under way: the target is claimed, some ranks are done, the others are left to do.

A rank is done when its file is written, checked and recorded; what is recorded is not done again by a later run of the
same plan. Every step works on one rank, or on a group of them that share reads, and can be carried out by any
thread or process that sees the workspace.
"""

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import xxhash

from reshard import __version__
from reshard.core.checkpoint.encryption.encrypted_output import encrypted_bytes
from reshard.core.checkpoint.formats.running_crc import is_crc_in_header
from reshard.core.checkpoint.manifest import Manifest, RankSummary, ShardRecord, seal_manifest
from reshard.core.conversion.report import (
    ConversionReport,
    Outcome,
    RankReport,
    plan_notes,
    source_kind,
    substitutes_of,
    target_kind,
)
from reshard.core.errors import (
    CastError,
    ConversionError,
    InputError,
    ReshardError,
    StorageError,
    TargetError,
    VerificationError,
)
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.plan_file import dump_plan
from reshard.core.request.conversion import ConversionRequest, TargetLayout, VerifyLevel
from reshard.core.runtime.budget import (
    CIPHER_BLOCK_BYTES,
    MAX_PREFETCH_THREADS,
    Budget,
    WorkerPool,
    build_budget,
    open_files_limit,
    upload_part_bytes,
)
from reshard.core.runtime.keys import needed_target_key
from reshard.core.runtime.progress import SilentProgress, advancing, current_progress
from reshard.core.runtime.retry import retries_counted, with_retries
from reshard.core.runtime.summary import RANK
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import rank_names
from reshard.core.storage.copying import copy_file
from reshard.core.storage.publishing import check_room
from reshard.core.storage.uploads import abort_uploads, takes_parts
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import check_claim
from reshard.core.target.index import index_of, index_problem
from reshard.core.target.target import Target
from reshard.core.target.workspace import Workspace, read_identity, read_records, record_digest
from reshard.core.transfer.file_blocks import expected_entries
from reshard.core.transfer.overflows import overflow_notes, total_overflows
from reshard.core.transfer.rank_groups import group_ranks
from reshard.core.transfer.source_files import are_remote
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.files import RankVerification, verify_rank
from reshard.core.verification.state import check_no_other_state, state_problems
from reshard.core.verification.values import ContentCheck, content_problems_text, target_starts

_HEADER_BYTES = 4096
"""Room asked for beyond the shards, for each rank's headers."""

_REMOTE_WORKERS = 8
"""They wait for answers most of the time, whatever the number of cores."""

_REMOTE_FILES_AT_ONCE = 4


def rank_budget(
    request: ConversionRequest, plan: ConversionPlan, rank_count: int, pool: WorkerPool | None = None
) -> Budget:
    """What the workers of a conversion of so many ranks have, in this process or in each of a pool's."""
    remote_source, remote_target = are_remote(plan), not parse_url(request.target).is_local
    cores = pool.threads if pool else request.worker_count
    default = max(_REMOTE_WORKERS, cores) if remote_source or remote_target else cores
    wanted = request.workers or default
    # what is asked for is shared by a pool's processes: none of them has more at work than it would by itself
    workers = min(wanted, default if pool else wanted, rank_count * MAX_PREFETCH_THREADS)
    limit_bytes = request.memory_limit_bytes
    largest_bytes = max((totals.shard_bytes for totals in plan.totals), default=0)
    return build_budget(
        limit_bytes,
        open_files_limit(),
        workers,
        part_bytes=upload_part_bytes(limit_bytes, largest_bytes) if remote_target else 0,
        remote_source=remote_source,
        processes=pool.processes if pool else 1,
        cipher_bytes=CIPHER_BLOCK_BYTES if plan.inputs.encryption else 0,
        keeps_first=remote_target and plan.inputs.write_crc and is_crc_in_header(plan.inputs.format),
    )


def planned_groups(plan: ConversionPlan, ranks: Sequence[int], budget: Budget) -> tuple[tuple[int, ...], ...]:
    """Target ranks in the groups in which they are written side by side; mostly groups of one.

    From local files each worker has a group. From a remote storage workers rather read ahead for one group together:
    what its ranks share comes over the network once.
    """
    fewest = budget.processes * (1 if budget.remote_source else budget.workers)
    return group_ranks(
        plan, ranks, min_groups=fewest, max_ranks=budget.max_group_ranks, remote_source=budget.remote_source
    )


def prefetch_threads_of(groups: Sequence[Sequence[int]], budget: Budget) -> int:
    """How many workers gather for one group: several where there are fewer groups than workers, or shared reads."""
    if budget.remote_source and any(len(group) > 1 for group in groups):
        return budget.max_prefetch
    return max(1, min(budget.max_prefetch, budget.workers * budget.processes // max(1, len(groups))))


@dataclass(frozen=True)
class Session:
    """A conversion under way: the target is claimed, and it is known which ranks are left to do.

    Attributes:
        request: what was asked for.
        target: the target and its plan.
        workspace: where files and records are written.
        ranks: the target ranks that were asked for.
        done: ranks whose files an earlier run wrote, checked anew; none of the others has a record.
        budget: what the workers have.
        committed: the target is complete already: nothing is left to do.
    """

    request: ConversionRequest
    target: Target
    workspace: Workspace
    ranks: tuple[int, ...]
    done: frozenset[int]
    budget: Budget
    committed: bool

    @property
    def plan(self) -> ConversionPlan:
        """How every rank is made."""
        return self.target.plan

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """The ranks left to do."""
        return () if self.committed else tuple(rank for rank in self.ranks if rank not in self.done)

    @cached_property
    def copies(self) -> tuple[int, ...]:
        """Those of them that are copies of a rank that is there once the others are written."""
        available = set(self.ranks) | self.done
        return tuple(rank for rank in self.pending if self.plan.copies.get(rank) in available)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The others, in groups that are written side by side because they share reads; mostly groups of one."""
        written = sorted(set(self.pending) - set(self.copies))
        return planned_groups(self.plan, written, self.budget)

    @cached_property
    def prefetch(self) -> int:
        """How many workers gather for one group."""
        return prefetch_threads_of(self.groups, self.budget)

    @property
    def is_remote(self) -> bool:
        """Whether one of the sides is on a remote storage."""
        return self.budget.remote_source or not self.workspace.directory.is_local

    @property
    def groups_at_once(self) -> int:
        """How many groups are written at once in a process."""
        return max(1, self.budget.workers // self.prefetch)

    @property
    def readers(self) -> int:
        """How many source files are read at once in a process to be compared; of a remote one much is under way."""
        return min(self.budget.workers, _REMOTE_FILES_AT_ONCE) if self.budget.remote_source else self.budget.workers

    def copy_of_failed(self, rank: int, failures: Container[int]) -> ConversionError | None:
        """Why a rank cannot be made as a copy; None if the rank that it is a copy of is not among `failures`."""
        primary = self.plan.copies[rank]
        if primary not in failures:
            return None
        return ConversionError(f"not written, because it is a copy of rank_{primary}, which failed")

    def compares(self) -> bool:
        """Whether contents are to be compared: that is asked for, and all of the target's ranks are there."""
        if self.request.verify is not VerifyLevel.CONTENT:
            return False
        return self.committed or self.workspace.recorded_ranks() >= set(self.plan.target_ranks)

    def finish(
        self,
        failures: Mapping[int, ReshardError],
        seconds: float,
        source_parts: Mapping[int, np.ndarray] | None = None,
    ) -> ConversionReport:
        """Commits the target if all of its ranks are there, and says what was done.

        If contents are to be compared, `source_parts` are what `ContentCheck.source_parts` gave of source ranks; what
        is missing of them is read here.

        Raises:
            InputError, VerificationError, ConversionError: ranks failed, or contents differ; the message lists them.
        """
        raise_failures(failures, self)
        plan, level = self.plan, self.request.verify
        found = self._finished_ranks()
        if found.committed and (unchecked := found.unchecked & found.results.keys() & set(self.ranks)):
            # another run, which checks less closely, has completed the target before this one had checked its ranks
            for rank in sorted(unchecked):
                check_rank(found.where, plan, rank, level, SilentProgress().advance)
            found = self._finished_ranks()
        committed, where, results = found.committed, found.where, found.results
        missing = tuple(
            rank for rank in plan.target_ranks if rank not in results or (not committed and rank in found.unchecked)
        )
        undone = sorted(set(missing).intersection(self.ranks))
        if undone and not committed:
            # a task that was given to two workers, say, ended after its file was checked. Tried again, for another run
            # may have committed the target in this moment
            raise StorageError(
                f"{rank_names(undone, 10)}: said to be done, but no checked file is recorded; the same command does "
                f"only these again ({self.workspace.directory} holds what is done)",
                transient=True,
            )
        compared = found.content if not found.unchecked else None
        if compared:
            self._check_content(compared, source_parts or {}, where)
        if not committed and not missing:
            plan_data = dump_plan(plan)
            self.target.commit(_manifest(self, results, plan_data, compared=compared is not None), plan_data)
        elif committed and compared:
            self.target.confirm(level)
        overflowed = _overflowed(plan, results)
        mine = [results[rank].report for rank in self.ranks if rank in results]
        written = [report for report in mine if report.outcome is not Outcome.RESUMED]
        return ConversionReport(
            identity=self.workspace.identity,
            source=plan.inputs.catalog.url,
            step=plan.inputs.catalog.step,
            target=str(self.target.final),
            source_world_size=plan.inputs.catalog.world_size,
            target_world_size=len(plan.target_ranks),
            committed=not missing,
            missing_ranks=missing,
            seconds=round(seconds, 3),
            written_bytes=sum(report.size_bytes for report in written),
            read_bytes=sum(report.read_bytes for report in written),
            crc_bytes=_crc_bytes(plan) if self.request.check_crc else 0,
            verified_bytes=0 if level.is_below(VerifyLevel.CHECKSUM) else sum(r.size_bytes for r in written),
            compared=compared.parameter_count if compared else 0,
            compared_bytes=compared.source_bytes() if compared else 0,
            retried_requests=retries_counted(),
            verified=level if compared else level.of_files,
            dropped=plan.match.dropped,
            excused=plan.match.allowed_missing,
            carried=plan.match.beyond_strategies,
            stand_ins=substitutes_of(plan),
            overflowed=overflowed,
            notes=(*overflow_notes(overflowed), *plan_notes(plan)),
            ranks=tuple(mine),
            source_kind=source_kind(plan),
            target_kind=target_kind(plan),
        )

    def _finished_ranks(self) -> "_FinishedRanks":
        """What is recorded of the target's ranks, wherever they are by now.

        Raises:
            TargetError: another run converts something else into the target.
            StorageError: the records could not be read.
        """
        plan, level = self.plan, self.request.verify
        while True:
            # a run that did other ranks may have completed the target a moment ago, with this one's
            committed = self.committed or self.target.is_committed()
            if not committed:
                self.target.check_not_taken()
            where = Workspace(self.target.final, self.workspace.identity) if committed else self.workspace
            # a record has a line for every parameter: thousands of them never stand in memory together
            results: dict[int, _RankResult] = {}
            content = ContentCheck(plan) if level is VerifyLevel.CONTENT else None
            unchecked = set(plan.target_ranks)
            for record in read_records(where, plan.target_ranks):
                results[record.rank] = _rank_result(record, resumed=record.rank in self.done)
                if record.is_checked(level):
                    unchecked.discard(record.rank)
                    if content:
                        content.add_target(record)
            # or it completed it while the records were read: they were moved, and are read where they are now
            if committed or not self.target.is_committed():
                return _FinishedRanks(committed, where, results, frozenset(unchecked), content)

    def _check_content(self, content: ContentCheck, source_parts: Mapping[int, np.ndarray], where: Workspace) -> None:
        """Compares contents; ranks of the target that may be to blame lose their records, so a rerun does them anew.

        Raises:
            VerificationError: contents differ.
            CatalogError, CheckpointError, StorageError: a source file could not be read.
        """
        for rank in content.source_ranks:
            parts = source_parts.get(rank)
            content.add_source(rank, content.source_parts(rank) if parts is None else parts)
        problems = content.problems()
        if not problems:
            return
        for rank in sorted({rank for problem in problems for rank in problem.ranks}):
            where.remove_record(rank)
        raise VerificationError(content_problems_text(str(self.target.final), problems))


@contextmanager
def open_session(request: ConversionRequest, plan: ConversionPlan, pool: WorkerPool | None = None) -> Iterator[Session]:
    """Claims the target for a plan and finds out what is left to do; a pool is to do it, or else this process.

    Raises:
        TargetError: the target is occupied or in use.
        StorageError: it cannot be read or written, or has no room.
    """
    ranks = request.chosen_ranks(plan.target_ranks)
    budget = rank_budget(request, plan, len(ranks), pool)
    target = Target(parse_url(request.target), plan, request.overwrite)
    if target.is_committed():
        finished = Workspace(target.final, target.identity)
        # without a lease nothing is withdrawn: another run may be replacing it
        sound = _sound_ranks(finished, plan, request.verify, plan.target_ranks, budget.workers, mends=False)
        target.check_nothing_foreign()
        check_no_other_state(target.final, plan.target_ranks)
        problem = _index_problem(target)
        if problem is not None:
            current_progress().note(f"{problem}: it is written again")
        elif len(sound) == len(plan.target_ranks) and (manifest := target.read_committed()):  # still
            if problems := state_problems(target.final, manifest):
                current_progress().note(f"{problems[0]}: it is written again")
                with target.claimed(()):
                    target.restore_state()
            current_progress().note(f"{target.final}: was converted already by the same plan, and is as it should be")
            target.confirm(request.verify.of_files)
            if request.verify is VerifyLevel.CONTENT:
                current_progress().begin(ContentCheck(plan).source_bytes())
            yield Session(request, target, finished, ranks, frozenset(sound), budget, committed=True)
            return
        else:
            left = len(plan.target_ranks) - len(sound)
            current_progress().note(f"{target.final}: {left} of its files are to be mended")
    with target.claimed(ranks) as workspace:
        mends = target.is_mended_in_place and target.is_committed()
        looked_at = plan.target_ranks if mends else ranks
        sound = _sound_ranks(workspace, plan, request.verify, looked_at, budget.workers, mends=True)
        if mends and (len(sound) < len(plan.target_ranks) or _index_problem(target)):
            target.reopen()
        elif target.is_committed():  # by another run, until a moment ago; with pending ranks none could any more
            yield Session(request, target, workspace, ranks, frozenset(ranks), budget, committed=True)
            return
        done = sound & set(ranks)
        if done:
            current_progress().note(f"resuming: {len(done)} of {len(ranks)} {target_kind(plan)}s are done already")
        session = Session(request, target, workspace, ranks, frozenset(done), budget, committed=False)
        give_up_abandoned_uploads(workspace.directory, [plan.file_name(rank) for rank in session.pending])
        pending = [plan.totals[rank - plan.target_ranks.start] for rank in session.pending]
        sizes = [encrypted_bytes(totals.shard_bytes + _HEADER_BYTES, plan.inputs.encryption) for totals in pending]
        check_room(workspace.directory, sum(sizes))
        passes = 1 if request.verify.is_below(VerifyLevel.CHECKSUM) else 2
        to_compare = 0
        if request.verify is VerifyLevel.CONTENT and set(ranks) >= set(plan.target_ranks):
            to_compare = ContentCheck(plan).source_bytes()
        current_progress().begin(passes * sum(totals.shard_bytes for totals in pending) + to_compare)
        yield session


def _index_problem(target: Target) -> str | None:
    """What is wrong with the index that a target is to have, if it is to have one."""
    index = index_of(target.plan)
    return index_problem(target.final, index.summary) if index else None


def is_still_used(workspace: Workspace) -> bool:
    """Whether a workspace is still its plan's, and nothing else was begun in it."""
    return read_identity(workspace.state) == workspace.identity


def convert_rank(
    workspace: Workspace,
    plan: ConversionPlan,
    rank: int,
    budget: Budget,
    advance: Callable[[int], None],
    *,
    group: Sequence[int],
    prefetch: int,
) -> ShardRecord:
    """Writes one target rank's file and its record; `group` is one of the session's groups, `prefetch` as it has them.

    On its turn the first rank of a group has the files of the whole group written, side by side; on theirs the others
    find them done. If that fails, which may be one rank's fault, each is written, and tried again, by itself. Without a
    group the rank is made as a copy of the file of the rank with the same content, which must be there.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        StorageError: reading or writing failed.
    """
    if not group:
        record = _copy_rank(workspace, plan, rank, advance)
        workspace.write_record(record)
        return record
    if len(group) > 1:
        if (written := workspace.find_record(rank)) is not None:
            return written
        if rank == group[0]:
            try:
                return _write_ranks(workspace, plan, group, budget, prefetch, advance)
            except ReshardError as error:
                advance(0)  # raises if it failed because all is to stop
                current_progress().note(f"rank_{rank} and {len(group) - 1} more are written one by one: {error}")
        # several may be at it at once, each with its worker's share
        prefetch = 1
    return _write_ranks(workspace, plan, (rank,), budget, prefetch, advance)


def _write_ranks(
    workspace: Workspace,
    plan: ConversionPlan,
    ranks: Sequence[int],
    budget: Budget,
    prefetch: int,
    advance: Callable[[int], None],
) -> ShardRecord:
    records = transform_ranks(
        plan,
        ranks,
        workspace.directory,
        identity=workspace.identity,
        budget=budget,
        prefetch=prefetch,
        advance=advance,
    )
    for record in records:
        workspace.write_record(record)
    return records[0]


def check_rank(
    workspace: Workspace, plan: ConversionPlan, rank: int, level: VerifyLevel, advance: Callable[[int], None]
) -> RankVerification:
    """Checks a written rank against the plan and its record; a failed rank loses its record, so a rerun does it anew.

    If another run, which checks less closely, has published it meanwhile, that is left to the session's end.

    Raises:
        VerificationError: the file is not what it was to be.
        StorageError: a transient failure to read it.
    """
    if level is VerifyLevel.NONE:  # another run may have committed the target with it already
        return RankVerification(rank, level, 0, ())
    try:
        record = workspace.read_record(rank)
        expected = expected_entries(plan, plan.rank_plan(rank))
        starts = target_starts(plan, rank) if level is VerifyLevel.CONTENT else None
        found = verify_rank(workspace.directory, record, level, expected=expected, advance=advance, starts=starts)
        if found.problems:
            workspace.withdraw_record(record)
            raise VerificationError("\n".join(found.problems))
        _note_checked(workspace, record, found)
    except (StorageError, VerificationError):
        if not _was_moved(workspace):
            raise
        return RankVerification(rank, VerifyLevel.NONE, 0, ())
    return found


def _was_moved(workspace: Workspace) -> bool:
    """Whether another run has published a workspace; what is made on an object store stays where it is."""
    return workspace.directory.is_local and not is_still_used(workspace)


def _note_checked(workspace: Workspace, record: ShardRecord, found: RankVerification) -> None:
    """Records how closely a file was checked; its contents are not compared by that, only ready to be."""
    checked = record.model_copy(update={"verified": found.level.of_files, "parts": found.parts or record.parts})
    if checked != record and not _was_moved(workspace):  # or that would begin another workspace
        workspace.write_record(checked)


def give_up_abandoned_uploads(directory: Location, paths: Sequence[str]) -> None:
    """Gives up what runs that were killed had begun to send: object stores keep it, unseen, and charge for it."""
    if not takes_parts(directory):
        return
    try:
        count = abort_uploads(directory, [directory.child(path) for path in paths])
    except StorageError as error:
        # what is to be done can be done all the same
        current_progress().note(f"uploads that a killed run may have left are left there: {error}")
        return
    if count:
        current_progress().note(f"{count} unfinished uploads of an earlier run were given up")


def raise_failures(failures: Mapping[int, ReshardError], session: Session) -> None:
    """Raises one error for all ranks that failed, of the kind that most concerns the user; none if none failed.

    Raises:
        InputError, VerificationError, ConversionError: ranks failed.
    """
    if not failures:
        return
    plan, kind = session.plan, target_kind(session.plan)
    lines = [f"{_called(plan, rank)}: {error}" for rank, error in sorted(failures.items())]
    # a copy fails as what it is a copy of does
    causes = [error for rank, error in failures.items() if plan.copies.get(rank) not in failures]
    # values stay too large, however often they are cast
    stays = any(isinstance(error, CastError) for error in causes)
    advice = "" if stays else "; the same command does only these again"
    message = (
        f"{len(failures)} of {len(session.ranks)} target {kind}s failed{advice} "
        f"({session.workspace.directory} holds what is done)\n  " + "\n  ".join(lines)
    )
    if all(isinstance(error, InputError) for error in causes):
        raise InputError(message)
    if any(isinstance(error, VerificationError) for error in failures.values()):
        raise VerificationError(message)
    raise ConversionError(message) from next(
        (error for error in failures.values() if isinstance(error, StorageError)), None
    )


def _called(plan: ConversionPlan, rank: int) -> str:
    return f"rank_{rank}" if target_kind(plan) == RANK else plan.file_name(rank)


def _copy_rank(workspace: Workspace, plan: ConversionPlan, rank: int, advance: Callable[[int], None]) -> ShardRecord:
    started = time.monotonic()
    primary = workspace.read_record(plan.copies[rank])
    file = plan.file_name(rank)
    check_claim()
    copy_file(workspace.directory.child(primary.file), workspace.directory.child(file))
    advance(plan.totals[rank - plan.target_ranks.start].shard_bytes)
    return primary.model_copy(
        update={
            "rank": rank,
            "file": file,
            "copy_of": primary.rank,
            "read_bytes": 0,
            "seconds": round(time.monotonic() - started, 3),
            "verified": VerifyLevel.NONE,
            "parts": (),
        }
    )


def _sound_ranks(
    workspace: Workspace, plan: ConversionPlan, level: VerifyLevel, ranks: Sequence[int], workers: int, *, mends: bool
) -> set[int]:
    """Ranks whose recorded files are as they should be, at least in structure; others lose their records if it mends.

    Not before who looks holds the lease: what is found may be another run's by then.
    """
    recorded = sorted(workspace.recorded_ranks() & set(ranks))
    if recorded:
        current_progress().note(f"checking what was done before: {len(recorded)} of {len(ranks)} {target_kind(plan)}s")

    stop = threading.Event()
    advance = advancing(SilentProgress(), stop)

    def is_sound(rank: int) -> bool:
        return with_retries(lambda: _is_sound(workspace, plan, level, rank, advance, mends), current_progress().note)

    answers = in_threads(is_sound, recorded, workers, stop)
    return {rank for rank, sound in zip(recorded, answers, strict=True) if sound}


def _is_sound(
    workspace: Workspace,
    plan: ConversionPlan,
    level: VerifyLevel,
    rank: int,
    advance: Callable[[int], None],
    mends: bool,
) -> bool:
    try:
        record = workspace.find_record(rank)
    except TargetError:
        if mends:
            workspace.remove_record(rank)  # a damaged record counts as none
        return False
    if record is None:  # another run has committed the target in this moment
        return False
    if record.file != plan.file_name(rank):
        if mends:
            current_progress().note(f"{_called(plan, rank)} is done again: its record is of {record.file!r}")
            workspace.remove_record(rank)
        return False
    at_least = VerifyLevel.STRUCTURE if level is VerifyLevel.NONE else level
    expected = expected_entries(plan, plan.rank_plan(rank))
    starts = target_starts(plan, rank) if level is VerifyLevel.CONTENT else None
    found = verify_rank(workspace.directory, record, at_least, expected=expected, advance=advance, starts=starts)
    if found.problems:
        if mends and not _was_moved(workspace):
            current_progress().note(f"{_called(plan, rank)} is done again: {found.problems[0]}")
            workspace.withdraw_record(record)
        return False
    if not record.is_checked(level) or level is VerifyLevel.CONTENT:
        _note_checked(workspace, record, found)
    return True


@dataclass(frozen=True)
class _RankResult:
    """What is said of a finished rank, in the report and in the manifest."""

    report: RankReport
    summary: RankSummary


@dataclass(frozen=True)
class _FinishedRanks:
    """What is recorded of a target's ranks when a run ends.

    Attributes:
        committed: the target was complete before.
        where: where the records were read.
        results: what is said of each rank that has one.
        unchecked: ranks that are not recorded as checked as closely as the run wants it.
        content: what the checked ones add to fingerprints, if contents are to be compared.
    """

    committed: bool
    where: Workspace
    results: Mapping[int, _RankResult]
    unchecked: frozenset[int]
    content: ContentCheck | None


def _manifest(session: Session, results: Mapping[int, _RankResult], plan_data: bytes, *, compared: bool) -> Manifest:
    plan = session.plan
    manifest = Manifest(
        identity=session.workspace.identity,
        writer=f"reshard {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=plan.inputs.catalog.url,
        step=plan.inputs.catalog.step,
        source_world_size=plan.inputs.catalog.world_size,
        target_world_size=len(plan.target_ranks),
        format=str(plan.inputs.format),
        verified=VerifyLevel.CONTENT
        if compared
        else min((result.report.verified for result in results.values()), key=list(VerifyLevel).index),
        dropped=plan.match.dropped,
        excused=plan.match.missing,
        carried=plan.match.beyond_strategies,
        notes=(*overflow_notes(_overflowed(plan, results)), *plan_notes(plan)),
        ranks=tuple(results[rank].summary for rank in plan.target_ranks),
        layout=TargetLayout.UNIFIED if plan.inputs.unified else TargetLayout.RANKS,
        index=index.summary if (index := index_of(plan)) else None,
        changes=plan.inputs.changes,
        excluded=tuple(plan.match.excluded),
        plan_digest=xxhash.xxh3_128_hexdigest(plan_data),
    )
    return seal_manifest(manifest, needed_target_key()) if plan.inputs.encryption else manifest


def _overflowed(plan: ConversionPlan, results: Mapping[int, _RankResult]) -> dict[str, int]:
    return total_overflows(plan, [(rank, result.report.overflowed) for rank, result in results.items()])


def _crc_bytes(plan: ConversionPlan) -> int:
    """Bytes of the source's files that carry a CRC."""
    return sum(record.size_bytes for record in plan.inputs.catalog.records.values() if record.index.has_crc)


def _rank_result(record: ShardRecord, resumed: bool) -> _RankResult:
    digest = record_digest(record)
    outcome = Outcome.COPIED if record.copy_of is not None else Outcome.WRITTEN
    report = RankReport(
        rank=record.rank,
        outcome=Outcome.RESUMED if resumed else outcome,
        file=record.file,
        size_bytes=record.size_bytes,
        read_bytes=record.read_bytes,
        seconds=record.seconds,
        source_ranks=record.source_ranks,
        verified=record.verified,
        record_digest=digest,
        overflowed={overflow.name: overflow.count for overflow in record.overflows},
    )
    summary = RankSummary(rank=record.rank, file=record.file, size_bytes=record.size_bytes, record_digest=digest)
    return _RankResult(report, summary)

"""A conversion in progress: the target is claimed, some ranks are done, and the units of work for the others are known.

What an earlier run of the same plan recorded is checked again, and not repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from reshard.core.checkpoint.manifest import SourceFileRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.dispatch import Dispatch, Kind, Unit, batched
from reshard.core.conversion.rank_work import RankWork, find_sound_ranks
from reshard.core.conversion.report import target_kind
from reshard.core.custody.digests import is_signed
from reshard.core.custody.source_digests import bytes_read_whole, hash_source
from reshard.core.files.encryption.encrypted_output import encrypted_bytes
from reshard.core.plan.adapter import beside_adapter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.budget import (
    CIPHER_BLOCK_BYTES,
    MAX_PREFETCH_THREADS,
    Budget,
    WorkerPool,
    build_budget,
    open_files_limit,
    upload_part_bytes,
)
from reshard.core.runtime.context import having
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.storage.publishing import check_room
from reshard.core.storage.urls import parse_url
from reshard.core.target.documents import companion_summaries, document_problem
from reshard.core.target.target import Claim, Target
from reshard.core.target.touched_sources import EarlierWork
from reshard.core.target.upkeep import check_nothing_foreign, confirm, reopen, restore_state
from reshard.core.target.workspace import Workspace
from reshard.core.transfer.rank_groups import group_ranks
from reshard.core.transfer.source_crcs import SourceCrcs
from reshard.core.transfer.source_files import are_remote
from reshard.core.verification.state import check_no_other_state, state_problems

if TYPE_CHECKING:
    from reshard.core.verification.values import ContentCheck

SourceParts = dict[int, np.ndarray]
"""Source rank -> what `ContentCheck.source_parts` returned: its contributions to fingerprints."""

_MAX_READING_UNITS = 128
"""Beyond this number of source ranks, one unit reads several."""

_HEADER_BYTES = 4096
"""Added to each rank's shards for its headers when the target's room is checked."""

_REMOTE_WORKERS = 8
"""Default for remote storages, whatever the number of cores: workers wait for answers most of the time."""

_REMOTE_FILES_AT_ONCE = 4


def rank_budget(
    request: ConversionRequest, plan: ConversionPlan, rank_count: int, pool: WorkerPool | None = None
) -> Budget:
    """Return the budget of the workers for so many ranks, in this process or in each process of a pool."""
    remote_source = are_remote(plan)
    # a target that a mere plan does not name may be anywhere
    remote_target = not request.target or not parse_url(request.target).store.is_near
    cores = pool.threads if pool else request.worker_count
    default = max(_REMOTE_WORKERS, cores) if remote_source or remote_target else cores
    wanted = request.workers or default
    # the request's workers are shared by a pool's processes: none of them runs more than it would by itself
    workers = min(wanted, default if pool else wanted, rank_count * MAX_PREFETCH_THREADS)
    limit_bytes = request.memory_limit_bytes
    if plan.inputs.adapter:
        workers, limit_bytes = beside_adapter(plan.inputs.adapter, workers, limit_bytes)
    largest_bytes = max((totals.shard_bytes for totals in plan.totals), default=0)
    return build_budget(
        limit_bytes,
        open_files_limit(),
        workers,
        part_bytes=upload_part_bytes(limit_bytes, largest_bytes) if remote_target else 0,
        remote_source=remote_source,
        processes=pool.processes if pool else 1,
        cipher_bytes=CIPHER_BLOCK_BYTES if plan.inputs.encryption else 0,
        source_files=len(plan.inputs.catalog.records),
    )


def needed_room(plan: ConversionPlan, ranks: Sequence[int]) -> int:
    """Return the bytes that the files of some target ranks take, beside an overwritten checkpoint if there is one."""
    shard_bytes = (plan.totals[rank - plan.target_ranks.start].shard_bytes for rank in ranks)
    return sum(encrypted_bytes(count + _HEADER_BYTES, plan.inputs.encryption) for count in shard_bytes)


def planned_groups(plan: ConversionPlan, ranks: Sequence[int], budget: Budget) -> tuple[tuple[int, ...], ...]:
    """Divide target ranks into groups that are written side by side; mostly groups of one.

    From local files each worker has a group. From a remote storage the workers read ahead for one group together:
    the bytes that its ranks share come over the network once.
    """
    fewest = budget.processes * (1 if budget.remote_source else budget.workers)
    return group_ranks(
        plan, ranks, min_groups=fewest, max_ranks=budget.max_group_ranks, remote_source=budget.remote_source
    )


def prefetch_threads_of(groups: Sequence[Sequence[int]], budget: Budget) -> int:
    """Return the number of workers that read for one group: several if workers outnumber groups, or share reads."""
    if budget.remote_source and any(len(group) > 1 for group in groups):
        return budget.max_prefetch
    return max(1, min(budget.max_prefetch, budget.workers * budget.processes // max(1, len(groups))))


class Session(Record, dict=True):
    """A conversion in progress.

    `ranks` were asked for. Those that are `done` an earlier run wrote, and were checked again; none of the others has a
    record. `committed`: the target is complete, and nothing is left to do. `was_empty` as in `Claim`.
    """

    request: ConversionRequest
    target: Target
    workspace: Workspace
    ranks: tuple[int, ...]
    done: frozenset[int]
    budget: Budget
    committed: bool
    was_empty: bool = False

    @property
    def plan(self) -> ConversionPlan:
        """The target's plan."""
        return self.target.plan

    @cached_property
    def crcs(self) -> SourceCrcs:
        """CRCs of the source's tensors, which are checked as these are read."""
        return SourceCrcs(self.plan)

    @cached_property
    def content(self) -> "ContentCheck":
        """What source ranks contribute to the fingerprints of target parameters."""
        from reshard.core.verification.values import ContentCheck

        return ContentCheck(self.plan)

    @cached_property
    def source_files(self) -> tuple[SourceFileRecord, ...]:
        """The source's checkpoint files with their SHA-256; each is read whole for it, once."""
        return hash_source(self.plan, self.readers)

    @property
    def source_files_bytes(self) -> int:
        """Bytes of source files that were read whole: for `source_files`, if needed, and for the source's signature."""
        return bytes_read_whole(vars(self).get("source_files", ()))

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """The ranks left to do."""
        return () if self.committed else tuple(rank for rank in self.ranks if rank not in self.done)

    @cached_property
    def copies(self) -> tuple[int, ...]:
        """The pending ranks that are copied, because their primary is done or pending."""
        available = set(self.ranks) | self.done
        return tuple(rank for rank in self.pending if self.plan.copies.get(rank) in available)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The other pending ranks, in groups that are written side by side because they share reads."""
        written = sorted(set(self.pending) - set(self.copies))
        return planned_groups(self.plan, written, self.budget)

    @cached_property
    def prefetch(self) -> int:
        """Number of workers that read for one group."""
        return prefetch_threads_of(self.groups, self.budget)

    @property
    def is_remote(self) -> bool:
        """True if source or target is asked by requests."""
        return self.budget.remote_source or not self.workspace.directory.store.is_near

    @property
    def groups_at_once(self) -> int:
        """Number of groups that a process writes at once."""
        return max(1, self.budget.workers // self.prefetch)

    @property
    def readers(self) -> int:
        """Number of source files that a process reads at once to compare them; a remote file has many reads at once."""
        return min(self.budget.workers, _REMOTE_FILES_AT_ONCE) if self.budget.remote_source else self.budget.workers

    def dispatch(self, max_batches: int = 0) -> Dispatch:
        """Return the units of work on the pending ranks, combined into batches if `max_batches` is given."""
        written = tuple(Unit(Kind.WRITE, group) for group in self.groups)
        copied = tuple(Unit(Kind.COPY, (rank,)) for rank in self.copies)
        if max_batches:
            written, copied = batched(written, max_batches), batched(copied, max_batches)
        return Dispatch(written, copied, self.plan.copies, separate_checks=True)

    def source_dispatch(self) -> Dispatch:
        """Return the units of work that read source ranks to compare their values."""
        ranks = [Unit(Kind.READ, (rank,)) for rank in self.content.source_ranks]
        return Dispatch([Unit(Kind.READ, batch.ranks) for batch in batched(ranks, _MAX_READING_UNITS)])

    def work(self, advance: Callable[[int], None], workspace: Workspace | None = None) -> RankWork:
        """Return the work on ranks in this process; `workspace` replaces that of the session."""
        return RankWork(
            workspace=workspace or self.workspace,
            plan=self.plan,
            budget=self.budget,
            prefetch=self.prefetch,
            level=self.request.verify,
            advance=advance,
            crcs=self.crcs,
            hashes=self.request.hashes_target,
            signs=bool(self.request.sign),
        )

    def compares(self) -> bool:
        """True if contents are compared: the request asks for it, and all of the target's ranks are done."""
        if self.request.verify is not VerifyLevel.CONTENT:
            return False
        return self.committed or self.workspace.recorded_ranks() >= set(self.plan.target_ranks)


_current: ContextVar[Session | None] = ContextVar("reshard_session", default=None)


def current_session() -> Session | None:
    """The session that is open in this context, hence in this process; None without one."""
    return _current.get()


@contextmanager
def open_session(request: ConversionRequest, plan: ConversionPlan, pool: WorkerPool | None = None) -> Iterator[Session]:
    """Claim the target for a plan and find the ranks left to do, for the processes of a pool or for this one.

    Raises:
        TargetError: the target is occupied or in use.
        StorageError: the target cannot be read or written, or has no room.
    """
    ranks = request.chosen_ranks(plan.target_ranks)
    budget = rank_budget(request, plan, len(ranks), pool)
    target = Target.of(request.target, plan, overwrite=request.overwrite, signs=bool(request.sign))
    with _opened(request, target, ranks, budget) as session, having(_current, session):
        yield session


@contextmanager
def _opened(request: ConversionRequest, target: Target, ranks: tuple[int, ...], budget: Budget) -> Iterator[Session]:
    if target.is_committed():
        if target.signs:
            from reshard.core.custody.finished import check_signature_may_go  # with cryptography

            check_signature_may_go(target)
        finished = target.finished
        if _is_as_committed(target, finished, request, budget):
            done = frozenset(target.plan.target_ranks)
            yield Session(request, target, finished, ranks, done, budget, committed=True)
            return
    with target.claimed(ranks) as claim:
        yield _claimed(request, target, claim, ranks, budget)


def _claimed(
    request: ConversionRequest, target: Target, claim: Claim, ranks: tuple[int, ...], budget: Budget
) -> Session:
    """Find what earlier runs have done in a claimed target, and prepare it for the rest."""
    plan, workspace = target.plan, claim.workspace
    if claim.earlier:
        _take_over(target, workspace, claim.earlier, budget)
    sound: set[int] = set()
    if not claim.is_new:
        mends = target.is_mended_in_place and target.is_committed()
        if mends:  # before a record is withdrawn
            target.signature.lift_to_repair()
        examined = plan.target_ranks if mends else ranks
        sound = find_sound_ranks(
            workspace, plan, request.verify, examined, budget, mends=True, hashes=request.hashes_target
        )
        if mends and (len(sound) < len(plan.target_ranks) or _problem_beside(target)):
            reopen(target)
        elif target.is_committed():
            # by another run, a moment ago; impossible while ranks are pending
            return Session(request, target, workspace, ranks, frozenset(ranks), budget, committed=True)
    done = frozenset(sound.intersection(ranks))
    session = Session(request, target, workspace, ranks, done, budget, committed=False, was_empty=claim.was_empty)
    _prepare(session)
    return session


def _take_over(target: Target, workspace: Workspace, earlier: EarlierWork, budget: Budget) -> None:
    """Keep what was finished before source files were touched and is the same as in the source."""
    if earlier.file is not None:
        from reshard.core.conversion.touched_sources import TouchedRanks

        touched = TouchedRanks.of(target, workspace, earlier)
        if touched.ranks:
            groups = planned_groups(target.plan, sorted(touched.copies), budget)
            touched.compare(groups, budget, prefetch_threads_of(groups, budget), earlier.file)
    target.take_over()


def _is_as_committed(target: Target, finished: Workspace, request: ConversionRequest, budget: Budget) -> bool:
    """True if the finished target is as its plan says; its state is restored if only that was damaged."""
    plan, level, note = target.plan, request.verify, current_progress().note
    hashes = request.hashes_target and (target.signs or not is_signed(target.final))
    # without a lease no record is withdrawn: another run may be replacing the target
    sound = find_sound_ranks(finished, plan, level, plan.target_ranks, budget, mends=False, hashes=hashes)
    check_nothing_foreign(target)
    check_no_other_state(target.final, plan.target_ranks)
    if problem := _problem_beside(target):
        note(f"{problem}: writing it again")
        return False
    # it may have been replaced meanwhile
    if len(sound) < len(plan.target_ranks) or (manifest := target.read_committed()) is None:
        note(f"{target.final}: {len(plan.target_ranks) - len(sound)} of its files are missing or damaged; repairing")
        return False
    if problems := state_problems(target.final, manifest):
        note(f"{problems[0]}: writing it again")
        with target.claimed(()):
            restore_state(target)
    note(f"{target.final}: already converted and intact; nothing to do")
    confirm(target, level.of_files)
    return True


def _problem_beside(target: Target) -> str | None:
    """Return the first problem with the target's documents and companions; None if there is none."""
    documents = (document.summary for document in target.documents.each)
    problems = (document_problem(target.final, each) for each in (*documents, *companion_summaries(target.plan)))
    return next((problem for problem in problems if problem is not None), None)


def _prepare(session: Session) -> None:
    """Abort abandoned uploads, check the target's room, and begin the progress."""
    plan, level, directory = session.plan, session.request.verify, session.workspace.directory
    if session.done:
        count = f"{len(session.done)} of {len(session.ranks)} {target_kind(plan)}s"
        current_progress().note(f"resuming: {count} are done already")
    if not session.was_empty:  # else no earlier run was here
        session.workspace.abort_abandoned_uploads([plan.file_name(rank) for rank in session.pending])
    check_room(directory, needed_room(plan, session.pending))

    def shard_bytes(ranks: Sequence[int]) -> int:
        return sum(plan.totals[rank - plan.target_ranks.start].shard_bytes for rank in ranks)

    # ranks are read back while others are written: it is one phase, in which every byte counts each time
    reads_back = not level.is_below(VerifyLevel.CHECKSUM)
    phase = "converting, checking" if reads_back else "converting"
    total_bytes = (2 if reads_back else 1) * shard_bytes(session.pending)
    if plan.readings > 1:
        total_bytes += shard_bytes(session.pending) - shard_bytes(session.copies)
    current_progress().begin(phase, total_bytes)

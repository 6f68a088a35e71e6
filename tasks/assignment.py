"""The assignment of tasks on ranks, and the context that it becomes in the process that works on it.

An assignment is small, and means the same everywhere: no plans, no secrets. The run's own process has everything else.
Any other process, a Dask worker's, opens storages and keys by their names, loads the plan, watches the run's lease, and
returns its counts to the run.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from uuid import uuid4

import numpy as np
from msgspec import field
from msgspec.structs import replace

from reshard import __version__
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.session import Session, current_session
from reshard.core.errors import InputError, StoppedError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import load_plan
from reshard.core.request.resources import key_names, storage_pairs
from reshard.core.runtime.bandwidth import Bandwidth, bandwidth_limited, parse_bandwidth
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.keys import Key, KeyNames, Keys, keys_in_force, resolve_keys, source_key, target_key
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.runtime.progress import current_progress, reporting_to
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import RetryCount, counting_retries, stoppable
from reshard.core.runtime.sealing import keyed_digest
from reshard.core.storage.leases.lease import LeaseName, current_lease
from reshard.core.storage.leases.lease_monitor import watched_lease
from reshard.core.storage.listing import exists
from reshard.core.storage.named_options import Pairs, Storages, resolve_storages, storages_in_force
from reshard.core.storage.urls import parse_url
from reshard.core.target.workspace import Workspace
from reshard.core.transfer.read_crcs import CrcParts, ReportedCrcs
from reshard.core.verification.values import ContentCheck
from reshard.tasks.progress import RunProgress
from reshard.tasks.storages import RESOLVERS

_ROOM_SECONDS = 1.0
_once = threading.Lock()
"""Without it, threads that begin together would each load the plan."""


class Assignment(Record):
    """The input of all tasks on a run's ranks.

    Attributes:
        plan_url: URL of the plan's file.
        identity: the plan's identity.
        lease: the lease that shows that the run is alive.
        storages: names of the storage options that open URLs.
        keys: names of the keys of source and target.
        key_digests: digests to compare keys with the run's; empty without a key.
        budget: memory and workers of each process.
        prefetch: number of workers that read for one group.
        level: how closely written ranks are checked.
        memory_limit_bytes: the request's memory limit.
        bandwidth: limits of each process.
        hashes: True if the SHA-256 of files is taken as they are written.
        signs: True if the run is to sign the target, which workers do not.
        checks_crcs: True if the CRCs of what is read of the source are reported to the run.
        run: a name that tells runs apart, those without a lease as well.
        version: version of reshard.
    """

    plan_url: str
    identity: str
    lease: LeaseName | None
    storages: Pairs
    keys: KeyNames
    key_digests: tuple[str, str]
    budget: Budget
    prefetch: int
    level: VerifyLevel
    memory_limit_bytes: int
    bandwidth: Bandwidth
    hashes: bool
    signs: bool
    checks_crcs: bool
    run: str
    version: str = __version__

    @classmethod
    def of(cls, session: Session) -> "Assignment":
        """Return the assignment of a session in this process."""
        lease = current_lease()  # none if there is nothing to write
        return cls(
            plan_url=session.workspace.plan_url,
            identity=session.workspace.identity,
            lease=lease,
            storages=storage_pairs(session.request),
            keys=key_names(session.request),
            key_digests=(_digest_of(source_key()), _digest_of(target_key())),
            budget=session.budget,
            prefetch=session.prefetch,
            level=session.request.verify,
            memory_limit_bytes=session.request.memory_limit_bytes,
            bandwidth=parse_bandwidth(session.request.bandwidth_limit).shared_by(session.budget.processes),
            hashes=session.request.hashes_target,
            signs=bool(session.request.sign),
            checks_crcs=bool(session.crcs),
            run=lease.run if lease else uuid4().hex,
        )

    @property
    def groups_at_once(self) -> int:
        """Number of groups that a process has memory for."""
        return max(1, self.budget.workers // self.prefetch)


class TaskResult(Record):
    """Work done in another process, to be counted by the run; empty if it was counted already.

    Attributes:
        advanced_bytes: number of bytes done.
        retried_requests: number of requests that were repeated.
        crcs: CRCs of what was read of the source.
        parts: contributions to fingerprints by source rank, wherever they were computed.
    """

    advanced_bytes: int = 0
    retried_requests: int = 0
    crcs: CrcParts = field(default_factory=dict)
    parts: Mapping[int, np.ndarray] = field(default_factory=dict)


class WorkerContext(Record):
    """An assignment in a process that works on it.

    Attributes:
        work: the work on ranks.
        content_of: returns what source ranks contribute to fingerprints.
        uncounted: returns what the run has not counted, because it was done in another process.
    """

    work: RankWork
    content_of: Callable[[], ContentCheck]
    uncounted: Callable[[], TaskResult]

    def result(self, parts: Mapping[int, np.ndarray] | None = None) -> TaskResult:
        """Return the result of a task that has ended."""
        return replace(self.uncounted(), parts=parts or {})


@contextmanager
def worker_context(assignment: Assignment, *, writes: bool = False) -> Iterator[WorkerContext]:
    """Provide what work on ranks needs in this process; with `writes`, wait for memory from the budget."""
    session = current_session()
    if session is not None and session.workspace.identity == assignment.identity:  # the run's own process
        yield WorkerContext(session.work(current_progress().advance), lambda: session.content, TaskResult)
        return
    with _other_process(assignment, writes) as context:
        yield context


@contextmanager
def _other_process(assignment: Assignment, writes: bool) -> Iterator[WorkerContext]:
    _check_version(assignment)
    tally, crcs = _Tally(), ReportedCrcs()
    with ExitStack() as stack:
        stop = stack.enter_context(stoppable())
        retries: RetryCount = stack.enter_context(counting_retries())
        storages, keys = _resources(assignment)
        stack.enter_context(storages_in_force(storages))
        stack.enter_context(keys_in_force(keys))
        stack.enter_context(metadata_limited(assignment.memory_limit_bytes))
        stack.enter_context(bandwidth_limited(assignment.bandwidth))
        stack.enter_context(reporting_to(RunProgress(tally, stop)))
        _check_seen(assignment)
        workspace = Workspace.of_plan(assignment.plan_url, assignment.identity)
        if assignment.lease is not None:
            stack.enter_context(watched_lease(assignment.lease, stop, workspace.is_current))
        if writes:
            stack.enter_context(_room(assignment, stop))
        plan = _plan_of(assignment)
        work = RankWork(
            workspace=workspace,
            plan=plan,
            budget=assignment.budget,
            prefetch=assignment.prefetch,
            level=assignment.level,
            advance=current_progress().advance,
            crcs=crcs if assignment.checks_crcs else None,
            hashes=assignment.hashes,
            signs=assignment.signs,
        )
        yield WorkerContext(
            work, lambda: ContentCheck(plan), lambda: TaskResult(tally.advanced_bytes, retries.value, crcs.parts())
        )


def _plan_of(assignment: Assignment) -> ConversionPlan:
    """Return the plan, which each process loads once."""
    with _once:
        return load_plan(assignment.plan_url, assignment.identity)


class _Tally:
    """Counts the bytes done for the task's result; notes go to the task's log."""

    def __init__(self) -> None:
        self.advanced_bytes = 0
        self._lock = threading.Lock()

    def note(self, message: str) -> None:
        pass

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        pass

    def advance(self, count_bytes: int) -> None:
        with self._lock:
            self.advanced_bytes += count_bytes


def _resources(assignment: Assignment) -> tuple[Storages, Keys]:
    with _once:
        storages, keys = _resolved(assignment.storages, assignment.keys, assignment.run)
    _check_keys(assignment, keys)
    return storages, keys


@lru_cache(maxsize=4)
def _resolved(pairs: Pairs, names: KeyNames, run: str) -> tuple[Storages, Keys]:
    """Resolve storages and keys once for each run: blocks are read from Prefect's server."""
    return resolve_storages(pairs, RESOLVERS), resolve_keys(names, RESOLVERS)


@contextmanager
def _room(assignment: Assignment, stop: threading.Event) -> Iterator[None]:
    """Wait until the process has memory for another group: it may have more threads than the budget has shares."""
    with _once:
        room = _rooms(assignment.run, assignment.groups_at_once)
    while not room.acquire(timeout=_ROOM_SECONDS):
        if stop.is_set():
            raise StoppedError("stopped")
    try:
        yield
    finally:
        room.release()


@lru_cache(maxsize=16)
def _rooms(run: str, size: int) -> threading.Semaphore:
    return threading.Semaphore(size)


def _check_keys(assignment: Assignment, keys: Keys) -> None:
    """Compare the keys with the run's: a name may resolve to another key on each machine.

    With AES-GCM only the tags, which range reads do not check, would reveal a wrong key.
    """
    for key, digest in zip((keys.source, keys.target), assignment.key_digests, strict=True):
        if key is not None and _digest_of(key) != digest:
            raise InputError(
                f"{key.name}: is another key on {socket.gethostname()}, where a Dask worker runs, than where the run "
                "began: give it the same there"
            )


def _digest_of(key: Key | None) -> str:
    return "" if key is None else keyed_digest(b"the run's", key)


def _check_version(assignment: Assignment) -> None:
    if assignment.version != __version__:
        raise InputError(
            f"reshard {__version__} is installed on {socket.gethostname()}, where a Dask worker runs, but the run's is "
            f"{assignment.version}: install the same"
        )


def _check_seen(assignment: Assignment) -> None:
    if not exists(parse_url(assignment.plan_url)):
        raise InputError(
            f"{assignment.plan_url}: is not seen on {socket.gethostname()}, where a Dask worker runs. Unless the run "
            "has just ended: source and target have to be on a file system that all machines of the cluster share, "
            "under the same path, or on an object store"
        )

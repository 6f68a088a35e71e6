"""Runs the ranks of a conversion as tasks behind a task runner, and collects what failed.

A rank, or a group of ranks that share reads, is read back as soon as it is written, while it may still be in memory. So
no more are begun than there are workers; the others wait here, not as thousands of pending task runs. Where there are
many ranks a task does a batch of them: a server records some 50 task runs a second.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from prefect import Task

from reshard.core.conversion.batches import RanksFailedError, batch_groups
from reshard.core.conversion.session import Session
from reshard.core.errors import ConversionError, ReshardError
from reshard.core.runtime.retry import count_retry
from reshard.core.verification.values import ContentCheck
from reshard.flows.runner import Future, Outcome, Runner, RunnerLostError
from reshard.flows.runners import PoolRunner, threads
from reshard.flows.slots import Answer, Slot, Slots, not_had
from reshard.tasks.assignment import Assignment, Deeds
from reshard.tasks.content import fingerprint_source
from reshard.tasks.conversion import transform_rank, transform_ranks
from reshard.tasks.progress import RunProgress
from reshard.tasks.verification import verify_rank

Failures = dict[int, ReshardError]

MOST_SINGLE_RANKS = 128
"""More of them are done in batches."""
MOST_BATCHES = 128
_CHECK_SECONDS = 1.0


def run_ranks(
    session: Session, progress: RunProgress, pool: PoolRunner | None = None, slots: Slots | None = None
) -> Failures:
    """Writes and verifies all ranks that are left to do; returns what failed, by rank. One's failure stops no other.

    By a pool, or else by threads; within slots of a concurrency limit, if there are any.

    Raises:
        ConversionError: no slot of the concurrency limit can be had; the others are stopped.
        Exception: a task met a bug; the others are stopped.
    """
    failures: Failures = {}
    with ExitStack() as held:
        runner = pool or held.enter_context(threads(session.budget.workers))
        try:
            failures |= _Dispatch(session, runner, slots, progress).run(_written_units(session))
            orphans = _orphans(session, failures)
            copies = [rank for rank in session.copies if rank not in orphans]
            failures |= orphans
            failures |= _Dispatch(session, runner, slots, progress).run(_copied_units(session, copies))
        except BaseException:
            progress.stop()  # leaving the runner waits for its threads
            raise
    return failures


def _orphans(session: Session, failures: Failures) -> Failures:
    reasons = {rank: session.copy_of_failed(rank, failures) for rank in session.copies}
    return {rank: reason for rank, reason in reasons.items() if reason is not None}


def read_sources(
    session: Session, progress: RunProgress, pool: PoolRunner | None = None, slots: Slots | None = None
) -> dict[int, np.ndarray] | None:
    """What all source ranks add to fingerprints, if contents are to be compared now; else None. As `run_ranks` runs.

    Raises:
        ReshardError: a source file changed, or cannot be read.
        Exception: a task met a bug; the others are stopped.
    """
    if not session.compares():
        return None
    progress.note("comparing the target's values with the source's: every copy of these is read")
    alone = [(rank,) for rank in ContentCheck(session.plan).source_ranks]
    units = [
        _Unit(groups, copies=True, batch=True, task=fingerprint_source) for groups in batch_groups(alone, MOST_BATCHES)
    ]
    with ExitStack() as held:
        runner = pool or held.enter_context(threads(session.readers))
        dispatch = _Dispatch(session, runner, slots, progress)
        try:
            failures = dispatch.run(units)
        except BaseException:
            progress.stop()
            raise
    if failures:
        raise failures[min(failures)]
    return dispatch.parts


@dataclass
class _Unit:
    """What is begun together, and has a slot together: a group of ranks, a copy, a batch of either, or source ranks.

    Attributes:
        groups: the ranks; what is no batch has one group.
        copies: whether nothing is written from the source: they are made as copies, or only read.
        batch: whether one task does all of it.
        task: what it begins with.
        left: the ranks that are not done with.
    """

    groups: tuple[tuple[int, ...], ...]
    copies: bool
    batch: bool
    task: Task[..., Any] = transform_rank
    left: set[int] = field(init=False)
    slot: Slot | None = None

    def __post_init__(self) -> None:
        self.left = {rank for group in self.groups for rank in group}

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks that its first one has written, if it is no batch; none of a copy."""
        return () if self.copies else self.groups[0]


@dataclass(frozen=True)
class _Turn:
    """A task that is to be run: the unit's batch, or writing, or checking, one rank of it."""

    unit: _Unit
    rank: int
    task: Task[..., Any] = transform_rank

    @property
    def ranks(self) -> set[int]:
        """Whose failure it is if it fails."""
        return set(self.unit.left) if self.unit.batch else {self.rank}

    @property
    def begins(self) -> bool:
        """Whether its unit begins with it."""
        return self.rank == self.unit.groups[0][0] and self.task is not verify_rank

    @property
    def writes(self) -> bool:
        """Whether it has files written from the source."""
        return self.begins and not self.unit.copies


def _written_units(session: Session) -> list[_Unit]:
    if len(session.pending) <= MOST_SINGLE_RANKS:
        return [_Unit((group,), copies=False, batch=False) for group in session.groups]
    batches = batch_groups(session.groups, MOST_BATCHES)
    return [_Unit(groups, copies=False, batch=True, task=transform_ranks) for groups in batches]


def _copied_units(session: Session, ranks: Sequence[int]) -> list[_Unit]:
    alone = [(rank,) for rank in ranks]
    if len(session.pending) <= MOST_SINGLE_RANKS:
        return [_Unit((rank,), copies=True, batch=False) for rank in alone]
    batches = batch_groups(alone, MOST_BATCHES)
    return [_Unit(groups, copies=True, batch=True, task=transform_ranks) for groups in batches]


class _Dispatch:
    """Has units done: begins as many as there is room for, and goes on with each when something of it has ended."""

    def __init__(self, session: Session, runner: Runner, slots: Slots | None, progress: RunProgress) -> None:
        self._session = session
        self._assignment = Assignment.of(session)
        self._runner = runner
        self._slots = slots
        self._progress = progress
        self._units: tuple[_Unit, ...] = ()
        self._waiting: deque[_Turn] = deque()
        self._under_way: dict[Future, _Turn] = {}
        self._events: SimpleQueue[Future | Answer] = SimpleQueue()
        self._asked = False
        self._failures: Failures = {}
        self.parts: dict[int, np.ndarray] = {}
        """What source ranks were found to add to fingerprints."""

    def run(self, units: Iterable[_Unit]) -> Failures:
        """Does all of them; returns what failed, by rank."""
        self._units = tuple(units)
        self._waiting.extend(_Turn(unit, unit.groups[0][0], unit.task) for unit in self._units)
        try:
            self._start_waiting()
            while self._under_way or self._waiting:
                self._runner.check()
                try:
                    event = self._events.get(timeout=_CHECK_SECONDS)
                except Empty:
                    continue
                self._take(event)
                self._start_waiting()
        except RunnerLostError as error:
            self._lose_all(error)
        return self._failures

    def _take(self, event: Future | Answer) -> None:
        if isinstance(event, Slot):
            self._asked = False
            # meanwhile those of a unit that has its own may have been put in front
            next(turn.unit for turn in self._waiting if turn.unit.slot is None).slot = event
        elif isinstance(event, Exception):
            raise not_had(self._session.request.concurrency_limit, event)
        else:
            self._go_on(event)

    def _go_on(self, future: Future) -> None:
        outcome = self._runner.outcome(future, self._events.put)
        if outcome is None:
            return
        turn = self._under_way.pop(future)
        failures = failures_of(outcome, turn.ranks)
        self._failures |= failures
        if not failures:
            self._tell(outcome)
        if turn.unit.batch:
            turn.unit.left.clear()
        elif turn.task is verify_rank or failures:
            turn.unit.left.discard(turn.rank)
        else:
            self._start(_Turn(turn.unit, turn.rank, verify_rank))
        if turn.begins and not turn.unit.batch:
            # the files of a group are there now: the others' turns are short, and verify what may still be in memory
            self._waiting.extendleft(_Turn(turn.unit, rank) for rank in reversed(turn.unit.group[1:]))
        if not turn.unit.left and turn.unit.slot:
            turn.unit.slot.give_back()

    def _start_waiting(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            turn = self._waiting[0]
            if self._slots and turn.unit.slot is None:
                if not self._asked:
                    self._asked = True
                    self._slots.ask(self._events.put)
                return
            self._waiting.popleft()
            self._start(turn)

    def _has_room(self, turn: _Turn) -> bool:
        asked = self._session.request.workers
        room = self._runner.capacity(self._session.budget.workers)
        if len(self._under_way) >= max(1, min(room, asked or room)):
            return False
        if not turn.writes:
            return True
        groups = self._runner.capacity(self._session.groups_at_once)
        writing = sum(other.writes for other in self._under_way.values())
        return writing < max(1, min(groups, asked // self._session.prefetch if asked else groups))

    def _start(self, turn: _Turn) -> None:
        parameters: dict[str, Any] = {"assignment": self._assignment}
        if turn.task is transform_ranks:
            parameters |= {"groups": turn.unit.groups, "copies": turn.unit.copies}
        elif turn.task is fingerprint_source:
            parameters |= {"ranks": [rank for group in turn.unit.groups for rank in group]}
        else:
            parameters |= {"rank": turn.rank}
        if turn.task is transform_rank:
            parameters |= {"group": turn.unit.group}
        self._under_way[self._runner.submit(turn.task, parameters, self._events.put)] = turn

    def _tell(self, outcome: Outcome) -> None:
        """What was done in another process counts as done by the run."""
        deeds: Deeds = _result_of(outcome)
        self._progress.advance(deeds.advanced_bytes)
        self.parts |= deeds.parts
        for _ in range(deeds.retried_requests):
            count_retry("")

    def _lose_all(self, error: RunnerLostError) -> None:
        # also those of the turn that could not be begun, which neither waits nor is under way
        for unit in self._units:
            self._failures |= dict.fromkeys(unit.left, ConversionError(f"its task was lost: {error}"))
        self._under_way.clear()
        self._waiting.clear()


def failures_of(outcome: Outcome, ranks: Iterable[int]) -> Failures:
    """What kept a finished task on ranks from completing, by rank; none if it completed, and only then.

    Raises:
        Exception: the task met a bug.
    """
    error = _failure_of(outcome)
    if isinstance(error, RanksFailedError):
        return dict(error.failures)
    return {} if error is None else dict.fromkeys(ranks, error)


def _failure_of(outcome: Outcome) -> ReshardError | None:
    if isinstance(outcome, BaseException):
        return ConversionError(f"its task was lost: {type(outcome).__name__}: {outcome}")
    if outcome.is_completed():
        return None
    error = _result_of(outcome)
    if isinstance(error, ReshardError):
        return error
    if outcome.is_failed() and isinstance(error, Exception):
        raise error
    told = f", {outcome.message}" if outcome.message else ""
    return ConversionError(f"its task was lost: it ended as {outcome.name}{told}")


def _result_of(outcome: Any) -> Any:
    return getattr(outcome.data, "result", outcome.data)

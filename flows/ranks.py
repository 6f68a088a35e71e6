"""Runs units of work on ranks as tasks behind a task runner, and collects what failed.

No more units are begun than there are workers; the others wait here, not as thousands of pending task runs.
"""

from queue import Empty, SimpleQueue
from typing import Any

from prefect import Task

from reshard.core.conversion.batches import RanksFailedError
from reshard.core.conversion.dispatch import Dispatch, Failures, Kind, Unit
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.errors import ConversionError, ReshardError
from reshard.core.runtime.idle_workers import IdleWorkers, lending
from reshard.core.runtime.retry import count_retry
from reshard.flows.runner import Future, Outcome, Runner, RunnerLostError
from reshard.flows.slots import Answer, Slot, Slots, slot_error
from reshard.tasks.assignment import Assignment, TaskResult
from reshard.tasks.content import fingerprint_source
from reshard.tasks.conversion import transform_rank, transform_ranks
from reshard.tasks.progress import RunProgress
from reshard.tasks.verification import verify_rank

_CHECK_SECONDS = 1.0
_TASKS: dict[Kind, Task[..., Any]] = {
    Kind.WRITE: transform_rank,
    Kind.COMPLETE: transform_rank,
    Kind.COPY: transform_rank,
    Kind.CHECK: verify_rank,
    Kind.BATCH: transform_ranks,
    Kind.READ: fingerprint_source,
}


class RankTasks:
    """Runs the units of a dispatch as tasks: begins as many as there is room for, and goes on whenever one ends."""

    def __init__(
        self, dispatch: Dispatch, session: Session, runner: Runner, slots: Slots | None, progress: RunProgress
    ) -> None:
        self._dispatch = dispatch
        self._session = session
        self._assignment = Assignment.of(session)
        self._runner = runner
        self._slots = slots
        self._slot_of: dict[Unit, Slot] = {}
        self._progress = progress
        self._under_way: dict[Future, Unit] = {}
        self._events: SimpleQueue[Future | Answer] = SimpleQueue()
        self._asked = False
        self._parts: SourceParts = {}
        self._idle = IdleWorkers()

    def run(self) -> SourceParts:
        """Do all units; return the contributions of source ranks to fingerprints."""
        try:
            with lending(self._idle):
                self._run()
        except RunnerLostError as error:
            self._dispatch.fail_rest(f"its task was lost: {error}")
        return self._parts

    def _run(self) -> None:
        self._begin_ready()
        while self._dispatch:
            self._runner.check()
            try:
                event = self._events.get(timeout=_CHECK_SECONDS)
            except Empty:
                continue
            self._take(event)
            self._begin_ready()

    def _take(self, event: Future | Answer) -> None:
        if isinstance(event, Slot):
            self._asked = False
            self._use(event)
        elif isinstance(event, Exception):
            raise slot_error(self._session.request.concurrency_limit, event)
        else:
            self._end(event)

    def _end(self, future: Future) -> None:
        outcome = self._runner.outcome(future, self._events.put)
        if outcome is None:
            return
        unit = self._under_way.pop(future)
        failures = failures_of(outcome, unit)
        if not failures:
            self._count(_result_of(outcome))
        self._dispatch.end(unit, failures)
        origin = self._dispatch.origin(unit)
        if self._dispatch.is_over(origin) and (slot := self._slot_of.pop(origin, None)):
            self._hand_on(slot)

    def _hand_on(self, slot: Slot) -> None:
        assert self._slots
        if slot.may_be_handed_on:
            self._use(slot)
        else:
            self._slots.give_back(slot)

    def _use(self, slot: Slot) -> None:
        """Give a slot to the next waiting unit that has none, or back if there is none."""
        assert self._slots
        # units whose origin has a slot may have been put in front
        origins = map(self._dispatch.origin, self._dispatch.waiting)
        origin = next((origin for origin in origins if origin not in self._slot_of), None)
        if origin is None:
            self._slots.give_back(slot)
        else:
            self._slot_of[origin] = slot

    def _begin_ready(self) -> None:
        """Begin the units that there is room for; then threads of this process that are idle help the others."""
        session = self._session
        self._idle.offer(0)
        self._begin_units()
        self._idle.offer(self._dispatch.idle(session.groups_at_once * session.prefetch, session.prefetch))

    def _begin_units(self) -> None:
        while unit := self._next():
            if self._slots and self._dispatch.origin(unit) not in self._slot_of:
                if not self._asked:
                    self._asked = True
                    self._slots.ask(self._events.put)
                return
            self._dispatch.begin()
            parameters = {"assignment": self._assignment, "unit": unit}
            self._under_way[self._runner.submit(_TASKS[unit.kind], parameters, self._events.put)] = unit

    def _next(self) -> Unit | None:
        limit = self._session.request.workers
        room = self._runner.capacity(self._session.budget.workers)
        groups = self._runner.capacity(self._session.groups_at_once)
        return self._dispatch.next(
            max(1, min(room, limit or room) - self._idle.lent),
            max(1, min(groups, limit // self._session.prefetch if limit else groups)),
        )

    def _count(self, result: TaskResult) -> None:
        """Count work done in another process as done by the run."""
        self._progress.advance(result.advanced_bytes)
        self._session.crcs.add_parts(result.crcs)
        self._parts |= result.parts
        for _ in range(result.retried_requests):
            count_retry("")


def failures_of(outcome: Outcome, unit: Unit) -> Failures:
    """Return what kept a finished task from completing, by rank; empty if it completed, and only then."""
    error = _error_of(outcome)
    if isinstance(error, RanksFailedError):
        return dict(error.failures)
    return {} if error is None else dict.fromkeys(unit.own_ranks, error)


def _error_of(outcome: Outcome) -> ReshardError | None:
    if isinstance(outcome, BaseException):
        return ConversionError(f"its task was lost: {type(outcome).__name__}: {outcome}")
    if outcome.is_completed():
        return None
    error = _result_of(outcome)
    if isinstance(error, ReshardError):
        return error
    if outcome.is_failed() and isinstance(error, Exception):
        raise error
    message = f", {outcome.message}" if outcome.message else ""
    return ConversionError(f"its task was lost: it ended as {outcome.name}{message}")


def _result_of(outcome: Any) -> Any:
    return getattr(outcome.data, "result", outcome.data)

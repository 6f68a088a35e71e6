"""Executors carry out the steps and units of a conversion: in threads of this process, or as tasks of a workflow.

The driver decides what is done, and in which order; an executor decides where, and how often it is tried.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Protocol, TypeVar, TypeVarTuple

from reshard.core.conversion.dispatch import Dispatch, Kind, Unit, run_in_threads
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import WorkerPool
from reshard.core.runtime.progress import advancing, current_progress
from reshard.core.runtime.retry import FailureStreak, with_retries

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Executor(Protocol):
    """Carries out a conversion's steps, one after the other, and its units of work on ranks, many at once."""

    @property
    def pool(self) -> WorkerPool | None:
        """The processes that do the units; None: this one."""

    def step(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of a step, which is repeated after transient failures."""

    def planned(self, plan: ConversionPlan) -> None:
        """Receive the plan before the target is claimed; an error ends the conversion."""

    def begun(self, session: Session) -> None:
        """Receive the session before its first unit."""

    def max_batches(self, session: Session) -> int:
        """Return the number of batches that the pending ranks are done in; 0: each rank has units of its own."""

    def run(self, session: Session, dispatch: Dispatch, workers: int) -> SourceParts:
        """Do all units, with so many workers in each process; return what units of the kind READ have read.

        `dispatch` has the failures afterwards. One rank's failure stops no other; a bug, or an interruption, does.
        """


class Threads:
    """Carries out everything in this process, the units in threads; `stop` ends them at their next block."""

    pool = None

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def step(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of a step, which is repeated after transient failures."""
        return with_retries(lambda: work(*arguments), current_progress().note)

    def planned(self, plan: ConversionPlan) -> None:
        """Do nothing: nobody is asked."""

    def begun(self, session: Session) -> None:
        """Do nothing: the report says all."""

    def max_batches(self, session: Session) -> int:
        """Return 0: a unit costs nothing but its work."""
        return 0

    def run(self, session: Session, dispatch: Dispatch, workers: int) -> SourceParts:
        """Do all units in threads; a storage that fails for several ranks in a row is not asked for more of a group."""
        progress = current_progress()
        advance = advancing(progress, self._stop)
        work = session.work(advance)
        streak: dict[Unit, FailureStreak] = defaultdict(FailureStreak)
        parts: SourceParts = {}

        def do(unit: Unit) -> None:
            with streak[dispatch.origin(unit)].counted():
                if unit.kind is Kind.READ:
                    for rank in unit.ranks:
                        parts[rank] = with_retries(partial(session.content.source_parts, rank, advance), progress.note)
                elif unit.kind is Kind.CHECK:
                    with_retries(lambda: work.check(unit.rank), progress.note)
                else:
                    with_retries(lambda: work.make(unit), progress.note)

        def stopping() -> None:
            self._stop.set()
            if session.is_remote:
                progress.note("stopping: waiting for requests in flight")

        run_in_threads(dispatch, do, workers, session.prefetch, stopping)
        return parts

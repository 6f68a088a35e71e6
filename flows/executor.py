"""The executor of a flow: a conversion's steps and units are tasks.

Steps run in the flow's own thread, units of work on ranks behind a task runner. Where there are many ranks a task does
a batch of them: a server records some 50 task runs a second.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, TypeVarTuple

from reshard.core.conversion import planning
from reshard.core.conversion.dispatch import Dispatch
from reshard.core.conversion.finish import finish
from reshard.core.conversion.report import summarize_plan
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import WorkerPool
from reshard.core.source.opening import find_strategy, open_by_strategy
from reshard.flows.ranks import RankTasks
from reshard.flows.runners import PoolRunner, threads
from reshard.flows.slots import Slots
from reshard.tasks.artifacts import publish_plan
from reshard.tasks.catalog import open_source
from reshard.tasks.conversion import commit_target
from reshard.tasks.planning import plan_conversion
from reshard.tasks.policies import untouched
from reshard.tasks.progress import RunProgress
from reshard.tasks.strategies import find_source_strategy, outline_target

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

MAX_SINGLE_RANKS = 128
"""More ranks are done in batches."""
MAX_BATCHES = 128
MIN_BATCHES = 8
"""Fewer ranks of a pool are not worth a batch."""
_BATCHES_PER_THREAD = 4
"""Several for each thread of a pool, so that none waits long for the last one."""
_BATCH_BYTES = 2**28
"""Converted in the time that Prefect takes to begin and end a task in another process, some 0.1 s for each."""
_STEPS: dict[Callable[..., Any], Callable[..., Any]] = {
    find_strategy: find_source_strategy,
    planning.outline_target: outline_target,
    open_by_strategy: open_source,
    planning.plan_conversion: plan_conversion,
    finish: commit_target,
}


class TaskExecutor:
    """The executor of a run: on a pool, or else on threads; within slots of a concurrency limit, if there are any.

    `approve` raises an error if the plan is not to be carried out.
    """

    def __init__(
        self,
        progress: RunProgress,
        runner: PoolRunner | None = None,
        slots: Slots | None = None,
        approve: Callable[[ConversionPlan], None] = lambda _: None,
    ) -> None:
        self._progress = progress
        self._runner = runner
        self._slots = slots
        self._approve = approve

    @property
    def pool(self) -> WorkerPool | None:
        """The processes that do the units; None: this one."""
        return self._runner.pool if self._runner else None

    def step(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of a step's task."""
        result: Result = _STEPS[work](*[untouched(each) for each in arguments])
        return result

    def planned(self, plan: ConversionPlan) -> None:
        """Ask for approval."""
        self._approve(plan)

    def begun(self, session: Session) -> None:
        """Publish the plan."""
        summary = summarize_plan(session.plan, session.budget, session.groups, session.prefetch)
        publish_plan(session.plan, summary, str(session.target.final))

    def max_batches(self, session: Session) -> int:
        """Return the number of batches for the pending ranks; 0: each has tasks of its own.

        In a pool small ranks are done in batches earlier: a task costs more there than in a thread of this process.
        """
        count = len(session.pending)
        if self.pool is None:
            return MAX_BATCHES if count > MAX_SINGLE_RANKS else 0
        threads = self.pool.processes * self.pool.threads
        first = session.plan.target_ranks.start
        pending_bytes = sum(session.plan.totals[rank - first].shard_bytes for rank in session.pending)
        most = min(MAX_BATCHES, max(MIN_BATCHES, _BATCHES_PER_THREAD * threads, pending_bytes // _BATCH_BYTES))
        return most if count > most else 0

    def run(self, session: Session, dispatch: Dispatch, workers: int) -> SourceParts:
        """Do all units as tasks; return what units of the kind READ have read.

        Raises:
            ConversionError: could not acquire a slot of the concurrency limit; the others are stopped.
            Exception: a task met a bug; the others are stopped.
        """
        with ExitStack() as stack:
            runner = self._runner or stack.enter_context(threads(workers))
            try:
                return RankTasks(dispatch, session, runner, self._slots, self._progress).run()
            except BaseException:
                self._progress.stop()  # leaving the runner waits for its threads
                raise

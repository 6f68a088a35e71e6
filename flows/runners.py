"""Where tasks on ranks are run: threads of this process, or the processes of a Dask cluster.

Runners are entered explicitly, not given to the flow: deployments ignore a flow's own task runner options. What became
of a task is asked of its future's outcome: Prefect leaves a future whose task was lost as it is, and would call the run
completed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.budget import WorkerPool
from reshard.flows.runner import Future, Outcome, Runner


class ThreadRunner:
    """Threads of this process."""

    def __init__(self, runner: ThreadPoolTaskRunner[Any], workers: int) -> None:
        self._runner = runner
        self._workers = workers

    def capacity(self, most_in_each: int) -> int:
        """As many as there are threads."""
        return min(self._workers, most_in_each)

    def submit(self, task: Task[..., Any], parameters: dict[str, Any], ended: Callable[[Future], None]) -> Future:
        """Has a thread run a task."""
        future = self._runner.submit(task, parameters)
        future.add_done_callback(ended)
        return future

    def outcome(self, future: Any, ended: Callable[[Future], None]) -> Outcome | None:
        """The state; threads lose tasks only to what is no Exception."""
        lost: BaseException | None = future.wrapped_future.exception()
        if lost is not None:
            return lost
        future.wait()
        state: State[Any] = future.state
        return state

    def check(self) -> None:
        """Threads end with the process."""


@contextmanager
def threads(workers: int) -> Iterator[Runner]:
    """So many threads; leaving the block waits for them."""
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=workers)
    with runner:
        yield ThreadRunner(runner, workers)


class PoolRunner(Runner, Protocol):
    """Runs tasks in other processes."""

    @property
    def pool(self) -> WorkerPool:
        """The processes."""


@contextmanager
def worker_pool(request: ConversionRequest) -> Iterator[PoolRunner | None]:
    """The Dask cluster that a request names, for the time of the block; None if it names none.

    Raises:
        InputError: Dask is not installed.
        ConversionError: the cluster does not answer, or has no workers.
    """
    if not request.dask_scheduler:
        yield None
        return
    try:
        from reshard.flows.dask_cluster import local_cluster, running_cluster
    except ImportError as error:
        raise InputError(
            f"dask_scheduler {request.dask_scheduler}: Dask is not installed ({error}): pip install 'reshard[dask]'"
        ) from error
    if request.dask_scheduler == "local":
        with local_cluster(request.worker_count) as runner:
            yield runner
    else:
        with running_cluster(request.dask_scheduler) as runner:
            yield runner

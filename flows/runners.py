"""Task runners: threads of this process, or the processes of a Dask cluster.

Runners are entered explicitly, not given to the flow, because deployments ignore a flow's own task runner options. The
end of a task is read from its future's outcome: Prefect leaves the future of a lost task pending, and would call the
run completed.
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
    """Runs tasks in threads of this process."""

    def __init__(self, runner: ThreadPoolTaskRunner[Any], workers: int) -> None:
        self._runner = runner
        self._workers = workers

    def capacity(self, max_in_each: int) -> int:
        """Return the number of threads."""
        return min(self._workers, max_in_each)

    def submit(self, task: Task[..., Any], parameters: dict[str, Any], ended: Callable[[Future], None]) -> Future:
        """Run a task in a thread."""
        future = self._runner.submit(task, parameters)
        future.add_done_callback(ended)
        return future

    def outcome(self, future: Any, ended: Callable[[Future], None]) -> Outcome | None:
        """Return the state; threads lose tasks only to a BaseException that is no Exception."""
        lost: BaseException | None = future.wrapped_future.exception()
        if lost is not None:
            return lost
        future.wait()
        state: State[Any] = future.state
        return state

    def check(self) -> None:
        """Do nothing: threads end with the process."""


@contextmanager
def threads(workers: int) -> Iterator[Runner]:
    """Provide a number of threads; leaving the block waits for them."""
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=workers)
    with runner:
        yield ThreadRunner(runner, workers)


class PoolRunner(Runner, Protocol):
    """Runs tasks in other processes."""

    @property
    def pool(self) -> WorkerPool:
        """The pool's processes."""


@contextmanager
def worker_pool(request: ConversionRequest) -> Iterator[PoolRunner | None]:
    """Provide the Dask cluster that a request names; None if it names none."""
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

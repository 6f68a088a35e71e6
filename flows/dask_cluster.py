"""Tasks on the workers of a Dask cluster, with Prefect's client for it; needs `reshard[dask]`.

Dask moves work between machines, repeats it elsewhere if a worker dies, and gives up a task whose workers die again and
again. This module adds the rest: the outcome of each task, and a check that workers are left to run them.
"""

import logging
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, cast
from uuid import uuid4

import distributed
from distributed.deploy.utils import nprocesses_nthreads
from prefect import Task, settings
from prefect.context import FlowRunContext
from prefect_dask.task_runners import DaskTaskRunner

from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.budget import WorkerPool
from reshard.flows.dask_worker import pickled_context, run_in_context
from reshard.flows.embedded_server import is_embedded
from reshard.flows.runner import Future, Outcome, RunnerLostError

CONNECT_SECONDS = 10.0
NO_WORKERS_SECONDS = 30.0
"""A cluster in use may be without workers for this time: some restart theirs."""
_FIRST_WORKERS_SECONDS = 5.0
_CHECK_SECONDS = 2.0
_ANSWER_SECONDS = 10.0


_local_cluster: Any = distributed.LocalCluster
_breakdown: Any = nprocesses_nthreads


class DaskRunner:
    """Runs tasks on the workers of a Dask cluster."""

    def __init__(self, runner: DaskTaskRunner, name: str) -> None:
        self._context = pickled_context()
        self._client: Any = runner.client  # distributed is not typed
        self._name = name
        self._threads: dict[str, int] = {}
        self._checked = self._had_workers = time.monotonic()
        self._await_workers()
        self.pool = WorkerPool(len(self._threads), max(self._threads.values()))

    def capacity(self, max_in_each: int) -> int:
        """Return the number of threads of all worker processes, with at most `max_in_each` of each."""
        return sum(min(threads, max_in_each) for threads in self._threads.values())

    def submit(self, task: Task[..., Any], parameters: dict[str, Any], ended: Callable[[Future], None]) -> Future:
        """Run a task on a worker."""
        if self._client.status != "running":
            raise RunnerLostError(f"{self._name}: the scheduler no longer answers")
        future = self._client.submit(run_in_context, self._context, task, uuid4(), parameters)
        future.add_done_callback(ended)
        return cast(Future, future)

    def outcome(self, future: Any, ended: Callable[[Future], None]) -> Outcome | None:
        """Return the state, or the error in its place: KilledWorker, a lost scheduler, an unreadable result."""
        try:
            state: Outcome = future.result(timeout=_ANSWER_SECONDS)
        except TimeoutError as error:
            if future.done():
                return error
            # the worker died with the answer: another worker repeats the task
            future.add_done_callback(ended)
            return None
        except (Exception, CancelledError) as error:
            return error
        return state

    def check(self) -> None:
        """Update the workers."""
        if time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        self._threads = self._threads_now()
        self._checked = time.monotonic()
        if self._threads:
            self._had_workers = self._checked
        elif self._checked - self._had_workers > NO_WORKERS_SECONDS:
            raise RunnerLostError(f"{self._name} has had no workers for {NO_WORKERS_SECONDS:.0f} s")

    def _threads_now(self) -> dict[str, int]:
        """Return the threads of each worker; none if the scheduler does not answer."""
        try:
            return dict(self._client.sync(self._client.scheduler.ncores, callback_timeout=_ANSWER_SECONDS))
        except (OSError, TimeoutError, AttributeError):  # while it reconnects it knows no scheduler
            return {}

    def _await_workers(self) -> None:
        deadline = time.monotonic() + _FIRST_WORKERS_SECONDS
        while not self._threads:
            self._threads = self._threads_now()
            if not self._threads and time.monotonic() > deadline:
                raise ConversionError(
                    f"{self._name} has no workers. Start some, on machines that see source and target: "
                    "dask worker SCHEDULER"
                )
            time.sleep(0 if self._threads else 0.1)


@contextmanager
def running_cluster(address: str) -> Iterator[DaskRunner]:
    """Provide a running cluster."""
    if is_embedded():
        raise InputError(
            f"dask_scheduler {address}: the cluster's workers could not reach Prefect's embedded server. Start one "
            "that they reach (prefect server start --host …), and name it in PREFECT_API_URL"
        )
    with _quiet(), DaskTaskRunner(address=address, client_kwargs={"timeout": CONNECT_SECONDS}) as runner:
        try:
            _connect(runner)
        except (OSError, TimeoutError) as error:
            raise ConversionError(f"the Dask scheduler at {address} does not answer: {error}") from error
        yield DaskRunner(runner, f"the Dask cluster at {address}")


def _connect(runner: DaskTaskRunner) -> None:
    """Connect to the scheduler; in a thread, since the client waits forever for a server that says nothing."""
    errors: list[Exception] = []

    def connect() -> None:
        try:
            _ = runner.client
        except Exception as error:  # raised below
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(connect,), daemon=True, name="reshard-dask-connection")
    thread.start()
    thread.join(CONNECT_SECONDS + _ANSWER_SECONDS)
    if thread.is_alive():
        raise TimeoutError("what listens there says nothing, as if it were no scheduler")
    if errors:
        raise errors[0]


@contextmanager
def local_cluster(workers: int) -> Iterator[DaskRunner]:
    """Provide a private cluster of processes on this machine, which ends with the block."""
    processes, threads = _breakdown(workers)
    quiet = {
        "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical",
        # task runs are logged to Prefect's server; the console belongs to this process
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    }
    with (
        _quiet(),
        _server_for_others(),
        _local_cluster(
            n_workers=processes,
            threads_per_worker=threads,
            processes=True,
            host="127.0.0.1",
            protocol="tls://",
            security=True,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,  # buffers are bounded by the request's own limit
            silence_logs=logging.CRITICAL,
            env=quiet,
        ) as cluster,
        DaskTaskRunner(cluster=cluster) as runner,
    ):
        yield DaskRunner(runner, "the local Dask cluster")


def _server_for_others() -> Any:
    """Settings that lead other processes of this machine to this process's embedded server."""
    context = FlowRunContext.get()
    if settings.PREFECT_API_URL.value() or context is None:
        return nullcontext()
    return settings.temporary_settings({settings.PREFECT_API_URL: str(context.client.api_url)})


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's messages about connections and workers that come and go."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)

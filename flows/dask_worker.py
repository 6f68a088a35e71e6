"""Runs tasks in a Dask worker, in the context of their flow run.

Prefect would make that context for each task: its settings, from everywhere that they may come from, and two clients,
each with certificates of its own, take some 0.1 s of processor time. Here a process makes it once for each run.
"""

import pickle
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import cloudpickle
from prefect import Task
from prefect.client.schemas.objects import State
from prefect.context import SyncClientContext, hydrated_context, serialize_context
from prefect.task_engine import run_task_sync

_MAX_RUNS = 8
_once = threading.Lock()
"""Without it, threads that begin together would each make the context."""


def pickled_context() -> bytes:
    """Return the context of the current run, for `run_in_context`."""
    pickled: bytes = cloudpickle.dumps(serialize_context())  # a program may have made the flow
    return pickled


def run_in_context(pickled: bytes, task: Task[..., Any], task_run_id: UUID, parameters: dict[str, Any]) -> State[Any]:
    """Run a task in a run's context, and return its final state; called in the worker."""
    with _once:
        context = _context(pickled)
    # tasks of several threads do not see what others set
    run: Callable[[], Any] = partial(run_task_sync, task, task_run_id, parameters=parameters, return_type="state")
    state: State[Any] = context.copy().run(run)
    return state


@lru_cache(maxsize=_MAX_RUNS)
def _context(pickled: bytes) -> Context:
    return Context().run(_made, pickled)


def _made(pickled: bytes) -> Context:
    with hydrated_context(pickle.loads(pickled)):
        SyncClientContext().__enter__()  # the tasks' client, never closed: one that an older run still uses stays open
        return copy_context()

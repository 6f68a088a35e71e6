"""Policies that all tasks share: retries, results, and large arguments.

Nothing is cached, because Prefect's cache would say "done" after the target was deleted: finished work is recorded
beside the target. Results stay in the process. Prefect searches arguments for futures, object by object, which takes
half a second for a strategy of 2000 parameters, in every task; `untouched` avoids that.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Cancelled
from prefect.utilities.annotations import quote

from reshard.core.errors import StoppedError, is_transient
from reshard.core.runtime.retry import WORK

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


def retry_transient(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """True if a failed task may succeed when repeated."""
    return isinstance(state.data, BaseException) and is_transient(state.data)


UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""Options of tasks that touch no storage."""

RETRIED: dict[str, Any] = UNCACHED | {
    "retries": WORK.attempts - 1,
    "retry_delay_seconds": [WORK.first_pause_seconds * 2**attempt for attempt in range(WORK.attempts - 1)],
    # ranks that failed together should not be retried together
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": retry_transient,
}
"""Options of tasks that read or write: repeated after transient failures, with growing pauses."""


def ending_with_its_run(work: Callable[Arguments, Value]) -> Callable[Arguments, Value | State[Any]]:
    """End a task as Cancelled, not Failed, if it was stopped with its run."""

    @wraps(work)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value | State[Any]:
        try:
            return work(*args, **kwargs)
        except StoppedError as error:
            return Cancelled(message=str(error), data=error)

    return run


def untouched(value: Value) -> Value:
    """Pass a large value to a task of this process without a search; the task gets the value itself."""
    return cast("Value", quote(value))

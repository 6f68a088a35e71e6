"""What all flows have in common: how a run hears that it is to stop, tells of its progress, and ends."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from prefect.client.schemas.objects import State
from prefect.states import Failed

from core.errors import ReshardError
from core.garbage import rare_collections
from core.progress import current_progress, reporting_to
from core.retry import counting_retries, stoppable
from tasks.artifacts import publish_failure
from tasks.progress import RunProgress

Result = TypeVar("Result")


def carried_out(title: str, work: Callable[[RunProgress], Result]) -> Result:
    """What `work` returns; if it fails for a reason that its user can understand, a Failed state that tells it."""
    _leave_out_traces()
    with stoppable() as stop, counting_retries(), rare_collections():
        progress = RunProgress(current_progress(), stop)
        try:
            with reporting_to(progress), progress.shown():
                return work(progress)
        except ReshardError as error:
            publish_failure(title, error)
            return failed(error)  # type: ignore[return-value]


def failed(error: ReshardError) -> State[Any]:
    """How a run ends that failed for a reason that its user can understand.

    Its message is the error's, as it is; whoever called the flow in a program gets the error raised.
    """
    _leave_out_traces()
    return Failed(message=str(error), data=error)


def _leave_out_traces() -> None:
    """Has Prefect log no stack traces of errors that are told in words, by the state of the run or the task."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of the log is anything but the stack trace of such an error."""
    return not (record.exc_info and isinstance(record.exc_info[1], ReshardError))


def tail_of(url: str) -> str:
    """The last two names of a URL; never a password, which is refused, but only after the run has its name."""
    return "/".join(url.rpartition("@")[2].rstrip("/").split("/")[-2:])

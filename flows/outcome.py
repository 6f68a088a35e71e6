"""Common to all flows: a run's stop signal, its progress, and its end."""

import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment
from prefect.states import Completed, Failed

from reshard.core.errors import ReshardError, notes_of, text_with_notes
from reshard.core.runtime.progress import current_progress, reporting_to
from reshard.core.runtime.retry import counting_retries, stoppable
from reshard.core.runtime.shortage import naming_shortage
from reshard.core.runtime.threads import rare_collections
from reshard.core.runtime.wording import shortened_in_middle
from reshard.core.storage.stores import check_lasting
from reshard.core.text.printing import printable, printable_lines
from reshard.core.text.secrets import scrubbed
from reshard.tasks.artifacts import publish_failure
from reshard.tasks.progress import RunProgress

Result = TypeVar("Result")


def carried_out(title: str, work: Callable[[RunProgress], Result]) -> Result:
    """Return the result of `work`, or a Failed state with the message of its ReshardError."""
    _tidy_logs()
    with stoppable() as stop, counting_retries(), rare_collections():
        progress = RunProgress(current_progress(), stop)
        try:
            with reporting_to(progress), progress.shown(), naming_shortage():
                return work(progress)
        except ReshardError as error:
            publish_failure(title, error)
            return failed(error)  # type: ignore[return-value]
        except BaseException as error:  # the run was stopped, or met a bug
            for note in notes_of(error):
                get_run_logger().info(note)
            raise


def check_output(url: str) -> None:
    """Check that files that a deployment's run writes at a URL outlive the run's process.

    Programs that call a flow may read files from their own memory.
    """
    if deployment.id:
        check_lasting(url)


def completed(report: Result, message: str) -> Result:
    """Return a run's Completed state with a message, which its page shows; programs that call the flow get the report.

    No artifact is sure to be seen first: Prefect's page of a run has them in random order.
    """
    return Completed(message=message, data=report)  # type: ignore[return-value]


def failed(error: ReshardError) -> State[Any]:
    """Return the Failed state of a run with an error's message; programs that call the flow get the error raised."""
    _tidy_logs()
    return Failed(message=text_with_notes(error), data=error)


def _tidy_logs() -> None:
    """Make Prefect's log lines of runs and tasks printable; drop those that repeat or contradict a state."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_tidied)


def _tidied(record: logging.LogRecord) -> bool:
    """Logging filter: makes a record printable; False for a line without news."""
    if record.exc_info and isinstance(record.exc_info[1], ReshardError):
        return False  # the stack trace of an error with a message
    message = record.getMessage()
    if (
        message == _CANCELLED_RUN
        or _OF_HOOK.match(message)
        or (record.name == "prefect.task_runs" and (message == _COMPLETED_TASK or _ENDED_WITH_ITS_RUN.match(message)))
    ):
        return False
    record.msg, record.args = printable_lines(scrubbed(message)), ()
    if record.exc_info:
        record.exc_text = printable_lines(scrubbed(_TRACES.formatException(record.exc_info)))
    return True


_TRACES = logging.Formatter()
_CANCELLED_RUN = "Finished in state Running()"
"""Logged for a cancelled run after "Flow run was cancelled"; its worker sets the state a moment later."""
_COMPLETED_TASK = "Finished in state Completed()"
"""Names no task; those that have something to tell have a message in their state."""
_OF_HOOK = re.compile(r"Running hook '|Hook '.*' finished running successfully$")
_ENDED_WITH_ITS_RUN = re.compile(
    r"(Crash detected! |Finished in state Crashed\(')Execution was aborted by a termination signal"
    r"|Finished in state Cancelled\("
)


_MAX_NAME_CHARACTERS = 24
"""Of each name in a run's: Prefect's pages cut off what is longer than sixty or so, and the target is at its end."""


def tail_of(url: str) -> str:
    """Return the last two names of a URL, printable and without secrets: runs are named before URLs are checked."""
    names = printable(scrubbed(url)).rstrip("/").split("/")[-2:]
    return "/".join(shortened_in_middle(name, _MAX_NAME_CHARACTERS) for name in names)

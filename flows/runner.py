"""The interface of task runners: where tasks on ranks run, and how they ended."""

from collections.abc import Callable
from typing import Any, Protocol

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from reshard.core.errors import ConversionError

Future = PrefectFuture[Any]

Outcome = State[Any] | BaseException
"""The final state of a task, or the error that kept it from reaching one."""


class RunnerLostError(ConversionError):
    """No worker is left to run tasks; those under way are lost."""


class Runner(Protocol):
    """Runs tasks."""

    def capacity(self, max_in_each: int) -> int:
        """Return the number of tasks that may run at once, with at most `max_in_each` in each process."""

    def submit(self, task: Task[..., Any], parameters: dict[str, Any], ended: Callable[[Future], None]) -> Future:
        """Run a task; `ended` is called, in any thread, when the task has ended somehow."""

    def outcome(self, future: Future, ended: Callable[[Future], None]) -> Outcome | None:
        """Return the outcome of a task that has ended; None if it runs again: then `ended` is called once more."""

    def check(self) -> None:
        """Check that tasks can still end; to be called now and then."""

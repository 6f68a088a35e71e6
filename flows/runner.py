"""What runs tasks on ranks, and how what became of them is asked."""

from collections.abc import Callable
from typing import Any, Protocol

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from reshard.core.errors import ConversionError

Future = PrefectFuture[Any]

Outcome = State[Any] | BaseException
"""The state that a task ended in, or what kept it from ending in any."""


class RunnerLostError(ConversionError):
    """There is nobody any more who could run tasks; those under way are lost."""


class Runner(Protocol):
    """Runs tasks."""

    def capacity(self, most_in_each: int) -> int:
        """How many tasks there may be at once, if each process may have so many of its own."""

    def submit(self, task: Task[..., Any], parameters: dict[str, Any], ended: Callable[[Future], None]) -> Future:
        """Has a task run; `ended` is called, in any thread, when it has ended somehow.

        Raises:
            RunnerLostError: nobody runs it.
        """

    def outcome(self, future: Future, ended: Callable[[Future], None]) -> Outcome | None:
        """What became of a task that has ended; None if it has to be run again: then `ended` is called once more."""

    def check(self) -> None:
        """Makes sure that tasks can still come to an end; to be called now and then.

        Raises:
            RunnerLostError: they cannot.
        """

"""Strategies, as a task."""

from prefect import task

from core.convert import load_strategy
from core.strategy.model import Strategy
from tasks.policies import RETRIED


@task(name="merge-strategy", task_run_name="merge-strategy-{side}", **RETRIED)
def merge_strategy(url: str, side: str) -> Strategy | None:
    """The strategy of one side, "source" or "target", merged if the URL is a directory; None for an empty URL.

    Raises:
        StrategyError: it cannot be used.
        StorageError: the storage failed in a way that may go away.
    """
    return load_strategy(url)

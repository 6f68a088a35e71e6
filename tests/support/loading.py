"""Loads one target rank with one call."""

from collections.abc import Collection, Iterator
from typing import Any

from reshard.core.conversion.load import plan_load
from reshard.core.files.numpy_values import Value


def load_rank(
    source: str,
    source_strategy: str | None = None,
    target_strategy: str | None = None,
    rank: int = 0,
    *,
    names: Collection[str] | None = None,
    **options: Any,
) -> Iterator[tuple[str, Value]]:
    """Plan a source, and load the parameters of one target rank."""
    return plan_load(source, source_strategy, target_strategy, **options).load(rank, names)

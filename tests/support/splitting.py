"""The strategies that the stages of a job write, made of the merged one."""

from msgspec.structs import replace

from reshard.core.strategy.model import Strategy


def split_strategy(strategy: Strategy) -> tuple[Strategy, ...]:
    """Split a strategy into its stages' own, in ascending order; merging restores it."""
    return tuple(replace(strategy, stages=(stage,), merged=False) for stage in strategy.stages)

"""Merges the strategies of pipeline stages into one."""

from collections.abc import Sequence

from reshard.core.errors import StrategyError
from reshard.core.runtime.wording import listed
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import ParameterLayout

_NAME_ONE = ": one is of another job. Name the file that is right instead of the directory, or remove the other"


def merge_strategies(strategies: Sequence[Strategy]) -> Strategy:
    """Merge the strategies of stages, in any order; several of one stage must agree.

    Compares layouts only: the operators of a stage's first file are kept.
    """
    if not strategies:
        raise StrategyError("there are no strategies to merge")
    by_stage: dict[int, Strategy] = {}
    for strategy in strategies:
        if strategy.merged:
            raise StrategyError(f"{strategy.origin}: is a merged strategy already, it cannot be merged with others")
        first = by_stage.setdefault(strategy.stages[0].stage, strategy)
        if first is not strategy:
            _check_equal(first, strategy)
    ordered = [by_stage[stage] for stage in sorted(by_stage)]
    _check_complete(ordered)
    _check_device_counts(ordered)
    return Strategy(tuple(strategy.stages[0] for strategy in ordered), _joint_origin(ordered))


def check_against_merged(merged: Sequence[Strategy], own: Sequence[Strategy]) -> Strategy:
    """Return the merged strategy beside stages' own ones, from which it was made; it must agree with all of them.

    Compares layouts only. Stages without files of their own are taken from the merged strategy.
    """
    first, *others = merged
    for other in others:
        if len(other.stages) != len(first.stages):
            raise StrategyError(
                f"{first.origin} and {other.origin} are both merged, but have {len(first.stages)} and "
                f"{len(other.stages)} stages{_NAME_ONE}"
            )
    apart = [Strategy((stage,), other.origin, merged=False) for other in others for stage in other.stages]
    for strategy in (*apart, *own):
        number = strategy.stages[0].stage
        if number >= len(first.stages):
            raise StrategyError(
                f"{strategy.origin} is of stage {number}, but {first.origin}, a merged strategy, has "
                f"{len(first.stages)} stages{_NAME_ONE}"
            )
        _check_equal(Strategy((first.stages[number],), first.origin, merged=False), strategy, _NAME_ONE)
    return first


def _check_complete(ordered: Sequence[Strategy]) -> None:
    for expected, strategy in enumerate(ordered):
        if strategy.stages[0].stage != expected:
            found = [f"stage {each.stages[0].stage} in {each.origin}" for each in ordered]
            raise StrategyError(f"stage {expected} is missing; found {listed(found)}")


def _check_device_counts(ordered: Sequence[Strategy]) -> None:
    first = ordered[0]
    for strategy in ordered[1:]:
        if strategy.devices_per_stage != first.devices_per_stage:
            raise StrategyError(
                f"stages have different numbers of devices: {first.devices_per_stage} in {first.origin}, "
                f"{strategy.devices_per_stage} in {strategy.origin}"
            )


def _check_equal(first: Strategy, second: Strategy, advice: str = "") -> None:
    stage, other = first.stages[0], second.stages[0]
    for name in [*stage.layouts, *other.layouts]:
        difference = _difference(stage.layouts.get(name), other.layouts.get(name))
        if difference:
            raise StrategyError(
                f"{first.origin} and {second.origin} are both of stage {stage.stage}, but differ: "
                f"parameter {name!r} {difference}{advice}"
            )


def _difference(first: ParameterLayout | None, second: ParameterLayout | None) -> str | None:
    """Describe how two layouts of one parameter differ, as the end of a sentence; None if they are equal."""
    if first is None or second is None:
        return f"is only in the {'second' if first is None else 'first'}"
    for name in ParameterLayout.__struct_fields__:
        one, two = getattr(first, name), getattr(second, name)
        if one != two:
            return f"has {name} {one} in the first, {two} in the second"
    return None


def _joint_origin(strategies: Sequence[Strategy]) -> str:
    origins = list(dict.fromkeys(strategy.origin for strategy in strategies))
    return listed(origins, 1)

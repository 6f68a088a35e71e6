"""Merges the strategies of pipeline stages into one."""

from collections.abc import Sequence
from dataclasses import fields

from reshard.core.errors import StrategyError
from reshard.core.runtime.wording import listed
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import ParameterLayout


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


def _check_equal(first: Strategy, second: Strategy) -> None:
    stage, other = first.stages[0], second.stages[0]
    for name in [*stage.layouts, *other.layouts]:
        difference = _difference(stage.layouts.get(name), other.layouts.get(name))
        if difference:
            raise StrategyError(
                f"{first.origin} and {second.origin} are both of stage {stage.stage}, but differ: "
                f"parameter {name!r} {difference}"
            )


def _difference(first: ParameterLayout | None, second: ParameterLayout | None) -> str | None:
    """Describe how two layouts of one parameter differ, as the end of a sentence; None if they are equal."""
    if first is None or second is None:
        return f"is only in the {'second' if first is None else 'first'}"
    for field in fields(ParameterLayout):
        one, two = getattr(first, field.name), getattr(second, field.name)
        if one != two:
            return f"has {field.name} {one} in the first, {two} in the second"
    return None


def _joint_origin(strategies: Sequence[Strategy]) -> str:
    origins = list(dict.fromkeys(strategy.origin for strategy in strategies))
    return listed(origins, 1)

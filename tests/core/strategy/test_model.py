import pytest

from reshard.core.errors import StrategyError
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout

FOUR, TWO = ParameterLayout((4,), ((0,),)), ParameterLayout((2,), ((0,),))


def strategy(*stages: StageStrategy, merged: bool = True) -> Strategy:
    return Strategy(stages, "src", merged)


def test_ranks_are_numbered_stage_by_stage() -> None:
    both = strategy(StageStrategy(0, {"a": FOUR}), StageStrategy(1, {"a": FOUR, "b": FOUR}))
    assert both.devices_per_stage == 4
    assert both.ranks == range(8)
    assert both.stage_of(5) is both.stages[1]
    assert both.stage_ranks(both.stages[1]) == range(4, 8)
    assert [stage.stage for stage in both.stages_with("a")] == [0, 1]
    assert both.parameters == {"a", "b"}


def test_a_stages_own_strategy_has_its_stages_ranks() -> None:
    own = strategy(StageStrategy(2, {"a": FOUR}), merged=False)
    assert own.ranks == range(8, 12)
    assert own.stage_of(9).stage == 2


@pytest.mark.parametrize("stages", [(), (1,), (0, 2), (1, 0)])
def test_stages_are_complete_and_in_order(stages: tuple[int, ...]) -> None:
    with pytest.raises(StrategyError, match=r"^src: holds stages \[.*\], not 0\.\.n-1 without a hole"):
        strategy(*(StageStrategy(stage, {"a": FOUR}) for stage in stages))


def test_stages_have_the_same_number_of_devices() -> None:
    with pytest.raises(StrategyError, match=r"different numbers of devices \(stage 0: 4, stage 1: 2\)"):
        strategy(StageStrategy(0, {"a": FOUR}), StageStrategy(1, {"a": TWO}))


def test_layouts_of_a_stage_agree_on_its_devices() -> None:
    with pytest.raises(StrategyError, match="give different device counts: 2 for 'b', 4 for 'a'"):
        strategy(StageStrategy(0, {"a": FOUR, "b": TWO}))


def test_a_stage_without_parameters_needs_its_number_of_devices() -> None:
    assert StageStrategy(0, {}, devices=3).device_count == 3
    with pytest.raises(StrategyError, match="stage 0 has no parameter layouts"):
        strategy(StageStrategy(0, {}))

"""Merging the strategies of stages, and splitting them again."""

import pytest
from msgspec.structs import replace

from reshard.core.errors import StrategyError
from reshard.core.strategy.merging import merge_strategies
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.splitting import split_strategy

LAYOUT = ParameterLayout((2, 2), ((1,), ()))


def own(stage: int, origin: str, **layouts: ParameterLayout) -> Strategy:
    operators = (OperatorStrategy("op", stage, ((1, 2),)),)
    return Strategy((StageStrategy(stage, layouts or {"weight": LAYOUT}, operators),), origin, merged=False)


def test_stages_are_merged_in_their_order_whatever_that_of_the_files() -> None:
    merged = merge_strategies([own(1, "b", head=LAYOUT), own(0, "a", tail=LAYOUT), own(1, "c", head=LAYOUT)])
    assert merged.merged
    assert [(stage.stage, list(stage.layouts)) for stage in merged.stages] == [(0, ["tail"]), (1, ["head"])]
    assert [operator.stage for stage in merged.stages for operator in stage.operators] == [0, 1]
    assert merged.ranks == range(8)
    assert merged.origin == "a and 1 more"


def test_shared_parameter_keeps_each_stage_s_layout() -> None:
    other = replace(LAYOUT, tensor_map=((), (0,)))
    merged = merge_strategies([own(0, "a", tied=LAYOUT), own(1, "b", tied=other)])
    assert [stage.layouts["tied"] for stage in merged.stages_with("tied")] == [LAYOUT, other]


def test_merging_what_was_split_gives_it_back() -> None:
    strategy = merge_strategies([own(0, "a"), own(1, "a"), own(2, "a")])
    assert merge_strategies(split_strategy(strategy)[::-1]) == strategy


def test_stage_without_operators_survives_splitting() -> None:
    strategy = Strategy(tuple(StageStrategy(stage, {"weight": LAYOUT}) for stage in (0, 1)), "a")
    assert merge_strategies(split_strategy(strategy)) == strategy


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(LAYOUT, device_matrix=(4, 1)), r"'weight' has device_matrix \(2, 2\) in the first, \(4, 1\) in"),
        (replace(LAYOUT, optimizer_shard_size=2), "'weight' has optimizer_shard_size 0 in the first, 2 in the second"),
        (replace(LAYOUT, tensor_shape=(4, 6)), r"'weight' has tensor_shape None in the first, \(4, 6\) in the second"),
    ],
)
def test_two_of_one_stage_that_differ(changed: ParameterLayout, message: str) -> None:
    with pytest.raises(StrategyError, match=f"a.ckpt and b.ckpt are both of stage 1, but differ: parameter {message}"):
        merge_strategies([own(0, "z"), own(1, "a.ckpt"), own(1, "b.ckpt", weight=changed)])


def test_two_of_one_stage_with_other_parameters() -> None:
    with pytest.raises(StrategyError, match="parameter 'bias' is only in the second"):
        merge_strategies([own(0, "a"), own(0, "b", weight=LAYOUT, bias=LAYOUT)])
    with pytest.raises(StrategyError, match="parameter 'weight' is only in the first"):
        merge_strategies([own(0, "a"), own(0, "b", bias=LAYOUT)])


def test_order_of_parameters_is_no_difference() -> None:
    first, second = own(0, "a", x=LAYOUT, y=LAYOUT), own(0, "b", y=LAYOUT, x=LAYOUT)
    assert list(merge_strategies([first, second]).stages[0].layouts) == ["x", "y"]


def test_missing_stage() -> None:
    with pytest.raises(StrategyError, match=r"stage 1 is missing; found stage 0 in a, stage 2 in c, stage 3 in d$"):
        merge_strategies([own(3, "d"), own(0, "a"), own(2, "c")])
    with pytest.raises(StrategyError, match="stage 0 is missing; found stage 1 in b"):
        merge_strategies([own(1, "b")])


def test_different_device_counts() -> None:
    with pytest.raises(StrategyError, match="different numbers of devices: 4 in a, 8 in b"):
        merge_strategies([own(0, "a"), own(1, "b", weight=replace(LAYOUT, device_matrix=(2, 4)))])


def test_merged_one_among_them() -> None:
    with pytest.raises(StrategyError, match=r"^m: is a merged strategy already"):
        merge_strategies([own(0, "a"), replace(own(0, "m"), merged=True)])


def test_nothing_to_merge() -> None:
    with pytest.raises(StrategyError, match="no strategies"):
        merge_strategies([])

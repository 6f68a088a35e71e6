from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.errors import StrategyError
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.strategy.records import (
    StrategyRecords,
    assemble_strategy,
    check_layouts,
    decode_axes,
    encode_axes,
    list_records,
)
from reshard.core.tensor.layout import ParameterLayout

LAYOUT = ParameterLayout((2, 2), ((0,), ()))


def operator(stage: int) -> OperatorStrategy:
    return OperatorStrategy(f"MatMul-{stage}", stage, ((2, 1),))


def test_names_that_all_begin_with_a_stage_make_a_merged_strategy() -> None:
    records = StrategyRecords([operator(1), operator(0)], [("1-b-c", LAYOUT), ("0-a", LAYOUT)])
    strategy = assemble_strategy(records, "x")
    assert strategy.merged
    assert [list(stage.layouts) for stage in strategy.stages] == [["a"], ["b-c"]]
    assert [[each.stage for each in stage.operators] for stage in strategy.stages] == [[0], [1]]


def test_the_first_operator_decides_the_stage_of_a_file_of_its_own() -> None:
    strategy = assemble_strategy(StrategyRecords([operator(3)], [("a", LAYOUT), ("1-b", LAYOUT)]), "x")
    assert not strategy.merged
    assert strategy.stages[0].stage == 3
    assert list(strategy.stages[0].layouts) == ["a", "1-b"]


def test_records_of_a_strategy_restore_it() -> None:
    stages = StageStrategy(0, {"a": LAYOUT}, (operator(0),)), StageStrategy(1, {"a": LAYOUT, "b": LAYOUT})
    for strategy in (Strategy(stages, "x"), Strategy(stages[:1], "x", merged=False)):
        assert assemble_strategy(list_records(strategy), "x") == strategy


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ([], "has no parameter layouts"),
        ([("0-a", LAYOUT), ("0-a", LAYOUT)], "parameter 'a' occurs twice"),
        ([("0-", LAYOUT)], "has a parameter without a name"),
        ([("a", replace(LAYOUT, device_matrix=(0, 2)))], r"its device matrix is \[0, 2\]"),
        ([("a", replace(LAYOUT, device_matrix=(2048, 1024)))], "has more than 1048576 devices"),
        ([("a", replace(LAYOUT, optimizer_shard_size=-2))], "its optimizer shard has step 0 and size -2"),
        ([("a", replace(LAYOUT, field=1 << 31))], "does not fit 32 bits"),
        ([("a\ud800", LAYOUT)], "is not valid Unicode text"),
    ],
)
def test_impossible_records(layouts: list[tuple[str, ParameterLayout]], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        assemble_strategy(StrategyRecords([], layouts), "x")


def test_a_stages_own_strategy_that_would_be_read_as_something_else() -> None:
    with pytest.raises(StrategyError, match="show it to be stage 2, and it has none"):
        list_records(Strategy((StageStrategy(2, {"a": LAYOUT}),), "x", merged=False))
    with pytest.raises(StrategyError, match="so it would be read as a merged one"):
        list_records(Strategy((StageStrategy(0, {"1-a": LAYOUT}),), "x", merged=False))


@pytest.mark.parametrize("wrong", [{"field": 1.0}, {"nested": 1}, {"device_matrix": (2.0, 2)}])
def test_strategies_of_another_origin_are_checked_as_strictly(wrong: dict[str, Any]) -> None:
    check_layouts(Strategy((StageStrategy(0, {"a": LAYOUT}),), "x"))
    strategy = Strategy((StageStrategy(0, {"a": replace(LAYOUT, **wrong)}),), "x")
    with pytest.raises(StrategyError, match="parameter 'a'|stage 0 cannot have 4.0 devices"):
        check_layouts(strategy)


def test_a_sole_minus_one_is_no_device_axis() -> None:
    assert decode_axes([-1]) == ()
    assert decode_axes([1, 0]) == (1, 0)
    assert encode_axes(()) == (-1,)
    assert encode_axes((1, 0)) == (1, 0)

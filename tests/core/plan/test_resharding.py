"""Resharded parameters: whole tensors of source shards, and whether they fit the target's layouts."""

import re

import pytest

from reshard.core.errors import PlanError
from reshard.core.files.model import TensorEntry
from reshard.core.tensor.layout import ParameterLayout
from tests.support.plans import (
    INT,
    ROWS_OF_TWO,
    entry,
    make_catalog,
    make_strategy,
    plan_of,
    vector,
    with_shape,
)


def test_source_layout_missing_needs_equal_whole_tensors() -> None:
    entries = {rank: [entry("w", (2,)), entry("extra", (4,))] for rank in range(2)}
    source = make_strategy({"w": vector(2)})
    target = make_strategy({"w": vector(2), "extra": vector(2, True)})
    plan = plan_of(make_catalog(entries, {0: {"extra": "d"}, 1: {"extra": "d"}}), source, target)
    assert [str(plan.rank_plan(r).parameters[1].reads[0].source_box) for r in (0, 1)] == ["[0:2]", "[2:4]"]
    with pytest.raises(PlanError, match="'extra'.*rank_0 and rank_1 hold different contents"):
        plan_of(make_catalog(entries, {0: {"extra": "d"}, 1: {"extra": "e"}}), source, target)


def test_shape_that_does_not_divide_is_named() -> None:
    catalog = make_catalog({0: [entry("w", (5,))]})
    with pytest.raises(
        PlanError, match=re.escape("'w': its shape [5] does not fit the target's layout in stage 0: axis 0 has 5")
    ):
        plan_of(catalog, make_strategy({"w": vector(1)}), make_strategy({"w": vector(2, True)}))


def test_a_whole_tensor_beyond_64_bits_is_named() -> None:
    halves = ParameterLayout((2,), ((), (0,)), nested=True)
    catalog = make_catalog({rank: [TensorEntry("w", INT, (0, 2**62), ())] for rank in range(2)})
    message = re.escape("'w': the shape of the whole tensor, [0, 9223372036854775808], is too large")
    with pytest.raises(PlanError, match=message):
        plan_of(catalog, make_strategy({"w": halves}), None)


def test_shared_parameter_of_different_shapes() -> None:
    catalog = make_catalog({0: [entry("t", (4,))], 1: [entry("t", (2,))]})
    with pytest.raises(PlanError, match=r"'t': stages 0 and 1 share it, but it is Int32 \[4\] in one"):
        plan_of(catalog, make_strategy({"t": vector(1)}, {"t": vector(1)}), None)


@pytest.mark.parametrize("source", [None, with_shape(ROWS_OF_TWO, 8, 4)], ids=["in no source strategy", "moved"])
def test_the_targets_strategy_is_of_a_tensor_of_another_shape(source: ParameterLayout | None) -> None:
    known = {"other": ROWS_OF_TWO} | ({"w": source} if source else {})
    catalog = make_catalog(
        {rank: [entry("other", (4, 4)), entry("w", (4, 4) if source else (8, 4))] for rank in range(2)},
        digests={rank: {"w": "same"} for rank in range(2)},
    )
    wanted = make_strategy({"w": with_shape(ROWS_OF_TWO, 16, 4)})
    with pytest.raises(PlanError, match=r"its shape is \[8, 4\], the target's strategy says \[16, 4\] in stage 0"):
        plan_of(catalog, make_strategy(known), wanted)

"""Shards in the source's files: disagreeing ranks, and ranks that hold whole tensors."""

import pytest
from msgspec.structs import replace

from reshard.core.errors import CatalogError, PlanError
from reshard.core.tensor.layout import ParameterLayout
from tests.support.plans import (
    FLOAT,
    ROWS_OF_TWO,
    entry,
    make_catalog,
    make_strategy,
    plan_of,
    uneven,
    vector,
    with_shape,
)


def test_ranks_that_disagree() -> None:
    source = make_strategy({"w": vector(2)})
    with pytest.raises(CatalogError, match=r"'w' is Int32 \[2\] on rank_0, but Int32 \[3\] on rank_1"):
        plan_of(make_catalog({0: [entry("w", (2,))], 1: [entry("w", (3,))]}), source, None)
    with pytest.raises(CatalogError, match=r"'w' is Int32 \[2\] on rank_0, but Float32 \[2\] on rank_1"):
        plan_of(make_catalog({0: [entry("w", (2,))], 1: [entry("w", (2,), FLOAT)]}), source, None)
    only_one = make_catalog({0: [entry("w", (2,))], 1: [entry("v", (2,))]})
    with pytest.raises(CatalogError, match=r"'w': \[2:4\] of the whole tensor has no holder; it should be on rank_1"):
        plan_of(only_one, make_strategy({"w": vector(2, True)}), None)
    with pytest.raises(PlanError, match="'free', which no strategy knows.*nothing says how"):
        plan_of(
            make_catalog({0: [entry("w", (2,)), entry("free", (2,))], 1: [entry("w", (2,)), entry("free", (3,))]}),
            source,
            None,
        )


def test_parameter_on_ranks_of_another_stage() -> None:
    source = make_strategy({"w": vector(1), "v": vector(1)}, {"u": vector(1)})
    catalog = make_catalog({0: [entry("w", (2,))], 1: [entry("u", (2,)), entry("v", (2,))]})
    with pytest.raises(PlanError, match="'v' is on rank_1 .* but on no rank of the stages"):
        plan_of(catalog, source, None)


def test_integrated_save_is_recognized_by_known_shapes() -> None:
    known = replace(vector(2, True), tensor_shape=(4,))
    entries = {rank: [entry("w", (4,)), entry("v", (6,))] for rank in range(2)}
    plan = plan_of(make_catalog(entries), make_strategy({"w": known, "v": vector(2, True)}), None)
    assert plan.match.integrated
    assert [p.box.shape for p in plan.rank_plan(0).parameters] == [(4,), (6,)]
    sliced = {rank: [entry("w", (2,)), entry("v", (6,))] for rank in range(2)}
    plan = plan_of(make_catalog(sliced), make_strategy({"w": known, "v": vector(2, True)}), None)
    assert not plan.match.integrated
    assert [p.box.shape for p in plan.rank_plan(0).parameters] == [(4,), (12,)]
    wrong = {rank: [entry("w", (3,))] for rank in range(2)}
    with pytest.raises(
        PlanError, match=r"'w': its shards of shape \[3\] make a whole of \[6\], the strategy says \[4\]"
    ):
        plan_of(make_catalog(wrong), make_strategy({"w": known}), None)


def test_integrated_save_is_recognized_by_uneven_lengths_and_other_stages() -> None:
    uneven = ParameterLayout((2,), ((0,),), param_split_shape=(3, 1))
    plan = plan_of(make_catalog({r: [entry("t", (4,))] for r in range(2)}), make_strategy({"t": uneven}), None)
    assert plan.match.integrated
    catalog = make_catalog({r: [entry("t", (4,))] for r in range(4)})
    plan = plan_of(catalog, make_strategy({"t": vector(2, True)}, {"t": vector(2)}), None)
    assert plan.match.integrated
    assert plan.rank_plan(0).parameters[0].box.shape == (4,)


def test_a_rank_with_another_ranks_share_of_an_uneven_cut() -> None:
    """Both files are alike, which is right for the first rank only: its rows would have been taken for others."""
    catalog = make_catalog({rank: [entry("w", (5, 2))] for rank in range(2)})
    shared = catalog.records[0].index
    records = {rank: replace(record, index=shared) for rank, record in catalog.records.items()}
    with pytest.raises(PlanError, match=r"gives this rank 3 rows, its shard has shape \[5, 2\]"):
        plan_of(replace(catalog, records=records), make_strategy({"w": uneven(5, 3)}), None)


def test_an_empty_tensor_does_not_prove_that_ranks_were_saved_whole() -> None:
    catalog = make_catalog({rank: [entry("w", (4, 4)), entry("none", (0, 4))] for rank in range(2)})
    plan = plan_of(catalog, make_strategy({"w": ROWS_OF_TWO, "none": with_shape(ROWS_OF_TWO, 0, 4)}), None)
    assert not plan.match.integrated
    assert [parameter.shape for parameter in plan.match.resharded] == [(8, 4), (0, 4)]

"""The plan: any M to any N, against literal splitting; what becomes of each parameter; its size at scale."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.errors import PlanError
from reshard.core.files.model import TensorEntry
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.plans import (
    INT,
    catalog_of,
    entry,
    make_catalog,
    make_strategy,
    plan_of,
    sides,
    vector,
)
from tests.support.reference import AXIS_LENGTH, shard_of, wholes


@settings(max_examples=60)
@given(st.data())
def test_every_element_is_filled_once_and_rightly(data: st.DataObject) -> None:
    axis_counts = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    source, target = data.draw(sides(axis_counts)), data.draw(sides(axis_counts))
    tensors = wholes([(AXIS_LENGTH,) * count for count in axis_counts])
    shards = source.shards(tensors)
    plan = plan_of(catalog_of(shards), source.strategy(), target.strategy())
    assert len(plan.target_ranks) == target.devices * len(target.stages)
    contents: dict[int, list[bytes]] = {}
    for rank in plan.target_ranks:
        layouts_of = target.stages[rank // target.devices]
        rank_plan = plan.rank_plan(rank)
        assert {parameter.name for parameter in rank_plan.parameters} == {f"p{n}" for n in layouts_of}
        for parameter in rank_plan.parameters:
            number = int(parameter.name[1:])
            result = np.full(parameter.box.shape, -1, np.int32)
            filled = np.zeros(parameter.box.shape, int)
            for read in parameter.reads:
                result[read.target_box.as_index()] = shards[read.source_rank][number][read.source_box.as_index()]
                filled[read.target_box.as_index()] += 1
            assert (filled == 1).all()
            np.testing.assert_array_equal(result, shard_of(tensors[number], layouts_of[number], rank % target.devices))
            contents.setdefault(rank, []).append(result.tobytes())
        totals = plan.totals[rank]
        assert totals.shard_bytes == rank_plan.size_bytes == sum(map(len, contents[rank]))
        assert totals.source_ranks == rank_plan.source_ranks
    for rank, primary in plan.copies.items():
        assert contents[rank] == contents[primary]
        assert primary < rank
    distinct = {(rank // target.devices, *content) for rank, content in contents.items()}
    assert len(distinct) == len(contents) - len(plan.copies)


def test_uneven_to_even_and_back() -> None:
    uneven = ParameterLayout((3,), ((0,), ()), param_split_shape=(5, 4, 3))
    even = ParameterLayout((4,), ((0,), ()), nested=True)
    shards = [entry("table", (rows, 2)) for rows in (5, 4, 3)]
    plan = plan_of(
        make_catalog({r: [e] for r, e in enumerate(shards)}),
        make_strategy({"table": uneven}),
        make_strategy({"table": even}),
    )
    message = [
        [(r.source_rank, str(r.source_box)) for r in plan.rank_plan(rank).parameters[0].reads] for rank in range(4)
    ]
    assert message == [
        [(0, "[0:3, 0:2]")],
        [(0, "[3:5, 0:2]"), (1, "[0:1, 0:2]")],
        [(1, "[1:4, 0:2]")],
        [(2, "[0:3, 0:2]")],
    ]
    back = plan_of(
        make_catalog({rank: [entry("table", (3, 2))] for rank in range(4)}),
        make_strategy({"table": even}),
        make_strategy({"table": uneven}),
    )
    assert [back.rank_plan(rank).parameters[0].box.shape for rank in range(3)] == [(5, 2), (4, 2), (3, 2)]
    assert back.rank_plan(0).source_ranks == (0, 1)


def test_no_strategy_on_either_side_copies() -> None:
    catalog = make_catalog({0: [entry("a", (3, 2)), entry("step", (), INT)]})
    plan = plan_of(catalog, None, None)
    assert [p.name for p in plan.rank_plan(0).parameters] == ["a", "step"]
    assert plan.read_bytes == plan.written_bytes == 28


def test_copies_need_equal_carried_contents() -> None:
    entries = {rank: [entry("w", (2,)), entry("step", ())] for rank in range(2)}
    source, target = make_strategy({"w": vector(2)}), make_strategy({"w": vector(4)})
    assert plan_of(make_catalog(entries), source, target).copies == {2: 0, 3: 1}
    same = {0: {"step": "d"}, 1: {"step": "d"}}
    assert plan_of(make_catalog(entries, same), source, target).copies == {1: 0, 2: 0, 3: 0}
    different = {0: {"step": "d"}, 1: {"step": "e"}}
    assert plan_of(make_catalog(entries, different), source, target).copies == {2: 0, 3: 1}


def test_notes_and_companions_are_added_without_planning_again() -> None:
    catalog = make_catalog({rank: [entry("w", (2,))] for rank in range(2)})
    plan = plan_of(catalog, make_strategy({"w": vector(2)}), make_strategy({"w": vector(4)}))
    noted = plan.with_notes("a note").with_notes("the first")
    assert noted.inputs.catalog.notes == ("the first", "a note", *plan.inputs.catalog.notes)
    assert noted.stages is plan.stages
    assert noted.rank_plan(1) == plan.rank_plan(1)


def test_totals_name_the_owner_of_what_is_passed_through() -> None:
    rows = make_strategy({"w": ParameterLayout((4,), ((0,), ()), nested=True)})
    ranks = {rank: [entry("w", (2, 8))] for rank in range(4)}
    ranks[3].append(entry("n", (1,)))
    plan = plan_of(make_catalog(ranks), rows, rows)
    assert [totals.source_ranks for totals in plan.totals] == [(0, 3), (1, 3), (2, 3), (3,)]
    assert [plan.rank_plan(rank).source_ranks for rank in range(4)] == [(0, 3), (1, 3), (2, 3), (3,)]


def test_ranks_that_need_the_same_source_ranks_share_one_list() -> None:
    """Of 4096 ranks that each need all of 4096 they would take half a gigabyte."""
    rows, columns = ParameterLayout((4,), ((0,), ()), nested=True), ParameterLayout((4,), ((), (0,)), nested=True)
    catalog = make_catalog({rank: [entry("w", (2, 8))] for rank in range(4)})
    plan = plan_of(catalog, make_strategy({"w": rows}), make_strategy({"w": columns}))
    assert plan.totals[0].source_ranks == (0, 1, 2, 3)
    assert all(totals.source_ranks is plan.totals[0].source_ranks for totals in plan.totals)


def test_unknown_rank() -> None:
    with pytest.raises(PlanError, match="the target has ranks 0 to 0, not 5"):
        plan_of(make_catalog({0: [entry("a", ())]}), None, None).rank_plan(5)


def big_side(data_parallel: int, model_parallel: int, stages: int, parameters: int) -> Strategy:
    """Parameters dealt out to stages, in a few cuts: by column, by row, not; with and without optimizer shards."""
    devices = data_parallel * model_parallel
    cuts = [((0,), ()), ((), (0,)), ((), ())]
    all_layouts = [
        ParameterLayout((data_parallel, model_parallel), cut, True, step, size)
        for cut in cuts
        for step, size in ((0, 0), (model_parallel, data_parallel))
    ]
    assert all(layout.device_count == devices for layout in all_layouts)
    return make_strategy(
        *(
            {f"p{n}": all_layouts[n % len(all_layouts)] for n in range(parameters) if n * stages // parameters == stage}
            for stage in range(stages)
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 16])
def test_four_thousand_ranks_to_three_thousand(stages: int) -> None:
    count = 2000
    source = big_side(4096 // stages // 8, 8, stages, count)
    target = big_side(3072 // stages // 8, 8, stages, count)
    shape = (12288, 1536)
    records: dict[int, list[TensorEntry]] = {}
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        entries = []
        for name, layout in stage.layouts.items():
            shard = tuple(a // b for a, b in zip(shape, layout.shard_grid(2).pieces, strict=True))
            entries.append(entry(name, shard))
        records |= dict.fromkeys(ranks, entries)
    catalog = make_catalog(records)
    shared = {id(entries): catalog.records[rank].index for rank, entries in records.items()}
    catalog = replace(
        catalog,
        records={r: replace(rec, index=shared[id(records[r])]) for r, rec in catalog.records.items()},
    )
    started = time.process_time()
    plan = plan_of(catalog, source, target)
    assert sum(len(totals.source_ranks) for totals in plan.totals) > 3072
    assert plan.written_bytes == sum(totals.shard_bytes for totals in plan.totals)
    plan.rank_plan(3071)
    assert time.process_time() - started < 60

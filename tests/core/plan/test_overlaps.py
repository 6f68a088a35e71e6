"""How the cells of one parameter lie over each other: every element of every cell, by literal slicing."""

import math

import numpy as np
import pytest

from reshard.core.changes.changes import JoinRule, SplitRule
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.views.overlap_picture import draw_overlaps
from reshard.core.conversion.views.parameter import describe_reads
from reshard.core.layouts.dcp.target import DcpTarget
from reshard.core.plan.overlaps import ParameterOverlaps, overlaps_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import TensorSlice
from tests.support.changed_plans import declared
from tests.support.checkpoints import Case, case
from tests.support.plans import entry, make_catalog, make_strategy, plan_of


def overlaps_in(plan: ConversionPlan, name: str) -> ParameterOverlaps:
    return overlaps_of(plan, next(parameter for parameter in plan.match.resharded if parameter.name == name))


@pytest.mark.parametrize("number", [7001, 7005, 7010, 7018])
def test_what_overlaps_take_from_the_whole_tensor_makes_the_shards(number: int) -> None:
    conversion = case(number)
    plan = make_plan(conversion.request("/nowhere/out"))
    shards = conversion.want
    seen = set()
    for parameter in plan.match.resharded:
        overlaps = overlaps_of(plan, parameter)
        whole = np.arange(math.prod(parameter.shape)).reshape(parameter.shape)
        held = {cell.box: cell.ranks for cell in overlaps.source_cells}
        for cells in overlaps.target_cells.values():
            for cell in cells:
                filled = np.full(parameter.shape, -1)
                for overlap in cell.overlaps:
                    filled[overlap.target_box.as_index()] = whole[overlap.source_box.as_index()]
                    [ranks] = [ranks for box, ranks in held.items() if box.contains(overlap.source_box)]
                    assert overlap.source_rank in ranks
                assert np.array_equal(filled[cell.box.as_index()], whole[cell.box.as_index()])
                assert np.count_nonzero(filled >= 0) == cell.box.size
                for rank in cell.ranks:
                    assert shards[rank][parameter.name][1] == cell.box.shape
                    seen.add((rank, parameter.name))
    strategy = plan.inputs.target_strategy
    assert strategy is not None
    moved = {parameter.name for parameter in plan.match.resharded}
    assert seen == {(rank, name) for rank, contents in shards.items() for name in contents if name in moved}


def test_only_the_ranks_that_keep_a_slice_are_named_where_redundancy_is_removed() -> None:
    options = {"remove_redundancy": True, "format": "safetensors"}
    plan = make_plan(with_replicas().request("/nowhere/out", **options))
    for parameter in plan.match.resharded:
        for cells in overlaps_of(plan, parameter).target_cells.values():
            for cell in cells:
                for rank in plan.target_ranks:
                    kept = {each.name for each in plan.rank_plan(rank).parameters}
                    assert (rank in cell.ranks) <= (parameter.name in kept)
                assert len(cell.ranks) == 1


def test_of_files_of_dcp_only_those_that_hold_rows_of_a_tensor_are_named() -> None:
    catalog = make_catalog({0: [entry("w", (4, 3)), entry("step", ())]})
    plan = plan_of(catalog, None, None, layout=DcpTarget(shards=8))
    [rows] = overlaps_in(plan, "w").target_cells.values()
    assert [cell.ranks for cell in rows] == [(0,), (1,), (2,), (3,)]
    assert [str(cell.box) for cell in rows] == ["[0:1, 0:3]", "[1:2, 0:3]", "[2:3, 0:3]", "[3:4, 0:3]"]
    [[whole]] = overlaps_in(plan, "step").target_cells.values()
    assert len(whole.ranks) == 1


def with_replicas() -> Case:
    """A conversion whose target's ranks share slices."""
    return case(7001)


def test_cells_of_both_sides() -> None:
    plan = make_plan(case(7010).request("/nowhere/out"))
    overlaps = overlaps_in(plan, "layers.1.weight_1")
    assert [cell.ranks for cell in overlaps.source_cells] == [(0,), (1,), (2,), (3,)]
    assert overlaps.source_cells[3].box == TensorSlice((0, 4, 2), (96, 8, 4))
    [cells] = overlaps.target_cells.values()
    assert [(cell.ranks, len(cell.overlaps)) for cell in cells] == [((0,), 4), ((1,), 4)]
    assert {overlaps.size_bytes(overlap) for cell in cells for overlap in cell.overlaps} == {1536}


def test_rows_in_turn_are_stepped_boxes_in_all_views() -> None:
    rows = 64
    halves = ParameterLayout((2,), ((0,), ()), nested=True)
    changes = declared(split=[SplitRule(parameters="both", into=("gate", "up"), groups=rows)])
    catalog = make_catalog({rank: [entry("both", (rows, 3))] for rank in range(2)})
    target = make_strategy({"gate": halves, "up": halves})
    plan = plan_of(catalog, make_strategy({"both": halves}), target, changes=changes)
    overlaps = overlaps_in(plan, "up")
    [[first], [second]] = [cell.overlaps for cell in overlaps.target_cells[0]]
    assert (str(first.source_box), str(first.target_box)) == ("[1:64:2, 0:3]", "[0:32, 0:3]")
    assert (str(second.source_box), str(second.target_box)) == ("[65:128:2, 0:3]", "[32:64, 0:3]")
    assert overlaps.size_bytes(first) == 32 * 3 * 4
    [read] = describe_reads(plan, 0, "up")["reads"]
    assert (read["source_box"], read["runs"], read["size_bytes"]) == ("[1:64:2, 0:3]", 32, 32 * 3 * 4)
    assert read["file_offsets"][1] - read["file_offsets"][0] == (2 * 31 + 1) * 3 * 4
    joined = plan_of(
        make_catalog({0: [entry(name, (rows, 3)) for name in ("gate", "up")]}),
        None,
        make_strategy({"both": halves}),
        changes=declared(join=[JoinRule(parameters=("gate", "up"), into="both", groups=rows)]),
    )
    picture = draw_overlaps(overlaps_in(joined, "both"))
    assert "[1:64:2, 0:3], 384 B, from source rank 0" in picture
    assert picture.count('fill-opacity=".5"') == 4

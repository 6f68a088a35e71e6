"""The plan: any M to any N, against literal splitting; what becomes of each parameter; its size at scale."""

import dataclasses
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint.model import TensorEntry
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.errors import CatalogError, PlanError, TargetError
from reshard.core.plan.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.tensor.layout import ParameterLayout
from tests.support.plans import (
    FLOAT,
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


@settings(max_examples=150, deadline=None)
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
    told = [[(r.source_rank, str(r.source_box)) for r in plan.rank_plan(rank).parameters[0].reads] for rank in range(4)]
    assert told == [
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


def test_shared_parameter_is_read_from_the_lowest_stage() -> None:
    catalog = make_catalog({rank: [entry("tied", (4,)), entry(f"w{rank // 2}", (4,))] for rank in range(4)})
    source = make_strategy({"tied": vector(2), "w0": vector(2)}, {"tied": vector(2), "w1": vector(2)})
    target = make_strategy({"tied": vector(1), "w0": vector(1)}, {"tied": vector(1), "w1": vector(1)})
    plan = plan_of(catalog, source, target)
    reads = {(rank, p.name): p.reads[0].source_rank for rank in (0, 1) for p in plan.rank_plan(rank).parameters}
    assert reads == {(0, "tied"): 0, (0, "w0"): 0, (1, "tied"): 0, (1, "w1"): 2}


def test_parameters_in_no_strategy_come_from_the_rank_the_rule_says() -> None:
    entries = {rank: [entry("w", (2,)), entry("step", ())] for rank in range(2)}
    entries |= {rank: [entry("v", (2,)), entry("step", ())] for rank in (2, 3)}
    entries[3].append(entry("only_here", ()))
    source = make_strategy({"w": vector(2, True)}, {"v": vector(2, True)})
    target = make_strategy({"w": vector(4, True)}, {"v": vector(4, True)})
    plan = plan_of(make_catalog(entries), source, target)
    step = {r: next(p for p in plan.rank_plan(r).parameters if p.name == "step").reads[0].source_rank for r in range(8)}
    assert step == {0: 0, 1: 1, 2: 0, 3: 1, 4: 2, 5: 3, 6: 2, 7: 3}
    only = {plan.rank_plan(rank).parameters[-1].reads[0].source_rank for rank in range(8)}
    assert only == {3}


def test_copies_need_equal_carried_contents() -> None:
    entries = {rank: [entry("w", (2,)), entry("step", ())] for rank in range(2)}
    source, target = make_strategy({"w": vector(2)}), make_strategy({"w": vector(4)})
    assert plan_of(make_catalog(entries), source, target).copies == {2: 0, 3: 1}
    same = {0: {"step": "d"}, 1: {"step": "d"}}
    assert plan_of(make_catalog(entries, same), source, target).copies == {1: 0, 2: 0, 3: 0}
    different = {0: {"step": "d"}, 1: {"step": "e"}}
    assert plan_of(make_catalog(entries, different), source, target).copies == {2: 0, 3: 1}


def test_carried_parameters_that_differ_are_told() -> None:
    entries = {rank: [entry("w", (2,)), entry("step", ())] for rank in range(2)}
    source = make_strategy({"w": vector(2)})
    same = plan_of(make_catalog(entries, {0: {"step": "d"}, 1: {"step": "d"}}), source, None)
    assert not any("different" in note for note in plan_notes(same))
    different = plan_of(make_catalog(entries, {0: {"step": "d"}, 1: {"step": "e"}}), source, None)
    assert any("but different on different source ranks: step" in note for note in plan_notes(different))


def test_unmatched_parameters_are_dropped_or_fail() -> None:
    catalog = make_catalog({0: [entry("w", (2,)), entry("adam_m.w", (2,))]})
    source, target = make_strategy({"w": vector(1), "adam_m.w": vector(1)}), make_strategy({"w": vector(1)})
    assert plan_of(catalog, source, target).match.dropped == ("adam_m.w",)
    with pytest.raises(PlanError, match=r"'adam_m\.w' of the source has no place in the target's strategy"):
        plan_of(catalog, source, target, fail_on_unmatched=True)
    assert plan_of(catalog, source, None, fail_on_unmatched=True).match.dropped == ()


def test_missing_parameters_are_named_unless_excused() -> None:
    catalog = make_catalog({0: [entry("w", (2,))]})
    source = make_strategy({"w": vector(1)})
    target = make_strategy({"w": vector(1), "adam_m.w": vector(1), "x": vector(1)})
    with pytest.raises(PlanError, match=r"'adam_m\.w' of the target's.*\n.*'x' of the target's.*--allow-missing"):
        plan_of(catalog, source, target)
    plan = plan_of(catalog, source, target, allow_missing=("adam_*", "x"))
    assert plan.match.missing == ("adam_m.w", "x")


def test_source_layout_missing_needs_equal_whole_tensors() -> None:
    entries = {rank: [entry("w", (2,)), entry("extra", (4,))] for rank in range(2)}
    source = make_strategy({"w": vector(2)})
    target = make_strategy({"w": vector(2), "extra": vector(2, True)})
    plan = plan_of(make_catalog(entries, {0: {"extra": "d"}, 1: {"extra": "d"}}), source, target)
    assert [str(plan.rank_plan(r).parameters[1].reads[0].source_box) for r in (0, 1)] == ["[0:2]", "[2:4]"]
    with pytest.raises(PlanError, match="'extra'.*rank_0 and rank_1 hold different contents"):
        plan_of(make_catalog(entries, {0: {"extra": "d"}, 1: {"extra": "e"}}), source, target)


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


def test_integrated_save_is_recognized_by_known_shapes() -> None:
    known = dataclasses.replace(vector(2, True), tensor_shape=(4,))
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


@pytest.mark.parametrize("dtype", [TEXT, MAP_TENSOR])
def test_opaque_entries_are_copied_whole_or_refused(dtype: DType) -> None:
    text = "hello" if dtype is TEXT else None
    catalog = make_catalog({rank: [entry("t", (20,), dtype, text)] for rank in range(2)})
    plan = plan_of(catalog, make_strategy({"t": ParameterLayout((2,), ((), ()), True)}), None)
    assert plan.rank_plan(0).parameters[0].box.shape == (20,)
    with pytest.raises(PlanError, match=f"'t': a {dtype} cannot be cut"):
        plan_of(catalog, make_strategy({"t": vector(2, True)}), None)


def test_unknown_rank() -> None:
    with pytest.raises(PlanError, match="the target has ranks 0 to 0, not 5"):
        plan_of(make_catalog({0: [entry("a", ())]}), None, None).rank_plan(5)


def test_plan_file_holds_the_same_plan(tmp_path: object) -> None:
    entries = {rank: [entry("w", (2,)), entry("note", (8,), TEXT, "hé")] for rank in range(2)}
    target = make_strategy({"w": dataclasses.replace(vector(4, True), tensor_shape=(4,))})
    plan = plan_of(make_catalog(entries), make_strategy({"w": vector(2, True)}), target, prefix="p_")
    location = parse_url(f"{tmp_path}/plan.json.gz")
    write_bytes(location, dump_plan(plan))
    again = load_plan(str(location), plan_identity(plan))
    assert [again.rank_plan(r) for r in range(4)] == [plan.rank_plan(r) for r in range(4)]
    assert again.source_entry(0, "note").text == "hé"


def test_identity_follows_contents_not_circumstances() -> None:
    entries = {rank: [entry("w", (2,))] for rank in range(2)}
    catalog, source = make_catalog(entries), make_strategy({"w": vector(2, True)})
    one = plan_identity(plan_of(catalog, source, None))
    assert one == plan_identity(plan_of(dataclasses.replace(catalog, notes=("chosen",)), source, None))
    changed = {r: dataclasses.replace(record, version="newer") for r, record in catalog.records.items()}
    others = [
        plan_of(catalog, source, None, prefix="other_"),
        plan_of(catalog, source, None, allow_missing=("x",)),
        plan_of(catalog, source, make_strategy({"w": vector(2, True)})),
        plan_of(dataclasses.replace(catalog, records=changed), source, None),
    ]
    assert len({one, *map(plan_identity, others)}) == 5


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
    catalog = dataclasses.replace(
        catalog,
        records={r: dataclasses.replace(rec, index=shared[id(records[r])]) for r, rec in catalog.records.items()},
    )
    started = time.monotonic()
    plan = plan_of(catalog, source, target)
    assert sum(len(totals.source_ranks) for totals in plan.totals) > 3072
    assert plan.written_bytes == sum(totals.shard_bytes for totals in plan.totals)
    plan.rank_plan(3071)
    assert time.monotonic() - started < 60


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    plan = plan_of(make_catalog({0: [entry("w", (4,))]}), None, None)
    data = dump_plan(plan)
    path = tmp_path / "plan.json.gz"
    for position in range(10, len(data) - 8):  # the gzip header says nothing of the content
        path.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        with pytest.raises(TargetError, match=r"plan\.json\.gz: "):
            load_plan(str(path), plan_identity(plan))


def uneven(*lengths: int) -> ParameterLayout:
    return ParameterLayout((len(lengths),), ((0,), ()), param_split_shape=lengths, indices_offset=(0,) * len(lengths))


def test_a_rank_with_another_ranks_share_of_an_uneven_cut() -> None:
    """Both files are alike, which is right for the first rank only: its rows would have been taken for others."""
    catalog = make_catalog({rank: [entry("w", (5, 2))] for rank in range(2)})
    shared = catalog.records[0].index
    records = {rank: dataclasses.replace(record, index=shared) for rank, record in catalog.records.items()}
    with pytest.raises(PlanError, match=r"gives this rank 3 rows, its shard has shape \[5, 2\]"):
        plan_of(dataclasses.replace(catalog, records=records), make_strategy({"w": uneven(5, 3)}), None)


def with_shape(layout: ParameterLayout, *shape: int) -> ParameterLayout:
    return dataclasses.replace(layout, tensor_shape=shape)


ROWS_OF_TWO = ParameterLayout((2,), ((0,), ()))


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


def test_an_empty_tensor_does_not_prove_that_ranks_were_saved_whole() -> None:
    catalog = make_catalog({rank: [entry("w", (4, 4)), entry("none", (0, 4))] for rank in range(2)})
    plan = plan_of(catalog, make_strategy({"w": ROWS_OF_TWO, "none": with_shape(ROWS_OF_TWO, 0, 4)}), None)
    assert not plan.match.integrated
    assert [parameter.shape for parameter in plan.match.resharded] == [(8, 4), (0, 4)]

"""What becomes of each parameter."""

import pytest

from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.errors import PlanError
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.tensor.layout import ParameterLayout
from tests.support.plans import (
    entry,
    make_catalog,
    make_strategy,
    plan_of,
    vector,
)


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
    with pytest.raises(PlanError, match=r"'adam_m\.w' of the target's.*\n.*'x' of the target's.*allow_missing="):
        plan_of(catalog, source, target)
    plan = plan_of(catalog, source, target, allow_missing=("adam_*", "x"))
    assert plan.match.missing == ("adam_m.w", "x")


@pytest.mark.parametrize("dtype", [TEXT, MAP_TENSOR])
def test_opaque_entries_are_copied_whole_or_refused(dtype: DType) -> None:
    text = "hello" if dtype is TEXT else None
    catalog = make_catalog({rank: [entry("t", (20,), dtype, text)] for rank in range(2)})
    plan = plan_of(catalog, make_strategy({"t": ParameterLayout((2,), ((), ()), True)}), None)
    assert plan.rank_plan(0).parameters[0].box.shape == (20,)
    with pytest.raises(PlanError, match=f"'t': a {dtype} cannot be cut"):
        plan_of(catalog, make_strategy({"t": vector(2, True)}), None)

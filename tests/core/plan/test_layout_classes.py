"""Layout classes: parameters that are planned together."""

from reshard.core.changes.changes import JoinRule
from reshard.core.conversion.views.picture import feeds_of
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.layout import ParameterLayout, boxes_layout, whole_layout
from reshard.core.tensor.slices import TensorSlice
from tests.support.changed_plans import declared
from tests.support.plans import entry, make_catalog, make_strategy, plan_of


def test_layers_whose_rows_alternate_are_planned_together() -> None:
    rows, layers = 800, 20
    entries = [entry(f"{layer}.{name}", (rows, 4)) for layer in range(layers) for name in ("gate", "up")]
    by_rows = ParameterLayout((8,), ((0,), ()), nested=True)
    target = make_strategy({f"{layer}.both": by_rows for layer in range(layers)})
    join = JoinRule(parameters=(r"(\d+)\.gate", r"(\d+)\.up"), into=r"\1.both", groups=rows)
    plan = plan_of(make_catalog({0: entries}), None, target, changes=declared(join=[join]))
    assert plan.layout_class_count == 1
    parameters = plan.rank_plan(7).parameters
    assert [len(parameter.reads) for parameter in parameters] == [2] * layers
    first, second = parameters[3].reads[:2]
    assert (first.source, str(first.source_box), str(first.target_box)) == (0, "[700:800, 0:4]", "[0:199:2, 0:4]")
    assert (second.source, str(second.source_box), str(second.target_box)) == (1, "[700:800, 0:4]", "[1:200:2, 0:4]")


def test_slices_without_elements_may_be_on_no_rank() -> None:
    """A tensor without elements has lost nothing with them, though others of its class would have."""
    columns = ParameterLayout((2,), ((), (0,)), nested=True)
    strategy = make_strategy({"empty": columns, "w": columns})
    catalog = make_catalog({0: [entry("empty", (0, 2)), entry("w", (3, 2))], 1: [entry("w", (3, 2))]})
    target = make_strategy({"empty": columns, "w": columns})
    plan = plan_of(catalog, strategy, target)
    plan.check_coverage()
    parameters = {each.name: each for each in plan.rank_plan(1).parameters}
    assert (parameters["empty"].box.shape, parameters["empty"].reads) == ((0, 2), ())
    assert len(parameters["w"].reads) == 1


def test_the_picture_leaves_out_slices_on_no_rank() -> None:
    columns = ParameterLayout((2,), ((), (0,)), nested=True)
    strategy = make_strategy({"empty": columns})
    plan = plan_of(make_catalog({1: [entry("empty", (0, 2))]}), strategy, strategy)
    assert feeds_of(plan).counts_bytes.tolist() == [[0], [0]]


def test_ranks_without_a_box_get_nothing() -> None:
    boxes = ShardBoxes((4, 2), ((1, TensorSlice((0, 0), (4, 1))), (2, TensorSlice((0, 1), (4, 2)))))
    layouts = {"w": boxes_layout(boxes, 3), "all": whole_layout(1, 3)}
    plan = plan_of(make_catalog({0: [entry("w", (4, 2)), entry("all", (2,))]}), None, make_strategy(layouts))
    plan.check_coverage()
    held = [[each.name for each in plan.rank_plan(rank).parameters] for rank in plan.target_ranks]
    assert held == [["all"], ["w", "all"], ["w", "all"]]
    assert [each.name for each in plan.rank_plan(0, with_redundancy=True).parameters] == ["all"]
    assert [str(read.source_box) for read in plan.rank_plan(2).parameters[0].reads] == ["[0:4, 1:2]"]
    itemsize = 4
    assert [total.shard_bytes for total in plan.totals] == [2 * itemsize, 6 * itemsize, 6 * itemsize]
    assert [total.needed_bytes for total in plan.totals] == [2 * itemsize, 6 * itemsize, 6 * itemsize]
    assert plan.copies == {}

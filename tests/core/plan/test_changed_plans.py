"""Plans of changed parameters: any M to any N with splits, joins, transpositions and casts, against numpy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.changes.changes import CastRule, RenameRule, SplitRule, TransposeRule
from reshard.core.conversion.views.picture import feeds_of
from reshard.core.errors import CatalogError
from reshard.core.plan.change_summary import changes_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import plan_identity
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.rank_groups import group_ranks
from tests.support.changed_plans import SHAPES, changed, declared, random_changes, told_of
from tests.support.plans import FLOAT, HALF, as_layout, entry, make_catalog, make_strategy, plan_of, vector, vector2
from tests.support.reference import DEVICE_COUNTS, RandomLayout, layouts, shard_of


@dataclass(frozen=True)
class Side:
    """A random side: per stage, parameter name -> layout."""

    devices: int
    stages: tuple[dict[str, RandomLayout], ...]

    def strategy(self) -> Strategy:
        return make_strategy(*({name: as_layout(lay) for name, lay in held.items()} for held in self.stages))

    def shards(self, wholes: Mapping[str, np.ndarray]) -> dict[int, dict[str, np.ndarray]]:
        return {
            stage * self.devices + rank: {name: shard_of(wholes[name], lay, rank) for name, lay in held.items()}
            for stage, held in enumerate(self.stages)
            for rank in range(self.devices)
        }


@st.composite
def sides(draw: st.DrawFn, shapes: Mapping[str, tuple[int, ...]]) -> Side:
    devices = draw(st.sampled_from(DEVICE_COUNTS))
    stages: list[dict[str, RandomLayout]] = [{} for _ in range(draw(st.integers(1, 2)))]
    for name, shape in shapes.items():
        for stage in draw(st.sets(st.integers(0, len(stages) - 1), min_size=1)):
            stages[stage][name] = draw(layouts(devices, len(shape)))
    first = next(iter(shapes))
    for held in stages:  # a stage without parameters would have no devices
        if not held:
            held[first] = draw(layouts(devices, len(shapes[first])))
    return Side(devices, tuple(stages))


def without_redundancy(data: st.DataObject, side: Side, shards: dict[int, dict[str, np.ndarray]]) -> None:
    """Takes copies of slices away from ranks that are not their only holders."""
    for number, held in enumerate(side.stages):
        for name, layout in held.items():
            for ranks in as_layout(layout).shard_grid(len(SHAPES[name])).owners.values():
                keeper = data.draw(st.sampled_from(ranks))
                for rank in set(ranks) - {keeper}:
                    del shards[number * side.devices + rank][name]


@settings(max_examples=25)
@given(st.data())
def test_every_element_is_filled_once_and_rightly(data: st.DataObject) -> None:
    wholes = {
        name: np.arange(np.prod(shape), dtype=np.int32).reshape(shape) + number * 10_000
        for number, (name, shape) in enumerate(SHAPES.items())
    }
    changes, made = data.draw(random_changes(wholes))
    source = data.draw(sides(SHAPES))
    target = data.draw(sides({name: array.shape for name, array in made.items()}))
    shards = source.shards(wholes)
    if data.draw(st.booleans()):
        without_redundancy(data, source, shards)
    catalog = make_catalog(
        {rank: [entry(name, shard.shape, FLOAT) for name, shard in held.items()] for rank, held in shards.items()}
    )
    replicas = data.draw(st.sampled_from([0, 0, 1])) if target.devices * len(target.stages) > 1 else 0
    plan = plan_of(catalog, source.strategy(), target.strategy(), changes=changes, replicas=replicas)
    contents = {}
    for rank in plan.target_ranks:
        layouts_of = target.stages[rank // target.devices]
        everything = plan.rank_plan(rank, with_redundancy=True)
        assert {parameter.name for parameter in everything.parameters} - {"redundancy_removed"} == {*layouts_of}
        for parameter in everything.parameters:
            if parameter.appended:
                continue
            want = shard_of(made[parameter.name], layouts_of[parameter.name], rank % target.devices)
            assert parameter.dtype is (HALF if changes.cast else FLOAT)
            np.testing.assert_array_equal(carried_out(plan, parameter, shards), want)
            contents[rank, parameter.name] = want.tobytes()
        kept = plan.rank_plan(rank)
        totals = plan.totals[rank]
        assert totals.shard_bytes == kept.size_bytes
        reads = [read for parameter in kept.parameters for read in parameter.reads]
        assert totals.needed_bytes == sum(read.source_box.size for read in reads) * FLOAT.itemsize
        assert set(kept.source_ranks) <= set(totals.source_ranks)
    for rank, primary in plan.copies.items():
        names = {name for number, name in contents if number == rank}
        assert [contents[rank, name] for name in sorted(names)] == [contents[primary, name] for name in sorted(names)]
    assert feeds_of(plan).counts_bytes.sum() <= plan.written_bytes
    groups = group_ranks(plan, [*plan.target_ranks], min_groups=1, max_ranks=4)
    assert sorted(rank for group in groups for rank in group) == [*plan.target_ranks]


def carried_out(plan: ConversionPlan, parameter, shards: Mapping[int, Mapping[str, np.ndarray]]) -> np.ndarray:
    """A target shard, put together with numpy as the reads of its plan say."""
    result = np.full(parameter.box.shape, -1, np.int32)
    filled = np.zeros(parameter.box.shape, int)
    for read in parameter.reads:
        values = shards[read.source_rank][parameter.sources[read.source].name][read.source_box.as_index()]
        place = read.target_box.as_index()
        result[place] = values if read.axes is None else values.transpose(read.axes)
        filled[place] += 1
    assert (filled == 1).all()
    return result


def test_no_changes_change_nothing() -> None:
    catalog = make_catalog({rank: [entry("w", (2, 4)), entry("step", ())] for rank in range(2)})
    source, target = make_strategy({"w": vector2(2)}), make_strategy({"w": vector2(4)})
    plain, message = plan_of(catalog, source, target), plan_of(catalog, source, target, changes=declared())
    assert plan_identity(plain) == plan_identity(message)
    assert plain.match == message.match
    assert changes_of(message) == ()
    other = plan_of(catalog, source, target, changes=declared(exclude=("step",)))
    assert plan_identity(other) != plan_identity(plain)


def test_one_file_without_a_strategy_keeps_its_order() -> None:
    entries = [entry("a", (4, 6), FLOAT), entry("step", ()), entry("b", (6, 4), FLOAT)]
    plan = changed(
        entries, transpose=[TransposeRule(parameters="a")], cast=[CastRule(parameters="*", dtype="bfloat16")]
    )
    described = [(each.name, each.dtype.name, each.box.shape) for each in plan.rank_plan(0).parameters]
    assert described == [("a", "BFloat16", (6, 4)), ("step", "Int32", ()), ("b", "BFloat16", (6, 4))]
    assert (plan.read_bytes, plan.written_bytes) == (24 * 4 * 2 + 4, 24 * 2 * 2 + 4)


def test_carried_parameters_are_selected_renamed_and_cast() -> None:
    entries = [entry("w", (2,), FLOAT), entry("rate", (), FLOAT), entry("step", ()), entry("seed", ())]
    plan = plan_of(
        make_catalog(dict.fromkeys(range(2), entries)),
        make_strategy({"w": vector(2)}),
        make_strategy({"w": vector(1)}),
        changes=declared(
            exclude=("seed",),
            rename=[RenameRule(name="rate", to="learning_rate")],
            cast=[CastRule(parameters="learning*", dtype="Float16")],
        ),
    )
    assert [(each.name, each.source_name, each.dtype.name) for each in plan.match.passed_through] == [
        ("learning_rate", "rate", "Float16"),
        ("step", "step", "Int32"),
    ]
    assert [p.size_bytes for p in plan.rank_plan(0).parameters] == [8, 2, 4]
    assert (plan.totals[0].shard_bytes, plan.totals[0].needed_bytes) == (14, 16)
    assert plan.match.left_out.sources == {"seed": "exclude seed"}
    assert [effect.how for effect in changes_of(plan)] == [("renamed", "cast")]


def test_weights_only_leaves_out_what_only_training_needs_and_lists_it() -> None:
    weights = ["linear.weight", "moment", "stat.bias", "mu_law", "w"]
    state = ["linear.w", "adam_m.w", "moments.w", "accu_grads.w", "stat.w", "mu_w", "exp_avg_sq_w", "scale_sense"]
    plan = changed([entry(name, (2,)) for name in [*weights, *state]], select="weights-only")
    assert [moved.name for moved in plan.match.resharded] == weights
    kinds = dict.fromkeys(state, "optimizer state") | {"accu_grads.w": "accumulated gradients"}
    kinds["scale_sense"] = "loss scaling"
    assert plan.match.left_out.sources == {name: f"select weights-only: {kind}" for name, kind in kinds.items()}


def test_dropped_parameters_that_lost_ranks_had_are_not_missed() -> None:
    catalog = make_catalog({rank: [entry("qkv", (3, 2)), entry("w", (1, 2))] for rank in range(2)})
    source = make_strategy({"qkv": vector2(2), "w": vector2(2)})
    lost = dict(catalog.records)
    del lost[1]
    damaged = type(catalog)(catalog.url, catalog.format, None, lost, lost={1: "is missing"})
    split = [SplitRule(parameters="qkv", into=("q", "k", "v"))]
    with pytest.raises(CatalogError) as error:
        plan_of(damaged, source, None, changes=declared(split=split))
    assert told_of(error) == [
        "parameter 'qkv': [0:3, 2:4] of the whole tensor has no holder; it should be on rank_1",
        "parameter 'w': [0:1, 2:4] of the whole tensor has no holder; it should be on rank_1",
    ]
    # only the part of the fused tensor that is wanted has to be there
    by_rows = make_strategy({"qkv": ParameterLayout((2,), ((0,), ()), nested=True), "w": vector2(2)})
    rows = {"split": [SplitRule(parameters="qkv", into=("q", "kv"))], "exclude": ["w"]}
    target = make_strategy({"q": ParameterLayout((1,), ((), ()), nested=True)})
    assert [
        read.source_rank
        for read in plan_of(damaged, by_rows, target, changes=declared(**rows)).rank_plan(0).parameters[0].reads
    ] == [0]


def test_what_several_stages_hold_is_shared_under_its_own_name() -> None:
    catalog = make_catalog({0: [entry("tied", (4, 2))], 1: [entry("tied", (4, 2))]})
    source = make_strategy({"tied": vector2(1)}, {"tied": vector2(1)})
    plan = plan_of(catalog, source, None, changes=declared(transpose=[TransposeRule(parameters="tied")]))
    assert [stage for stage, _ in plan.match.shared["tied"]] == [0, 1]


def test_a_part_of_the_target_is_told_by_the_new_names() -> None:
    catalog = make_catalog({0: [entry("a", (2,))]})
    source = Strategy((StageStrategy(0, {"a": vector(1)}),), "own", merged=False)
    target = make_strategy({"x.a": vector(1), "x.b": vector(1)})
    plan = plan_of(catalog, source, target, changes=declared(rename=[RenameRule(pattern="(.*)", to=r"x.\1")]))
    assert (plan.part, plan.match.elsewhere) == (0, ("x.b",))

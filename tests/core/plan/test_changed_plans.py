"""Plans of changed parameters: any M to any N with splits, joins, transpositions and casts, against numpy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint.model import TensorEntry
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.views.picture import feeds_of
from reshard.core.errors import CatalogError, InputError, PlanError
from reshard.core.plan.change_summary import changes_of, changes_text, excluded_text
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.plan_file import plan_identity
from reshard.core.request.changes import CastRule, JoinRule, RenameRule, SplitRule, TransposeRule
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR, TEXT, dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.rank_groups import group_ranks
from tests.support.changed_plans import SHAPES, declared, random_changes
from tests.support.plans import as_layout, entry, make_catalog, make_strategy, plan_of, vector
from tests.support.reference import DEVICE_COUNTS, RandomLayout, layouts, shard_of

FLOAT, HALF = dtype_from_name("Float32"), dtype_from_name("Float16")


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


@settings(max_examples=40, deadline=None)
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


def changed(entries: list[TensorEntry], **rules: object) -> ConversionPlan:
    """The plan of one file to one file."""
    return plan_of(make_catalog({0: entries}), None, None, changes=declared(**rules))


def told_of(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [line.removeprefix("  - ") for line in str(error.value).splitlines()[1:]]


def refusal(*entries: TensorEntry, **rules: object) -> list[str]:
    with pytest.raises(PlanError) as error:
        changed(list(entries), **rules)
    return told_of(error)


def test_no_changes_change_nothing() -> None:
    catalog = make_catalog({rank: [entry("w", (2, 4)), entry("step", ())] for rank in range(2)})
    source, target = make_strategy({"w": vector2(2)}), make_strategy({"w": vector2(4)})
    plain, told = plan_of(catalog, source, target), plan_of(catalog, source, target, changes=declared())
    assert plan_identity(plain) == plan_identity(told)
    assert plain.match == told.match
    assert changes_of(told) == ()
    other = plan_of(catalog, source, target, changes=declared(exclude=("step",)))
    assert plan_identity(other) != plan_identity(plain)


def vector2(devices: int) -> ParameterLayout:
    return ParameterLayout((devices,), ((), (0,)), nested=True)


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
    assert plan.match.excluded == {"seed": "exclude seed"}
    assert [effect.how for effect in changes_of(plan)] == [("renamed", "cast")]


def test_weights_only_leaves_out_what_only_training_needs_and_lists_it() -> None:
    weights = ["linear.weight", "moment", "stat.bias", "mu_law", "w"]
    state = ["linear.w", "adam_m.w", "moments.w", "accu_grads.w", "stat.w", "mu_w", "exp_avg_sq_w", "scale_sense"]
    plan = changed([entry(name, (2,)) for name in [*weights, *state]], select="weights-only")
    assert [moved.name for moved in plan.match.resharded] == weights
    assert plan.match.excluded == dict.fromkeys(state, "select weights-only")


def test_what_is_left_out_is_excused_where_the_target_has_a_place_for_it() -> None:
    catalog = make_catalog({0: [entry("w", (2,)), entry("adam_m.w", (2,)), entry("qkv", (6,))]})
    source = make_strategy({"w": vector(1), "adam_m.w": vector(1), "qkv": vector(1)})
    target = make_strategy({name: vector(1) for name in ("w", "adam_m.w", "q", "k", "v")})
    rules = {"split": [SplitRule(parameters="qkv", into=("q", "k", "v"))]}
    plan = plan_of(catalog, source, target, changes=declared(select="weights-only", exclude=("qkv",), **rules))
    assert plan.match.missing == ("adam_m.w", "k", "q", "v")
    assert plan.match.excluded == {"adam_m.w": "select weights-only", "qkv": "exclude qkv"}
    assert not [note for note in plan_notes(plan) if "missing" in note]  # that they are left out says enough
    with pytest.raises(PlanError, match="parameter 'other' of the target's strategy is in no source file"):
        plan_of(catalog, source, make_strategy({"other": vector(1)}), changes=declared(select="weights-only"))


def test_names_in_the_targets_strategy_are_the_new_ones() -> None:
    catalog = make_catalog({rank: [entry("old", (2, 4))] for rank in range(2)})
    source = make_strategy({"old": vector2(2)})
    known = ParameterLayout((2,), ((), (0,)), nested=True, tensor_shape=(2, 8))
    changes = declared(rename=[RenameRule(name="old", to="new")])
    plan = plan_of(catalog, source, make_strategy({"new": known}), changes=changes)
    assert [(each.name, each.shape) for each in plan.match.resharded] == [("new", (2, 8))]
    # the target's shape tells that ranks were saved whole, under the new name as well
    whole = ParameterLayout((2,), ((), (0,)), nested=True, tensor_shape=(2, 4))
    assert plan_of(catalog, source, make_strategy({"new": whole}), changes=changes).match.integrated
    dropped = plan_of(catalog, source, make_strategy({"other": vector2(2)}), changes=changes, allow_missing=("other",))
    assert dropped.match.dropped == ("new",)


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


def test_what_changes_do_is_said() -> None:
    entries = [entry("qkv", (6, 4), FLOAT), entry("w", (2,), FLOAT), entry("adam_m.w", (2,), FLOAT)]
    plan = changed(
        entries,
        select="weights-only",
        split=[SplitRule(parameters="qkv", into=("q", "k", "v"))],
        rename=[RenameRule(name="w", to="weight")],
        cast=[CastRule(parameters="*", dtype="bfloat16")],
    )
    q, *_, w = changes_of(plan)
    assert q.model_dump() == {
        "parameter": "q",
        "sources": ("qkv",),
        "how": ("split", "cast"),
        "source_dtypes": ("Float32",),
        "dtype": "BFloat16",
        "source_shapes": ((6, 4),),
        "shape": (2, 4),
    }
    assert (w.parameter, w.sources, w.how) == ("weight", ("w",), ("renamed", "cast"))
    assert "changed, as declared: 1 renamed; 3 split; 4 cast to BFloat16" in plan_notes(plan)
    assert "left out, as declared: 1 by select weights-only (adam_m.w)" in plan_notes(plan)
    assert (changes_text(()), excluded_text(())) == ("", "")


def test_what_stays_as_it_was_is_not_called_changed() -> None:
    entries = [entry("norm", (6,)), entry("square", (4, 4)), entry("step", ())]
    plan = changed(entries, transpose=[TransposeRule(parameters="*")], rename=[RenameRule(name="norm", to="scale")])
    assert [(each.parameter, each.how) for each in changes_of(plan)] == [
        ("scale", ("renamed",)),
        ("square", ("transposed",)),
    ]


def test_rules_that_fit_nothing_are_refused() -> None:
    assert refusal(
        entry("weight", (2, 2)),
        include=["w*", "b*"],
        exclude=["adam_*"],
        split=[SplitRule(parameters="qkv", into=("q", "k"))],
        join=[JoinRule(parameters=("gate", "up"), into="gate_up")],
        transpose=[TransposeRule(parameters="dense*")],
        rename=[RenameRule(name="wieght", to="w"), RenameRule(pattern="x(.*)", to=r"\1")],
        cast=[CastRule(parameters="norm*", dtype="float32")],
    ) == [
        "the pattern 'b*' (include) fits no parameter",
        "the pattern 'adam_*' (exclude) fits no parameter",
        "the split of 'qkv' fits no parameter",
        "the join into 'gate_up' fits no parameter",
        "the transposition of 'dense*' fits no parameter",
        "the rename of 'wieght' fits no parameter; is it one of weight?",
        "the rename of 'x(.*)' fits no parameter",
        "the cast of 'norm*' fits no parameter",
    ]
    assert refusal(entry("w", ()), cast=[CastRule(parameters="*", dtype="float32")]) == [
        "the cast of '*' fits no floating-point parameter, only w (Int32)"
    ]
    assert refusal(entry("w", ()), exclude=["*"]) == [
        "no parameter is left: what is selected, included and excluded leaves none"
    ]


def test_a_rule_for_what_is_left_out_is_no_mistake() -> None:
    entries = [entry("w", (2,), FLOAT), entry("adam_m.w", (2,), FLOAT)]
    plan = changed(entries, select="weights-only", cast=[CastRule(parameters="adam_*", dtype="float16")])
    assert [each.dtype for each in plan.match.resharded] == [FLOAT]


def test_names_that_become_one_are_refused() -> None:
    a, b, qkv = entry("a", (6,)), entry("b", (6,)), entry("qkv", (6,))
    assert refusal(a, b, rename=[RenameRule(name="a", to="b")]) == ["'a' and 'b' would both be called 'b'"]
    assert refusal(a, qkv, split=[SplitRule(parameters="qkv", into=("a", "k"))]) == [
        "'a' and part 1 of 'qkv' would both be called 'a'"
    ]
    assert refusal(a, b, qkv, join=[JoinRule(parameters=("a", "b"), into="qkv")]) == [
        "the join of 'a' and 'b' and 'qkv' would both be called 'qkv'"
    ]
    swapped = changed([a, b], rename=[RenameRule(name="a", to="b"), RenameRule(name="b", to="a")])
    assert [(each.name, each.sources[0].name) for each in swapped.match.resharded] == [("b", "a"), ("a", "b")]


def test_names_that_cannot_be_are_refused() -> None:
    a, b = entry("a", (6,)), entry("b", (6,))
    assert refusal(a, b, rename=[RenameRule(pattern="a(.*)", to=r"\1")]) == ["nothing is left of the name of 'a'"]
    assert refusal(a, b, split=[SplitRule(parameters="a(.*)", into=(r"\1", "c"))]) == [
        "nothing is left of the name of part 1 of 'a'",
    ]
    assert refusal(a, b, rename=[RenameRule(name="a", to="redundancy_removed")]) == [
        "no parameter can be called 'redundancy_removed': that marks files without redundancy"
    ]


def test_joins_need_each_part_once() -> None:
    a0, b0, a1 = entry("0.a", (2,)), entry("0.b", (2,)), entry("1.a", (2,))
    rule = JoinRule(parameters=(r"(\d)\.a", r"(\d)\.b"), into=r"\1.ab")
    assert refusal(a0, b0, a1, join=[rule]) == [r"the join into '\1.ab': '1.a' has no counterpart that fits '(\d)\.b'"]
    same = JoinRule(parameters=(r"(\d)\..", "(x)"), into=r"\1.ab")
    assert refusal(a0, b0, entry("x", (2,)), join=[same])[0] == (
        r"the join into '\1.ab': '0.b' and '0.a' are the same part of it"
    )
    both = JoinRule(parameters=(r"(\d)\.a", r"(\d)\.[ab]"), into=r"\1.ab")
    assert r"the join into '\1.ab': '0.a' fits several of its parts" in refusal(a0, b0, join=[both])


def test_shapes_that_rules_do_not_go_with_are_refused() -> None:
    qkv, other = entry("qkv", (8, 4), FLOAT), entry("other", (8, 6), FLOAT)
    [told] = refusal(qkv, split=[SplitRule(parameters="qkv", into=("q", "k", "v"))])
    assert told == (
        "parameters 'q', 'k', 'v': the split of 'qkv': axis 0 of 'qkv' has 8 elements, which do not divide into 3 "
        "shares"
    )
    assert refusal(qkv, split=[SplitRule(parameters="qkv", into=("q", "k"), groups=3)])[0].endswith(
        "has 8 elements, which do not divide into 2 shares in 3 groups"
    )
    assert refusal(qkv, split=[SplitRule(parameters="qkv", into=("q", "k"), axis=2)])[0] == (
        "parameters 'q', 'k': the split of 'qkv': 'qkv' has shape [8, 4], and no axis 2"
    )
    names = tuple(f"p{number}" for number in range(5))
    each = [entry(name, (8, 4), FLOAT) for name in ("a", "b")]
    into = tuple(rf"\1.{name}" for name in names)
    lines = refusal(*each, split=[SplitRule(parameters="(.)", into=into)])
    assert [line.partition(": ")[0] for line in lines] == [
        f"parameters '{of}.p0', '{of}.p1', '{of}.p2' and 2 more" for of in ("a", "b")
    ]
    [told] = refusal(qkv, other, join=[JoinRule(parameters=("qkv", "other"), into="x")])
    assert told == (
        "parameter 'x': the join into 'x': 'qkv' has shape [8, 4], 'other' has [8, 6]: they may differ along axis 0 "
        "only"
    )
    assert refusal(qkv, other, join=[JoinRule(parameters=("qkv", "other"), into="x", axis=1, groups=4)]) == [
        "parameter 'x': the join into 'x': axis 1 of 'other' has 6 elements, which do not divide into 4 groups"
    ]
    assert refusal(qkv, transpose=[TransposeRule(parameters="*", axes=(1, 2, 0))]) == [
        "parameter 'qkv': the transposition of '*': orders 3 axes, 'qkv' has shape [8, 4]"
    ]


def test_dtypes_that_rules_do_not_go_with_are_refused() -> None:
    parts = [entry("a", (4,), FLOAT), entry("b", (4,), HALF)]
    join = [JoinRule(parameters=("a", "b"), into="ab")]
    [told] = refusal(*parts, join=join)
    assert told == (
        "parameter 'ab': what it is made from has different dtypes ('a' Float32, 'b' Float16), which a cast could "
        "make one"
    )
    [told] = refusal(parts[0], entry("b", (4,)), join=join)
    assert told.endswith("has different dtypes ('a' Float32, 'b' Int32)")
    plan = changed(parts, join=join, cast=[CastRule(parameters="ab", dtype="bfloat16")])
    assert plan.match.resharded[0].dtype.name == "BFloat16"
    assert (plan.read_bytes, plan.written_bytes) == (4 * 4 + 4 * 2, 8 * 2)
    for dtype in (TEXT, MAP_TENSOR):
        opaque = TensorEntry("t", dtype, (4,), (), "text" if dtype is TEXT else None)
        assert refusal(opaque, transpose=[TransposeRule(parameters="t")]) == [
            f"parameter 't': 't' has dtype {dtype}, which cannot be transposed"
        ]
    assert refusal(entry("i", (4, 2), INT4), transpose=[TransposeRule(parameters="i")]) == [
        "parameter 'i': 'i' has dtype Int4, which cannot be transposed"
    ]


def test_what_no_strategy_knows_is_not_reshaped_beside_a_targets_strategy() -> None:
    catalog = make_catalog({0: [entry("w", (2,)), entry("table", (4, 2))]})
    strategy = make_strategy({"w": vector(1)})
    with pytest.raises(PlanError) as error:
        plan_of(catalog, strategy, strategy, changes=declared(transpose=[TransposeRule(parameters="table")]))
    assert told_of(error) == [
        "no strategy knows 'table', made from 'table': such parameters are copied as they are, and not transposed"
    ]
    alone = plan_of(catalog, strategy, None, changes=declared(transpose=[TransposeRule(parameters="table")]))
    assert {each.name: each.shape for each in alone.match.resharded} == {"w": (2,), "table": (2, 4)}


def test_layers_whose_rows_alternate_are_planned_together() -> None:
    rows, layers = 800, 20
    entries = [entry(f"{layer}.{name}", (rows, 4)) for layer in range(layers) for name in ("gate", "up")]
    by_rows = ParameterLayout((8,), ((0,), ()), nested=True)
    target = make_strategy({f"{layer}.both": by_rows for layer in range(layers)})
    join = JoinRule(parameters=(r"(\d+)\.gate", r"(\d+)\.up"), into=r"\1.both", groups=rows)
    plan = plan_of(make_catalog({0: entries}), None, target, changes=declared(join=[join]))
    assert plan.layout_class_count == 1
    parameters = plan.rank_plan(7).parameters
    assert [len(parameter.reads) for parameter in parameters] == [2 * rows // 8] * layers
    first, second = parameters[3].reads[:2]
    assert (first.source, str(first.source_box), str(first.target_box)) == (0, "[700:701, 0:4]", "[0:1, 0:4]")
    assert (second.source, str(second.source_box), str(second.target_box)) == (1, "[700:701, 0:4]", "[1:2, 0:4]")

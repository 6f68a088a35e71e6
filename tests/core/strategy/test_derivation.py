"""Strategies for other jobs, derived from one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.errors import StrategyError
from reshard.core.strategy.derivation import TargetJob, TensorFacts, derive_strategy
from reshard.core.strategy.files import read_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.roles import device_roles
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.text.options import Option
from tests.support.checkpoints import ALL_CASES, Case
from tests.support.plans import sides

ROWS = ParameterLayout((2, 4), ((0,), ()))
COLUMNS = ParameterLayout((2, 4), ((), (0,)))
WHOLE = ParameterLayout((2, 4), ((),))
NETWORK = {"l.0.wq": ROWS, "l.0.wo": COLUMNS, "l.0.norm": WHOLE, "adam_m.l.0.wq": ROWS}
SHAPES = {
    "l.0.wq": TensorFacts((24, 8)),
    "l.0.wo": TensorFacts((8, 24)),
    "l.0.norm": TensorFacts((8,)),
    "adam_m.l.0.wq": TensorFacts((24, 8)),
}


def strategy(*stages: dict[str, ParameterLayout]) -> Strategy:
    return Strategy(tuple(StageStrategy(number, layouts) for number, layouts in enumerate(stages)), "src")


def derived(source: Strategy, *sizes: int, facts: dict[str, TensorFacts] | None = None, **options: object) -> Strategy:
    wish = TargetJob(*sizes, **options)  # type: ignore[arg-type]
    return derive_strategy(source, wish, SHAPES if facts is None else facts).strategy


def cells(strategy: Strategy, name: str, axis_count: int = 2) -> list[list[int]]:
    [stage, *_] = strategy.stages_with(name)
    found: list[list[int]] = stage.layouts[name].shard_grid(axis_count).cells.tolist()
    return found


# ---- the source's own sizes ----


def sizes_of(source: Strategy) -> tuple[int, int, int]:
    layouts = [(name, layout) for stage in source.stages for name, layout in stage.layouts.items()]
    roles = device_roles(layouts, source.devices_per_stage)
    return roles.data_parallel, roles.model_parallel, len(source.stages)


def check_same(source: Strategy, axis_counts: dict[str, int]) -> None:
    made = derived(source, *sizes_of(source), facts={}, optimizer_parallel=any_shards(source))
    for stage, other in zip(source.stages, made.stages, strict=True):
        assert stage.layouts.keys() == other.layouts.keys()
        for name, layout in stage.layouts.items():
            mine = other.layouts[name].shard_grid(axis_counts[name])
            theirs = layout.shard_grid(axis_counts[name])
            assert mine == theirs
            assert (mine.cells == theirs.cells).all()


def any_shards(source: Strategy) -> bool:
    return any(layout.optimizer_shard_size for stage in source.stages for layout in stage.layouts.values())


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_a_job_of_the_same_sizes_cuts_alike(conversion: Case, side: str) -> None:
    source = read_strategy(str(conversion.directory / f"{side}_strategy.ckpt"))
    check_same(source, {name: len(lay.tensor_map) for stage in source.stages for name, lay in stage.layouts.items()})


@settings(max_examples=40)
@given(st.data())
def test_any_job_of_the_same_sizes_cuts_alike(data: st.DataObject) -> None:
    axis_counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    source = data.draw(sides(axis_counts)).strategy()
    check_same(source, {f"p{n}": count for n, count in enumerate(axis_counts)})


# ---- other sizes ----


def test_other_sizes() -> None:
    made = derived(strategy(NETWORK), 3, 2, 1)
    assert made.devices_per_stage == 6
    assert cells(made, "l.0.wq") == [[0, 0], [1, 0]] * 3
    assert cells(made, "l.0.wo") == [[0, 0], [0, 1]] * 3
    assert cells(made, "l.0.norm", 1) == [[0]] * 6
    assert cells(made, "adam_m.l.0.wq") == cells(made, "l.0.wq")
    assert made.stages[0].layouts["l.0.wq"].tensor_shape == (24, 8)


def test_without_model_parallel_all_is_whole() -> None:
    made = derived(strategy(NETWORK), 2, 1, 1)
    assert all(layout.shard_grid(len(SHAPES[name].shape)).is_whole for name, layout in made.stages[0].layouts.items())


def test_devices_that_share_may_be_the_slower_ones() -> None:
    made = derived(strategy({"l.0.wq": ParameterLayout((4, 2), ((1,), ()))}), 3, 2, 1)
    assert cells(made, "l.0.wq") == [[0, 0]] * 3 + [[1, 0]] * 3


def test_each_parameter_keeps_the_devices_that_share_it() -> None:
    by_steps = ParameterLayout((4, 2), ((1,), ()))
    made = derived(strategy({"l.0.wq": ROWS, "adam_m.l.0.wq": by_steps}), 3, 2, 1)
    assert cells(made, "l.0.wq") == [[0, 0], [1, 0]] * 3
    assert cells(made, "adam_m.l.0.wq") == [[0, 0]] * 3 + [[1, 0]] * 3
    wider = derived(strategy({"l.0.wq": ROWS, "adam_m.l.0.wq": by_steps}), 3, 4, 1)
    assert cells(wider, "adam_m.l.0.wq") == [[n, 0] for n in range(4) for _ in range(3)]


def test_what_does_not_divide_is_named() -> None:
    with pytest.raises(StrategyError) as error:
        derived(strategy(NETWORK), 1, 5, 1)
    assert str(error.value).splitlines() == [
        "src: cannot be converted to data parallel 1 x model parallel 5",
        "  - axis 0 has 24 elements, which 5 devices cannot share evenly: 'l.0.wq', 'adam_m.l.0.wq'",
        "  - axis 1 has 24 elements, which 5 devices cannot share evenly: 'l.0.wo'",
    ]


def test_what_could_not_be_checked_is_said() -> None:
    done = derive_strategy(strategy(NETWORK), TargetJob(1, 5, 1), {"l.0.norm": TensorFacts((8,))})
    assert done.unchecked == 3
    assert "the shapes of 3 of 4 parameters are not known" in done.notes[0]
    assert "no parameter's shape is known" in derive_strategy(strategy(NETWORK), TargetJob(1, 5, 1), {}).notes[0]


def test_nothing_sharded_shows_nothing() -> None:
    with pytest.raises(StrategyError, match=r"cuts no parameter by model parallel.*cuts=\['PATTERN=AXIS'\]"):
        derived(strategy({"l.0.norm": WHOLE}), 1, 2, 1)


EXPERTS = {"l.0.wq": ROWS, "l.0.experts": ParameterLayout((2, 4), ((1,), (0,)))}
EXPERT_SHAPES = {"l.0.wq": TensorFacts((24, 8)), "l.0.experts": TensorFacts((24, 24))}


def test_several_kinds_cannot_be_scaled() -> None:
    with pytest.raises(StrategyError) as error:
        derived(strategy(EXPERTS), 1, 4, 1, facts=EXPERT_SHAPES)
    assert "data parallel 1 and model parallel 8, which cannot become 1 and 4: different devices cut" in str(
        error.value
    )


def test_several_kinds_keep_their_size() -> None:
    made = derived(strategy(EXPERTS), 3, 8, 1, facts=EXPERT_SHAPES)
    before = cells(strategy(EXPERTS), "l.0.experts")
    assert cells(made, "l.0.experts") == before * 3


def test_rules_take_a_kind_away() -> None:
    rules = ["*.experts=0:data,1:model"]
    made = derived(strategy(EXPERTS), 3, 2, 1, facts=EXPERT_SHAPES, cuts=rules)
    assert cells(made, "l.0.experts") == [[d, m] for d in range(3) for m in range(2)]
    assert cells(made, "l.0.wq") == [[0, 0], [1, 0]] * 3
    whole = derived(strategy(EXPERTS), 2, 4, 1, facts=EXPERT_SHAPES, cuts=["*.experts=whole"])
    assert cells(whole, "l.0.experts") == [[0, 0]] * 8
    assert cells(whole, "l.0.wq") == cells(strategy(EXPERTS), "l.0.wq")


def test_rules_cut_what_was_whole() -> None:
    source = strategy({"l.0.wq": WHOLE_MATRIX, "adam_m.l.0.wq": WHOLE_MATRIX, "l.0.wo": WHOLE_MATRIX})
    made = derived(source, 2, 4, 1, cuts=["*.wq=0", "l.0.wo=1"])
    assert cells(made, "l.0.wq") == cells(made, "adam_m.l.0.wq") == [[n, 0] for n in range(4)] * 2
    assert cells(made, "l.0.wo") == [[0, n] for n in range(4)] * 2


WHOLE_MATRIX = ParameterLayout((1,), ((), ()))


def test_both_along_one_axis() -> None:
    made = derived(strategy({"l.0.wq": WHOLE_MATRIX}), 2, 3, 1, cuts=["l.0.wq=0:data,0:model"])
    assert cells(made, "l.0.wq") == [[n, 0] for n in range(6)]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("wq", "it has to be PATTERN=AXIS"),
        ("wq=x", "it has to be PATTERN=AXIS"),
        ("l.*=0:pipeline", "it has to be PATTERN=AXIS"),
        ("l.*=0,1", "the same devices cannot cut it twice"),
        ("none=0", "no parameter matches 'none'"),
        ("l.0.wq=2", "has no axis 2, which cuts=['l.0.wq'] names: it has 2: 'l.0.wq'"),
    ],
)
def test_wrong_rules(rule: str, message: str) -> None:
    with pytest.raises(StrategyError) as error:
        derived(strategy(NETWORK), 2, 2, 1, cuts=[rule])
    assert message in str(error.value)


def test_uneven_cuts_cannot_be_scaled() -> None:
    uneven = ParameterLayout((1, 2), ((0,), ()), param_split_shape=(10, 14), indices_offset=(0, 10))
    source = strategy({"l.0.wq": uneven})
    assert derived(source, 3, 2, 1).stages[0].layouts["l.0.wq"].param_split_shape == (10, 14)
    assert derived(source, 3, 1, 1).stages[0].layouts["l.0.wq"].param_split_shape == ()
    with pytest.raises(StrategyError, match=r"axis 0 is cut unevenly, into \[10, 14\].*: 'l.0.wq'"):
        derived(source, 1, 4, 1)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1 << 21, 1)])
def test_sizes_that_make_no_sense(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(StrategyError, match="it has to be a number from 1"):
        derived(strategy(NETWORK), *sizes)


# ---- optimizer parallel ----


def sharded(layout: ParameterLayout, size: int = -1, step: int = 4) -> ParameterLayout:
    return replace(layout, optimizer_shard_size=size, optimizer_shard_step=step)


def shards(made: Strategy) -> dict[str, tuple[int, int]]:
    return {
        name: (layout.optimizer_shard_size, layout.optimizer_shard_step)
        for name, layout in made.stages[0].layouts.items()
        if layout.optimizer_shard_size
    }


def test_the_network_says_what_is_sharded() -> None:
    source = strategy({"l.0.wq": sharded(ROWS, 2), "l.0.wo": COLUMNS, "adam_m.l.0.wq": sharded(ROWS, 2)})
    made = derived(source, 3, 2, 1, optimizer_parallel=True)
    assert shards(made) == {"l.0.wq": (-1, 2), "adam_m.l.0.wq": (-1, 2)}
    assert cells(made, "l.0.wq") == [[0, 0], [3, 0], [1, 0], [4, 0], [2, 0], [5, 0]]
    assert shards(derived(source, 3, 2, 1)) == {}


def test_a_limit_stays() -> None:
    source = strategy({"l.0.wq": sharded(ParameterLayout((4, 2), ((0,), ())), 2, 2)})
    assert shards(derived(source, 6, 2, 1, optimizer_parallel=True)) == {"l.0.wq": (2, 2)}
    done = derive_strategy(source, TargetJob(3, 2, 1, optimizer_parallel=True), SHAPES)
    assert shards(done.strategy) == {}
    assert "optimizer parallel leaves 1 parameter as they are, as MindSpore does" in done.notes[0]


def test_what_does_not_divide_stays() -> None:
    source = strategy({"l.0.wq": sharded(ROWS), "l.0.wo": sharded(COLUMNS)})
    assert shards(derived(source, 16, 1, 1, optimizer_parallel=True)) == {}
    assert shards(derived(source, 8, 1, 1, optimizer_parallel=True)) == {"l.0.wq": (-1, 1), "l.0.wo": (-1, 1)}
    assert shards(derived(source, 8, 2, 1, optimizer_parallel=True)) == {"l.0.wo": (-1, 2)}


def test_without_a_word_of_the_network_the_size_decides() -> None:
    options = {"optimizer_parallel": True, "optimizer_threshold_bytes": 24 * 8 * 4}
    done = derive_strategy(strategy(NETWORK), TargetJob(2, 4, 1, **options), SHAPES)  # type: ignore[arg-type]
    assert shards(done.strategy) == {"l.0.wq": (-1, 4), "l.0.wo": (-1, 4), "adam_m.l.0.wq": (-1, 4)}
    assert "assuming 4 bytes a value, since the strategy has no dtypes" in done.notes[-1]
    with pytest.raises(StrategyError, match="shape, which this strategy does not have.*'l.0.wo'") as caught:
        derived(strategy(NETWORK), 2, 4, 1, facts={}, optimizer_parallel=True)
    assert Option("checkpoint") in caught.value.options  # spelled where the error is shown


def test_what_did_not_divide_before_shows_nothing() -> None:
    source = strategy({"l.0.wq": sharded(ROWS), "l.0.wo": COLUMNS})
    shapes = {"l.0.wq": TensorFacts((24, 8)), "l.0.wo": TensorFacts((9, 24))}
    options = {"optimizer_parallel": True, "optimizer_threshold_bytes": 9 * 24 * 4}
    # two copies could not share nine rows, three can
    assert shards(derived(source, 3, 4, 1, facts=shapes, **options)) == {"l.0.wq": (-1, 4), "l.0.wo": (-1, 4)}
    options["optimizer_threshold_bytes"] += 1
    assert shards(derived(source, 3, 4, 1, facts=shapes, **options)) == {"l.0.wq": (-1, 4)}


def test_a_limit_is_one_for_all() -> None:
    limited = ParameterLayout((4, 2), ((0,), ()))
    source = strategy({"l.0.wq": sharded(limited, 2, 2), "l.0.wo": ParameterLayout((4, 2), ((), (0,)))})
    shapes = {"l.0.wq": TensorFacts((24, 8)), "l.0.wo": TensorFacts((6, 24))}
    options = {"optimizer_parallel": True, "optimizer_threshold_bytes": 0}
    # two of its four copies could have shared six rows
    assert shards(derived(source, 8, 2, 1, facts=shapes, **options)) == {"l.0.wq": (2, 2)}
    shapes["l.0.wo"] = TensorFacts((3, 24))
    assert shards(derived(source, 8, 2, 1, facts=shapes, **options)) == {"l.0.wq": (2, 2)}
    shapes["l.0.wo"] = TensorFacts((4, 24))
    bare = strategy({"l.0.wq": sharded(limited, 2, 2), "l.0.wo": ParameterLayout((1, 8), ((), (0,)))})
    assert shards(derived(bare, 8, 8, 1, facts=shapes, cuts=["l.0.wo=1"], **options))["l.0.wo"] == (2, 8)


def test_a_limit_that_is_all_copies_of_one_parameter() -> None:
    source = strategy(
        {
            "l.0.wq": sharded(ParameterLayout((4, 2), ((0,), ())), 2, 2),
            "l.0.wo": sharded(ParameterLayout((2, 2, 2), ((1,), ())), 2, 1),
            "l.0.w": sharded(ParameterLayout((2, 2, 2), ((2,), (1,))), 2, 1),
        }
    )
    shapes = dict.fromkeys(("l.0.wq", "l.0.wo", "l.0.w"), TensorFacts((24, 8)))
    options = {"optimizer_parallel": True, "cuts": ["l.0.w=0"]}
    assert shards(derived(source, 8, 2, 1, facts=shapes, **options))["l.0.w"] == (2, 2)


def test_without_shapes_what_was_left_out_stays_out() -> None:
    source = strategy({"l.0.wq": sharded(ROWS), "l.0.wo": COLUMNS})
    done = derive_strategy(source, TargetJob(3, 4, 1, optimizer_parallel=True), {})
    assert shards(done.strategy) == {"l.0.wq": (-1, 4)}
    assert "divide evenly (what optimizer parallel shards depends on it, too); name a checkpoint" in done.notes[-1]


def test_all_copies_may_have_been_a_limit() -> None:
    source = strategy({"l.0.wq": sharded(ROWS, 2)})
    more = derive_strategy(source, TargetJob(6, 4, 1, optimizer_parallel=True), SHAPES)
    assert shards(more.strategy) == {"l.0.wq": (-1, 4)}
    assert "cut parameters into 2 pieces, one per replica" in more.notes[0]
    assert derive_strategy(source, TargetJob(2, 2, 1, optimizer_parallel=True), SHAPES).notes == ()


def test_several_arrangements_may_be_several_kinds() -> None:
    source = strategy({"l.0.wq": ROWS4, "l.0.experts": ParameterLayout((2, 4, 4), ((1,), ()))})
    facts = {"l.0.wq": TensorFacts((24, 8)), "l.0.experts": TensorFacts((24, 8))}
    [note] = derive_strategy(source, TargetJob(1, 4, 1), facts).notes
    assert note.startswith("different devices cut different parameters: 4 devices cut 'l.0.experts' along axis 0; 4")
    assert "this is taken for one model parallel" in note
    assert derive_strategy(source, TargetJob(8, 4, 1), facts).notes == ()


ROWS4 = ParameterLayout((8, 4), ((0,), ()))


def test_whole_parameters_are_shared_by_all_devices() -> None:
    source = strategy({"l.0.norm": WHOLE})
    made = derived(source, 4, 2, 1, cuts=["l.0.norm=whole"], optimizer_parallel=True, optimizer_threshold_bytes=0)
    assert shards(made) == {"l.0.norm": (-1, 1)}
    assert cells(made, "l.0.norm", 1) == [[n] for n in range(8)]

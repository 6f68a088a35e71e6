"""What holds of every strategy: both formats give it back, and so does splitting and merging; no bytes cause a bug."""

import json
import math
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import StrategyError
from reshard.core.strategy.json_file import build_json, parse_json
from reshard.core.strategy.merging import merge_strategies
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.strategy.protobuf_file import build_protobuf, parse_protobuf
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from tests.support.splitting import split_strategy

Parser = Callable[[bytes, str], Strategy]

DEVICES = 12
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(min_size=1, max_size=8) | st.from_regex(r"[0-9]{0,2}-?[a-z.-]{1,6}", fullmatch=True)


@st.composite
def device_matrices(draw: st.DrawFn) -> tuple[int, ...]:
    sizes: list[int] = []
    while (left := DEVICES // math.prod(sizes)) > 1 or not sizes:
        sizes.append(draw(st.sampled_from([size for size in range(1, left + 1) if left % size == 0])))
        if len(sizes) == 5:
            return (*sizes, DEVICES // math.prod(sizes))
    return tuple(sizes)


@st.composite
def layouts(draw: st.DrawFn, *, nested: bool) -> ParameterLayout:
    matrix = draw(device_matrices())
    axes = draw(st.permutations(range(len(matrix))))
    axis_count = draw(st.integers(0, 4))
    if nested:
        cuts = sorted(draw(st.lists(st.integers(0, len(axes)), min_size=axis_count + 1, max_size=axis_count + 1)))
        tensor_map = tuple(tuple(axes[start:stop]) for start, stop in pairwise(cuts))
    else:
        left = list(axes)
        is_cut = draw(st.lists(st.booleans(), min_size=axis_count, max_size=axis_count))
        tensor_map = tuple((left.pop(),) if cut and left else () for cut in is_cut)
    offsets = draw(st.lists(st.tuples(st.integers(0, (1 << 63) - 1), INT64), max_size=3))
    shapes = st.lists(st.integers(0, (1 << 63) - 1), min_size=axis_count, max_size=axis_count).map(tuple)
    return ParameterLayout(
        matrix,
        tensor_map,
        nested=nested,
        optimizer_shard_step=draw(st.integers(0, (1 << 31) - 1)),
        optimizer_shard_size=draw(st.integers(ALL_REPEATED_AXES, (1 << 31) - 1)),
        field=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        param_split_shape=tuple(length for length, _ in offsets),
        indices_offset=tuple(offset for _, offset in offsets),
        tensor_shape=None if nested else draw(st.none() | shapes),
    )


@st.composite
def merged_strategies(draw: st.DrawFn, *, nested: bool = False) -> Strategy:
    kinds = layouts(nested=False) | layouts(nested=True) if nested else layouts(nested=False)
    stages = []
    for stage in range(draw(st.integers(1, 3))):
        dims = st.lists(st.lists(st.integers(0, (1 << 32) - 1), max_size=3).map(tuple), max_size=3).map(tuple)
        operators = [
            OperatorStrategy(f"{stage}/{name}", stage, draw(dims)) for name in draw(st.lists(NAMES, unique=True))
        ]
        of_stage = draw(st.dictionaries(NAMES, kinds, min_size=1, max_size=4))
        stages.append(StageStrategy(stage, of_stage, tuple(operators)))
    return Strategy(tuple(stages), "made")


def assert_same(found: Strategy, expected: Strategy, *, shapes: bool) -> None:
    """Equal, in the same order, and with the same tensor shapes where the format has them."""
    assert found == expected
    for stage, other in zip(found.stages, expected.stages, strict=True):
        assert list(stage.layouts) == list(other.layouts)
        if shapes:
            assert [layout.tensor_shape for layout in stage.layouts.values()] == [
                layout.tensor_shape for layout in other.layouts.values()
            ]


def parse_or_refuse(parse: Parser, data: bytes) -> Strategy | None:
    """The strategy in some bytes, or None if they are refused as they should be: by an error that names the file."""
    try:
        return parse(data, "file")
    except StrategyError as error:
        if str(error).startswith("file: "):
            return None
        raise


@given(merged_strategies(nested=True))
def test_protobuf_gives_back_what_was_written(strategy: Strategy) -> None:
    assert_same(parse_protobuf(build_protobuf(strategy), "made"), strategy, shapes=False)


@given(merged_strategies())
def test_json_gives_back_what_was_written(strategy: Strategy) -> None:
    assert_same(parse_json(build_json(strategy), "made"), strategy, shapes=True)


@given(merged_strategies(nested=True))
def test_merging_gives_back_what_was_split(strategy: Strategy) -> None:
    parts = split_strategy(strategy)
    assert_same(merge_strategies(parts), strategy, shapes=True)
    assert_same(merge_strategies([*reversed(parts), *parts]), strategy, shapes=True)


@given(merged_strategies())
def test_own_files_are_read_back_or_refused(strategy: Strategy) -> None:
    formats: list[tuple[Callable[[Strategy], bytes], Parser]] = [
        (build_protobuf, parse_protobuf),
        (build_json, parse_json),
    ]
    for part in split_strategy(strategy):
        for build, parse in formats:
            try:
                data = build(part)
            except StrategyError:
                # the two reasons there may be: nothing to say the stage with, or names like a merged file's
                stage = part.stages[0]
                assert (not stage.operators and stage.stage) or all(name[0].isdigit() for name in stage.layouts)
            else:
                assert parse(data, "made") == part


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert parse_or_refuse(parse_protobuf, data) is None
    assert parse_or_refuse(parse_json, data) is None


@given(merged_strategies(nested=True), st.data())
def test_damaged_protobuf_is_read_or_refused(strategy: Strategy, data: st.DataObject) -> None:
    damaged = bytearray(build_protobuf(strategy))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    found = parse_or_refuse(parse_protobuf, bytes(damaged))
    if found:
        # what is believed can be written and is still the same then
        assert parse_protobuf(build_protobuf(found), "file") == found


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(merged_strategies(), st.data())
def test_json_with_any_value_anywhere_is_read_or_refused(strategy: Strategy, data: st.DataObject) -> None:
    document = json.loads(build_json(strategy))
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON_VALUES)
    found = parse_or_refuse(parse_json, json.dumps(document).encode())
    if found:
        assert parse_json(build_json(found), "file") == found

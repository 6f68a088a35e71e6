"""Casts, turned reads and parameters made of several: the files hold what numpy makes of the whole tensors."""

from pathlib import Path

import fsspec
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import core.gather as gather_module
from core.changes import CastRule, Changes, JoinRule, OverflowPolicy, SplitRule, TransposeRule
from core.checkpoint.catalog import build_catalog
from core.checkpoint.model import CheckpointFormat
from core.errors import CastError
from core.plan import ConversionPlan, PlanInputs, build_plan
from core.storage.urls import parse_url
from core.transform import transform_ranks
from tests.core.test_layout import as_layout
from tests.core.test_plan import make_strategy
from tests.core.test_transform import BUFFER_SIZES, Buffers
from tests.support.checkpoints import read_rank
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.reference import RandomLayout, layouts, shard_of

FLOATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
NAMES = {"float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64"}
SOURCE_DEVICES, TARGET_DEVICES = 4, 6
Tensors = dict[str, tuple[str, np.ndarray]]
"""Parameter name -> its dtype's name in files, and the whole tensor."""


def write_source(directory: Path, tensors: Tensors, cuts: dict[str, RandomLayout], ranks: int) -> None:
    for rank in range(ranks):
        path = directory / f"rank_{rank}" / "m.ckpt"
        path.parent.mkdir(parents=True)
        shards = {name: shard_of(tensor, cuts[name], rank) for name, (_, tensor) in tensors.items()}
        path.write_bytes(
            checkpoint_bytes(*((name, tensors[name][0], each.shape, each.tobytes()) for name, each in shards.items()))
        )


def floats(number: int, shape: tuple[int, ...], kind: str) -> tuple[str, np.ndarray]:
    return NAMES[kind], np.random.default_rng(number).normal(size=shape).astype(FLOATS[kind])


def cast(value: tuple[str, np.ndarray], kind: str) -> tuple[str, np.ndarray]:
    return NAMES[kind], value[1].astype(FLOATS[kind])


@st.composite
def changed(draw: st.DrawFn) -> tuple[Tensors, Changes, Tensors]:
    """Source tensors, what becomes of them, and the target tensors."""
    kinds = st.sampled_from(sorted(FLOATS))
    source: Tensors = {}
    target: Tensors = {}
    casts = []

    source["cast"], to = floats(0, (24, 24), draw(kinds)), draw(kinds)
    target["cast"] = cast(source["cast"], to)
    casts.append(CastRule(parameters="cast", dtype=to))

    source["turned"], to = floats(1, (24, 12, 24), draw(kinds)), draw(kinds)
    axes = tuple(draw(st.permutations(range(3))))
    name, value = source["turned"]
    target["turned"] = cast((name, value.transpose(axes)), to)
    casts.append(CastRule(parameters="turned", dtype=to))

    source["fused"] = floats(2, (24, 48), draw(kinds))
    name, value = source["fused"]
    axis, groups = draw(st.sampled_from([(0, 1), (0, 2), (1, 1), (1, 2), (1, 4)]))
    runs = np.split(value, groups, axis)
    for number, part in enumerate(("q", "k")):
        mine = np.concatenate([np.split(run, 2, axis)[number] for run in runs], axis)
        target[part] = (name, mine.T) if part == "k" else (name, mine)

    kind, join_axis = draw(kinds), draw(st.integers(0, 1))
    source["gate"], source["up"] = floats(3, (12, 24), kind), floats(4, (12, 24), kind)
    name, value = source["gate"]
    target["both"] = (name, np.concatenate([value, source["up"][1]], join_axis))

    source["plain"] = target["plain"] = ("Int32", np.arange(24 * 24, dtype=np.int32).reshape(24, 24))
    changes = Changes(
        split=(SplitRule(parameters="fused", into=("q", "k"), axis=axis, groups=groups),),
        join=(JoinRule(parameters=("gate", "up"), into="both", axis=join_axis),),
        transpose=(TransposeRule(parameters="turned", axes=axes), TransposeRule(parameters="k")),
        cast=tuple(casts),
    )
    return source, changes, target


@pytest.mark.parametrize("remote", [False, True])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_file_holds_the_changed_shards(
    tmp_path_factory: pytest.TempPathFactory, remote: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("work")
    source, changes, target = data.draw(changed())
    source_cuts = {name: data.draw(layouts(SOURCE_DEVICES, each.ndim)) for name, (_, each) in source.items()}
    target_cuts = {name: data.draw(layouts(TARGET_DEVICES, each.ndim)) for name, (_, each) in target.items()}
    write_source(directory / "src", source, source_cuts, SOURCE_DEVICES)
    url = str(directory / "src")
    if remote:
        url = f"memory://{directory.name}"
        fsspec.filesystem("memory").put(str(directory / "src"), url, recursive=True)
    plan = make_plan(url, changes, source_cuts, target_cuts, data.draw(st.sampled_from(list(CheckpointFormat))))
    gaps = data.draw(st.sampled_from([0, 7, 100, 10**6]))
    buffer_bytes, scratch_bytes, wide_bytes = data.draw(st.tuples(BUFFER_SIZES, BUFFER_SIZES, BUFFER_SIZES))
    lanes, ranks = data.draw(st.tuples(st.integers(1, 3), st.sets(st.integers(0, TARGET_DEVICES - 1), min_size=1)))
    budget = Buffers(
        scratch_bytes=scratch_bytes, a_block_bytes=buffer_bytes, wide_bytes=max(wide_bytes, lanes * buffer_bytes)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(gather_module, "REMOTE_GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(gather_module, "LARGEST_REQUEST_BYTES", scratch_bytes)
        written = transform_ranks(
            plan,
            sorted(ranks),
            parse_url(str(directory / "out")),
            identity="i",
            budget=budget,
            lanes=lanes,
            advance=lambda _: None,
        )
    for record in written:
        found = read_rank(directory / "out", record.rank)
        shards = {name: shard_of(each, target_cuts[name], record.rank) for name, (_, each) in target.items()}
        assert found == {name: (target[name][0], each.shape, each.tobytes()) for name, each in shards.items()}
        assert not record.overflows


def make_plan(
    url: str,
    changes: Changes,
    source_cuts: dict[str, RandomLayout],
    target_cuts: dict[str, RandomLayout],
    file_format: CheckpointFormat = CheckpointFormat.CKPT,
) -> ConversionPlan:
    source = make_strategy({name: as_layout(cut) for name, cut in source_cuts.items()})
    target = make_strategy({name: as_layout(cut) for name, cut in target_cuts.items()})
    catalog = build_catalog(url, source.ranks, digest=lambda *_: False, workers=1)
    return build_plan(PlanInputs(catalog, source, target, file_format, changes=changes))


ROWS, COLUMNS, WHOLE = (RandomLayout((2,), tensor_map, ()) for tensor_map in (((0,), ()), ((), (0,)), ((), ())))


def overflowing_plan(directory: Path, policy: OverflowPolicy, *, transpose: bool = False) -> ConversionPlan:
    """A matrix of which three values are too large for float16, in both halves of its rows."""
    matrix = np.arange(24 * 24, dtype=np.float32).reshape(24, 24)
    matrix[2, 5], matrix[20, 1], matrix[20, 2], matrix[3, 3] = 70000, -1e6, 65520, np.inf
    tensors = {"w": ("Float32", matrix), "x": ("Float32", np.ones((24, 24), np.float32))}
    write_source(directory / "src", tensors, dict.fromkeys(tensors, COLUMNS), 2)
    changes = Changes(
        cast=(CastRule(parameters="*", dtype="float16"),),
        cast_overflow=policy,
        transpose=(TransposeRule(parameters="w"),) if transpose else (),
    )
    return make_plan(str(directory / "src"), changes, dict.fromkeys(tensors, COLUMNS), dict.fromkeys(tensors, ROWS))


def transform(plan: ConversionPlan, directory: Path, block_bytes: int = 4096) -> None:
    budget = Buffers(scratch_bytes=4096, a_block_bytes=block_bytes, wide_bytes=block_bytes)
    out = parse_url(str(directory / "out"))
    for rank in plan.target_ranks:
        transform_ranks(plan, (rank,), out, identity="i", budget=budget, lanes=1, advance=lambda _: None)


@pytest.mark.parametrize("block_bytes", [64, 4096])
def test_values_that_become_infinite_are_an_error_which_says_where(tmp_path: Path, block_bytes: int) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.FAIL)
    with pytest.raises(CastError) as caught:
        transform(plan, tmp_path, block_bytes)
    assert str(caught.value) == (
        "parameter 'w': 1 finite Float32 value becomes infinite as Float16; the first is at [2, 5], the largest is "
        "70000. Cast it to a dtype that holds them (bfloat16 has the range of float32), leave it as it is, or let them "
        "become infinite: --cast-overflow allow"
    )
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_where_is_told_in_the_target_as_a_whole(tmp_path: Path) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.FAIL, transpose=True)
    with pytest.raises(CastError, match=r"3 finite Float32 values .* first is at \[1, 20\], the largest is -1e\+06\."):
        transform(plan, tmp_path)


@pytest.mark.parametrize("block_bytes", [64, 4096])
def test_values_that_may_become_infinite_are_counted(tmp_path: Path, block_bytes: int) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.ALLOW)
    budget = Buffers(scratch_bytes=4096, a_block_bytes=block_bytes, wide_bytes=block_bytes)
    out = parse_url(str(tmp_path / "out"))
    records = transform_ranks(plan, (0, 1), out, identity="i", budget=budget, lanes=2, advance=lambda _: None)
    assert [[(each.name, each.count, each.largest) for each in record.overflows] for record in records] == [
        [("w", 1, 70000.0)],
        [("w", 2, -1e6)],
    ]


@pytest.mark.parametrize(("wide_bytes", "times"), [(2**18, 1), (2**16, 4), (2**15, 8)])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("remote", [False, True])
def test_a_turned_matrix_is_read_once_for_each_wide_block(
    tmp_path: Path, wide_bytes: int, times: int, lanes: int, remote: bool
) -> None:
    """256 KiB of which every block of the target is a strip of all rows; the parameters beside it are read once."""
    matrix = np.arange(256 * 256, dtype=np.int32).reshape(256, 256)
    tensors = dict.fromkeys(("before", "turned", "after"), ("Int32", matrix))
    write_source(tmp_path / "src", tensors, dict.fromkeys(tensors, WHOLE), 1)
    url = str(tmp_path / "src")
    if remote:
        url = f"memory://{tmp_path.name}"
        fsspec.filesystem("memory").put(str(tmp_path / "src"), url, recursive=True)
    catalog = build_catalog(url, range(1), digest=lambda *_: False, workers=1)
    changes = Changes(transpose=(TransposeRule(parameters="turned"),))
    plan = build_plan(PlanInputs(catalog, None, None, CheckpointFormat.CKPT, changes=changes))
    budget = Buffers(scratch_bytes=2**14, a_block_bytes=2**13, wide_bytes=wide_bytes)
    out = parse_url(str(tmp_path / "out"))
    [record] = transform_ranks(plan, (0,), out, identity="i", budget=budget, lanes=lanes, advance=lambda _: None)
    wanted = {name: ("Int32", matrix.shape, matrix.tobytes()) for name in ("before", "after")}
    assert read_rank(tmp_path / "out", 0) == wanted | {"turned": ("Int32", matrix.shape, matrix.T.tobytes())}
    # what lies between the strips of two reads is left out, and a little stands around contents
    assert 2 + 0.9 * times <= record.read_bytes / matrix.nbytes <= 1.01 * (2 + times)

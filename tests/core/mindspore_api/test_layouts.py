from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import mindspore
from reshard.core.files.numpy_values import INT4
from reshard.core.strategy.protobuf_file import build_layouts
from reshard.core.strategy.strategy_pb2 import ParallelLayouts
from tests.support.checkpoints import ALL_CASES, ckpt
from tests.support.plans import as_layout
from tests.support.reference import AXIS_LENGTH, DEVICE_COUNTS, layouts, shard_of
from tests.support.strategy_writer import FileLayout, read_protobuf_strategy, write_strategy_file

ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(2, 3))
FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


def message(device_matrix: list[int], tensor_map: list[int], lengths: tuple[int, ...] = (), field: int = 0) -> Any:
    layout = ParallelLayouts(field=field, opt_weight_shard_step=0, opt_weight_shard_size=0)
    layout.dev_matrix.add(dim=device_matrix)
    layout.tensor_map.add(dim=tensor_map)
    layout.param_split_shape.add(dim=lengths)
    return layout


# build_searched_strategy


@pytest.mark.parametrize("case", ALL_CASES[:4], ids=lambda case: case.directory.name)
def test_layouts_of_mindspores_files(case: Any) -> None:
    path = case.directory / "dst_strategy.ckpt"
    found = mindspore.build_searched_strategy(str(path))
    assert found is not None
    items = read_protobuf_strategy(path)["parallelLayoutItem"]
    assert found.keys() == {item["paramName"] for item in items}
    for item in items:
        reason, layout = item["parallelLayouts"], found[item["paramName"]]
        assert list(layout.dev_matrix[0].dim) == reason["devMatrix"][0]["dim"]
        assert [list(axes.dim) for axes in layout.tensor_map] == [axes.get("dim", []) for axes in reason["tensorMap"]]
        assert layout.opt_weight_shard_size == reason["optWeightShardSize"]


def test_json_and_none(tmp_path: Path) -> None:
    write_strategy_file(tmp_path / "s.json", {0: {"w": ROWS}})
    found = mindspore.build_searched_strategy(str(tmp_path / "s.json"))
    assert found is not None
    assert list(found["w"].tensor_map[0].dim) == [0, -1]
    assert mindspore.build_searched_strategy(None) is None


def test_strategies_that_cannot_be_built(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_bytes(b"\xff")
    with pytest.raises(TypeError, match="has to be a string or None"):
        mindspore.build_searched_strategy(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no such file"):
        mindspore.build_searched_strategy(str(tmp_path / "no"))
    with pytest.raises(ValueError, match="is empty"):
        mindspore.build_searched_strategy(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="is not a strategy"):
        mindspore.build_searched_strategy(str(tmp_path / "other"))


# merge_sliced_parameter


@given(st.data())
def test_merging_undoes_literal_splitting(data: st.DataObject) -> None:
    devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    axis_count = data.draw(st.integers(1, 3))
    random = data.draw(layouts(devices, axis_count))
    whole = np.arange(AXIS_LENGTH**axis_count, dtype=np.int32).reshape((AXIS_LENGTH,) * axis_count)
    if random.optimizer_size and any(
        AXIS_LENGTH % (random.optimizer_size * int(np.prod([random.device_matrix[-1 - axis] for axis in axes])))
        for axes in random.tensor_map[:1]
    ):
        return
    slices = [shard_of(whole, random, rank) for rank in range(devices)]
    merged = mindspore.merge_sliced_parameter(list(slices), {"w": build_layouts(as_layout(random))})
    np.testing.assert_array_equal(merged, whole)


def test_without_a_strategy() -> None:
    merged = mindspore.merge_sliced_parameter([FLOATS, FLOATS[:1]])
    np.testing.assert_array_equal(merged, np.concatenate([FLOATS, FLOATS[:1]]))


def test_dtypes_stay() -> None:
    brain = np.array([1.5, np.nan], ml_dtypes.bfloat16)
    assert mindspore.merge_sliced_parameter([brain, brain]).tobytes() == brain.tobytes() * 2
    packed = np.arange(4, dtype=np.int8).view(INT4)
    for strategy in (None, {"w": message([2], [0])}):
        merged = mindspore.merge_sliced_parameter([packed, packed], strategy)
        assert merged.dtype.metadata == INT4.metadata
        assert len(merged) == 8


def test_kinds_of_slices() -> None:
    strategy = {"w": message([2], [0, -1]), "v": message([2], [-1, 0])}
    for slices in (
        [{"name": "w", "data": row[None]} for row in FLOATS],
        [SimpleNamespace(name="w", asnumpy=lambda row=row: row[None]) for row in FLOATS],
    ):
        np.testing.assert_array_equal(mindspore.merge_sliced_parameter(slices, strategy), FLOATS)


def test_uneven_slices_and_fields() -> None:
    strategy = {"w": message([2], [0, -1], (1, 2))}
    whole = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(mindspore.merge_sliced_parameter([whole[:1], whole[1:]], strategy), whole)
    # rows 0 and 2 are the first field's, 1 and 3 the second's
    whole = np.arange(8).reshape(4, 2)
    merged = mindspore.merge_sliced_parameter([whole[:2], whole[2:]], {"w": message([2], [0, -1], field=2)})
    np.testing.assert_array_equal(merged, whole[[0, 2, 1, 3]])


def test_the_last_of_several_that_hold_a_slice_counts() -> None:
    strategy = {"w": message([2, 2], [1, -1])}
    merged = mindspore.merge_sliced_parameter([FLOATS, FLOATS + 1, FLOATS + 10, FLOATS + 11], strategy)
    np.testing.assert_array_equal(merged, np.concatenate([FLOATS + 1, FLOATS + 11]))


@pytest.mark.parametrize(
    ("slices", "strategy", "error", "text"),
    [
        (5, None, TypeError, "has to be a list"),
        ([], None, ValueError, "'sliced_parameters' is empty"),
        ([5], None, TypeError, "at index 0, which neither is nor has an array"),
        ([FLOATS, 5], None, TypeError, "at index 1, which neither is nor has an array"),
        ([FLOATS, FLOATS[:, :2]], None, ValueError, "the slice at index 1 is None of shape"),
        ([{"name": "w", "data": FLOATS}, FLOATS], None, ValueError, "the first one 'w'"),
        ([FLOATS, FLOATS.astype(int)], None, ValueError, "the slice at index 1 is int64, the first one float32"),
        ([FLOATS[0, 0]], None, ValueError, "scalars have no axis"),
        ([FLOATS], [1], TypeError, "'strategy' has to be a dict"),
        ([FLOATS], {"w": 5}, ValueError, "parameter 'w': <class 'int'> is not a layout"),
        ([FLOATS], {"w": message([2], [0, -1])}, ValueError, "has 1 slices, its layout is for 2 devices"),
        ([FLOATS, FLOATS[:1]], {"w": message([2], [0, -1])}, ValueError, "rank 1's slice has shape"),
        ([FLOATS, FLOATS], {"w": message([2], [0, -1], (1, 2))}, ValueError, "gives this rank 1 rows"),
        ([FLOATS, FLOATS], {"w": message([2], [0, -1], field=4)}, ValueError, "do not divide by 4 fields"),
        ([{"name": "v", "data": FLOATS}], {"w": message([1], [0, -1])}, KeyError, "no parameter 'v'"),
        ([FLOATS], {"w": 1, "v": 2}, ValueError, "which one is it"),
    ],
)
def test_slices_that_cannot_be_merged(slices: Any, strategy: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        mindspore.merge_sliced_parameter(slices, strategy)


# get_ckpt_path_with_strategy

REPEATED = FileLayout((2, 2), ((1,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(2, 3))
SHARDED = FileLayout((2, 2), ((1,), ()), nested=False, optimizer_step=1, optimizer_size=2, tensor_shape=(4, 3))
OTHER_WAY = FileLayout((2, 2), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(2, 3))


class Job:
    """Ranks with files, a strategy, and who this process is."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.monkeypatch = monkeypatch

    def has(self, *ranks: int) -> None:
        for rank in ranks:
            ckpt(self.directory / f"rank_{rank}/a.ckpt", w=FLOATS)

    def strategy(self, *stages: dict[str, FileLayout]) -> None:
        named = [
            {f"{number}-{name}" if len(stages) > 1 else name: layout for name, layout in stage.items()}
            for number, stage in enumerate(stages)
        ]
        write_strategy_file(self.directory / "s.ckpt", dict(enumerate(named)))

    def found(self, rank: int, reason: int | None = None) -> int | None:
        if reason is not None:
            self.monkeypatch.setenv("RANK_ID", str(reason))
        path = mindspore.get_ckpt_path_with_strategy(
            str(self.directory / f"rank_{rank}/a.ckpt"), str(self.directory / "s.ckpt")
        )
        return None if path is None else int(Path(path).parent.name.removeprefix("rank_"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("RANK_ID", raising=False)
    return Job(tmp_path, monkeypatch)


def test_its_own_file_needs_no_strategy(job: Job) -> None:
    job.has(3)
    assert job.found(3) == 3
    assert job.found(3, reason=3) == 3


def test_who_holds_the_same(job: Job) -> None:
    job.strategy({"w": REPEATED, "v": REPEATED, "inputs.x": OTHER_WAY, "accu_grads.w": OTHER_WAY})
    job.has(1, 2)
    assert job.found(0) == 1
    assert job.found(3) == 2
    assert job.found(3, reason=0) == 1  # the path is another rank's
    assert job.found(1, reason=1) == 1


def test_every_parameter_has_to_be_the_same(job: Job) -> None:
    job.has(1, 2)
    job.strategy({"w": REPEATED, "v": OTHER_WAY})
    assert job.found(0) is None
    job.strategy({"w": SHARDED})
    assert job.found(0) is None


def test_stages_hold_different_things(job: Job) -> None:
    job.strategy({"w": REPEATED}, {"v": OTHER_WAY})
    job.has(1, 6)
    assert job.found(0) == 1
    assert job.found(4) == 6
    assert job.found(5) is None
    with pytest.raises(ValueError, match="is for 8 ranks, there is no rank 8"):
        job.found(8)


def test_a_stages_own_strategy(job: Job) -> None:
    job.strategy({"w": REPEATED})
    job.has(9)
    assert job.found(8) == 9


def test_paths_without_a_rank(tmp_path: Path) -> None:
    path = ckpt(tmp_path / "a.ckpt", w=FLOATS)
    assert mindspore.get_ckpt_path_with_strategy(path, "unused") == path
    assert mindspore.get_ckpt_path_with_strategy(path + "x", "unused") is None


def test_a_directory_above_that_is_named_after_another_rank_is_not_taken_for_the_rank(job: Job) -> None:
    # ranks 0 and 2 hold the same
    job.strategy({"w": OTHER_WAY})
    above = job.directory / "job_rank_1"
    for rank in (1, 2):
        (above / f"rank_{rank}").mkdir(parents=True)
        (above / f"rank_{rank}" / "a.ckpt").touch()
    arguments = str(above / "rank_0/a.ckpt"), str(job.directory / "s.ckpt")
    with pytest.raises(ValueError, match="names ranks 0, 1: which is this process's"):
        mindspore.get_ckpt_path_with_strategy(*arguments)
    job.monkeypatch.setenv("RANK_ID", "0")
    assert mindspore.get_ckpt_path_with_strategy(*arguments) == str(above / "rank_2/a.ckpt")
    job.monkeypatch.delenv("RANK_ID")
    own = str(above / "rank_2/a.ckpt")
    assert mindspore.get_ckpt_path_with_strategy(own, arguments[1]) == own


def test_paths_that_are_refused(job: Job) -> None:
    with pytest.raises(TypeError, match="'cur_ckpt_path' has to be a string"):
        mindspore.get_ckpt_path_with_strategy(5, "s")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'cur_strategy_path' has to be a string"):
        mindspore.get_ckpt_path_with_strategy("rank_0", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no such file"):
        job.found(0)
    for text in ("first", "²", "9" * 5000):
        job.monkeypatch.setenv("RANK_ID", text)
        with pytest.raises(ValueError, match=f"RANK_ID is '{text}', not a rank"):
            job.found(0)

"""Networks filled from the `.ckpt` files of all ranks."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reshard import mindspore
from tests.support.distributed import ROWS, WHOLE, ranks
from tests.support.reference import AXIS_LENGTH, RandomLayout, layouts, shard_of
from tests.support.strategy_writer import FileLayout, write_strategy_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK_ID", raising=False)
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"w": ROWS}})


def test_a_network_from_the_files_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ranks("r", *np.split(WHOLE, 2))
    network = {"w": np.zeros((4, 12), np.float16)}
    assert mindspore.load_distributed_checkpoint(network, files, None, "rows.ckpt") is True
    np.testing.assert_array_equal(network["w"], WHOLE.astype(np.float16))
    monkeypatch.setenv("RANK_ID", "2")
    network = {"w": np.zeros((2, 6), np.float32)}
    predicted: dict[str, Any] = {"w": ([2, 2], [1, 0], [], 0, True, "")}
    assert mindspore.load_distributed_checkpoint(network, files, predicted, "rows.ckpt") is True
    np.testing.assert_array_equal(network["w"], WHOLE[2:, :6])


def test_a_scalar_from_the_files_of_ranks() -> None:
    scalar = FileLayout((2,), (), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=())
    write_strategy_file(Path("s.ckpt"), {0: {"w": ROWS, "step": scalar}})
    network = {"w": np.zeros((2, 12), np.float32), "step": np.array(0)}
    predicted: dict[str, Any] = {"w": ([2], [0, -1], [], 0), "step": ([2], [], [], 0)}
    mindspore.load_distributed_checkpoint(network, ranks("s", *np.split(WHOLE, 2)), predicted, "s.ckpt", rank_id=1)
    assert network["step"] == np.array(7)


def test_layouts_for_different_numbers_of_devices() -> None:
    """The one for fewer devices is repeated, as ranks count in a device matrix."""
    write_strategy_file(Path("s.ckpt"), {0: {"w": ROWS, "v": ROWS}})
    files = [f"{rank}.ckpt" for rank in range(2)]
    for file, half in zip(files, np.split(WHOLE, 2), strict=True):
        mindspore.save_checkpoint({"w": half, "v": half + 100}, file)
    network = {"w": np.zeros((1, 12), np.float32), "v": np.zeros((2, 12), np.float32)}
    predicted: dict[str, Any] = {"w": ([4], [0, -1], [], 0), "v": ([2], [0, -1], [], 0)}
    mindspore.load_distributed_checkpoint(network, files, predicted, "s.ckpt", rank_id=3)
    np.testing.assert_array_equal(network["w"], WHOLE[3:])
    np.testing.assert_array_equal(network["v"], WHOLE[2:] + 100)


@given(st.data())
def test_networks_get_what_literal_splitting_gives(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("merged")
    shape = (AXIS_LENGTH,) * data.draw(st.integers(1, 3))
    whole = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    source: RandomLayout = data.draw(layouts(data.draw(st.sampled_from([1, 2, 3, 4])), len(shape)))
    target: RandomLayout = data.draw(layouts(data.draw(st.sampled_from([1, 2, 3, 4])), len(shape)))
    assume(not target.optimizer_size and all(len(axes) < 2 for axes in target.tensor_map))  # lists cannot say it
    rank = data.draw(st.integers(0, int(np.prod(target.device_matrix)) - 1))
    try:
        slices = [shard_of(whole, source, each) for each in range(int(np.prod(source.device_matrix)))]
        expected = shard_of(whole, target, rank)
    except ValueError:  # it does not divide
        return
    size = source.optimizer_size
    layout = FileLayout(source.device_matrix, source.tensor_map, True, 1 if size else 0, size, shape)
    write_strategy_file(directory / "s.ckpt", {0: {"w": layout}})
    files = [str(directory / f"{number}.ckpt") for number in range(len(slices))]
    for file, part in zip(files, slices, strict=True):
        mindspore.save_checkpoint({"w": part}, file)
    predicted: dict[str, Any] = {
        "w": (list(target.device_matrix), [axes[0] if axes else -1 for axes in target.tensor_map], [], 0)
    }
    network = {"w": np.zeros_like(expected)}
    mindspore.load_distributed_checkpoint(network, files, predicted, str(directory / "s.ckpt"), rank_id=rank)
    np.testing.assert_array_equal(network["w"], expected)


def test_slices_that_are_on_another_rank_too() -> None:
    """Redundancy was removed: each slice is in one rank's file."""
    twice = FileLayout((2, 2), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 12))
    write_strategy_file(Path("s.ckpt"), {0: {"w": twice}})
    files = ranks("t", *np.split(WHOLE, 2), *np.split(WHOLE, 2))
    for file in files[1:3]:
        mindspore.save_checkpoint({"step": np.array(7)}, file)
    network = {"w": np.zeros((4, 12), np.float32)}
    mindspore.load_distributed_checkpoint(network, files, None, "s.ckpt")
    np.testing.assert_array_equal(network["w"], WHOLE)


def test_one_file_for_two_ranks_that_have_different_slices(tmp_path: Path) -> None:
    files = ranks("d", *np.split(WHOLE, 2))
    with pytest.raises(ValueError, match="d_0.ckpt"):
        mindspore.load_distributed_checkpoint({"w": np.zeros((4, 12), np.float32)}, [files[0]] * 2, None, "rows.ckpt")


def test_an_encrypted_file_without_a_key() -> None:
    files = ranks("e", *np.split(WHOLE, 2), enc_key=b"0123456789abcdef")
    network = {"w": np.zeros((4, 12), np.float32)}
    with pytest.raises(ValueError, match=r"e_0\.ckpt: is encrypted: give its key as 'dec_key', and"):
        mindspore.load_distributed_checkpoint(network, files, None, "rows.ckpt")
    with pytest.raises(ValueError, match=r"e_.\.ckpt: .*'?dec_key'?"):
        mindspore.load_distributed_checkpoint(network, files, None, "rows.ckpt", dec_key=b"fedcba9876543210")


def test_a_network_from_encrypted_files() -> None:
    brain = WHOLE.astype(ml_dtypes.bfloat16)
    files = ranks("e", *np.split(brain, 2), enc_key=b"0123456789abcdef")
    network = {"w": np.zeros((4, 12), ml_dtypes.bfloat16), "none": np.zeros(1)}
    with pytest.warns(UserWarning, match="not in the training strategy or not in the files: none") as warned:
        mindspore.load_distributed_checkpoint(network, files, None, "rows.ckpt", dec_key=b"0123456789abcdef")
    assert warned[0].filename == __file__
    assert network["w"].tobytes() == brain.tobytes()


def test_networks_that_do_not_fit() -> None:
    files = ranks("n", *np.split(WHOLE, 2))

    def load(array: np.ndarray, **options: Any) -> None:
        mindspore.load_distributed_checkpoint({"w": array}, files, None, "rows.ckpt", **options)

    with pytest.raises(RuntimeError, match=r"parameter 'w': has shape \(4, 12\) in the checkpoint"):
        load(np.zeros((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="parameter 'w': is float32 in the checkpoint, int32 in the network"):
        load(np.zeros((4, 12), np.int32))
    with pytest.raises(RuntimeError, match="is float32 in the checkpoint, float16 in the network"):
        load(np.zeros((4, 12), np.float16), strict_load=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"network": None}, TypeError, "a dict of numpy arrays here, not <class 'NoneType'>"),
        ({"network": {"w": 5}}, TypeError, "a network's 'w' has to be a numpy array"),
        ({"checkpoint_filenames": None}, TypeError, "'checkpoint_filenames' has to be a list"),
        ({"checkpoint_filenames": [5]}, ValueError, "has 5 at index 0, not a .ckpt file's name"),
        ({"checkpoint_filenames": ["no.ckpt"]}, ValueError, "has no.ckpt at index 0, which is not a file"),
        ({"checkpoint_filenames": ["f_0.ckpt"]}, ValueError, "is for 2 ranks, 1 files were given"),
        ({"train_strategy_filename": None}, ValueError, "'train_strategy_filename' is needed"),
        ({"train_strategy_filename": "no.ckpt"}, ValueError, "there is no such file"),
        ({"predict_strategy": 5}, ValueError, "has to be a dict of lists"),
        ({"predict_strategy": {"w": 5}}, ValueError, "'predict_strategy' of 'w': has to be a list of the device"),
        ({"predict_strategy": {"w": ([2], [0, -1], [], 1)}}, ValueError, "and 0 for the field"),
        ({"predict_strategy": {"w": ([2], [0, -1], [], 0, True, "g")}}, ValueError, "communication group 'g'"),
        ({"predict_strategy": {"v": ([2], [0, -1], [], 0)}}, ValueError, "has no parameter 'w'"),
        ({"predict_strategy": {"w": ([3], [0, -1], [], 0)}}, ValueError, "3 devices cannot share evenly"),
        ({"dec_key": "x"}, ValueError, "'dec_key' has to be None or bytes"),
        ({"dec_key": b"0123456789abcdef"}, ValueError, "f_0.ckpt: is not encrypted"),
    ],
)
def test_refused_files_of_ranks(options: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {
        "network": {"w": np.zeros((4, 12), np.float32)},
        "checkpoint_filenames": ranks("f", *np.split(WHOLE, 2)),
        "train_strategy_filename": "rows.ckpt",
        "rank_id": 0,
    }
    with pytest.raises(error, match=message):
        mindspore.load_distributed_checkpoint(**arguments | options)


def test_a_rank_that_lacks_a_parameter() -> None:
    files = ranks("l", *np.split(WHOLE, 2))
    mindspore.save_checkpoint({"step": np.array(7)}, files[1])
    with pytest.raises(ValueError, match=r"parameter 'w': \[2:4, 0:12\] of the whole tensor has no .* on rank_1"):
        mindspore.load_distributed_checkpoint({"w": np.zeros((4, 12), np.float32)}, files, None, "rows.ckpt")

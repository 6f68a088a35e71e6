"""The demo's files, against the whole model cut here by plain numpy."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from demo.make_checkpoint import make_demo
from demo.model import Job, stage_parameters, training_state, values
from reshard.core.files.any_format import read_index
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy

COLUMN_CUT = ("wo.weight", "w2.weight")
STATE = {"global_step", "learning_rate", "scale_sense", "epoch_num", "step_num"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo")
    make_demo(parse_url(str(directory)))
    return directory


def contents(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> dtype, shape and bytes of everything in a checkpoint file."""
    file = open_source(parse_url(str(path)))
    try:
        return {
            name: (
                entry.dtype.name,
                entry.shape,
                b"".join(read_bytes(file, extent.offset, extent.length) for extent in entry.extents),
            )
            for name, entry in read_index(file).entries.items()
        }
    finally:
        file.close()


def whole_model(step: int) -> dict[str, np.ndarray]:
    return {parameter.name: values(parameter, step) for parameter in stage_parameters(0, 1)}


def tensor_parallel_half(name: str, whole: np.ndarray, device: int) -> np.ndarray:
    if whole.ndim == 1:
        return whole
    axis = 1 if name.endswith(COLUMN_CUT) else 0
    return np.split(whole, 2, axis=axis)[device]


@pytest.mark.parametrize("rank", range(8))
def test_a_rank_holds_its_half_of_its_stage(demo: Path, rank: int) -> None:
    stage, device = rank // 4, rank % 2
    held = contents(demo / f"checkpoint/rank_{rank}/llama_small-3_1200.ckpt")
    other_layers = {f"layers.{layer}." for layer in ((2, 3), (0, 1))[stage]}
    want = {
        name: tensor_parallel_half(name, whole, device)
        for name, whole in whole_model(1200).items()
        if not any(layer in name for layer in other_layers) and not (stage == 0 and "norm_out" in name)
    }
    assert set(held) == set(want) | STATE
    for name, array in want.items():
        dtype = "Float32" if name.startswith("adam_") else "BFloat16"
        assert held[name] == (dtype, array.shape, array.tobytes()), name


def test_training_state_is_the_same_on_every_rank(demo: Path) -> None:
    for rank in range(8):
        held = contents(demo / f"checkpoint/rank_{rank}/llama_small-3_1200.ckpt")
        assert held["global_step"] == ("Int32", (1,), (1200).to_bytes(4, "little"))
        assert held["epoch_num"] == ("Int64", (), (3).to_bytes(8, "little"))
        assert held["learning_rate"] == ("Float32", (), training_state(3, 1200)["learning_rate"].tobytes())


def test_the_tied_embedding_is_in_the_first_and_the_last_stage_and_equal(demo: Path) -> None:
    first, last = (contents(demo / f"checkpoint/rank_{rank}/llama_small-3_1200.ckpt") for rank in (0, 4))
    assert first["model.tok_embeddings.embedding_weight"] == last["model.tok_embeddings.embedding_weight"]


def test_saving_of_the_later_step_was_interrupted(demo: Path) -> None:
    later = sorted(path.parent.name for path in demo.glob("checkpoint/rank_*/llama_small-4_1600.ckpt"))
    assert later == ["rank_0", "rank_1"]
    name = "model.norm_out.weight"
    assert not np.array_equal(whole_model(1200)[name], whole_model(1600)[name])


def test_strategies_say_what_the_jobs_are(demo: Path) -> None:
    source, target = read_strategy(str(demo / "strategy")), read_strategy(str(demo / "target_strategy"))
    assert (len(source.stages), source.ranks) == (2, range(8))
    assert (len(target.stages), target.ranks) == (1, range(4))
    assert source.parameters == target.parameters == set(whole_model(1200))
    layout = target.stages[0].layouts["model.layers.0.attention.wo.weight"]
    assert (layout.device_matrix, layout.tensor_map, layout.optimizer_shard_size) == ((2, 2), ((), (0,)), 2)


def test_target_shards_cut_replicas_along_the_rows(demo: Path) -> None:
    """Optimizer parallel: of a half of the rows, one data-parallel replica has the upper part, the other the lower."""
    layouts = read_strategy(str(demo / "target_strategy")).stages[0].layouts
    for name, whole in whole_model(1200).items():
        cut = layouts[name].shard_grid(whole.ndim)
        for rank in range(4):
            half = tensor_parallel_half(name, whole, rank % 2)
            want = half if whole.ndim == 1 else np.split(half, 2, axis=0)[rank // 2]
            assert np.array_equal(whole[cut.box_of(rank, whole.shape).as_index()], want), name


def test_it_is_the_same_each_time(demo: Path, tmp_path: Path) -> None:
    make_demo(parse_url(str(tmp_path)))
    assert digests(tmp_path) == digests(demo)


def test_a_larger_job_saves_the_same_model(demo: Path, tmp_path: Path) -> None:
    make_demo(parse_url(str(tmp_path)), Job(stages=4, data_parallel=8, tensor_parallel=2, optimizer_shards=8))
    strategy = read_strategy(str(tmp_path / "strategy"))
    assert (len(strategy.stages), strategy.ranks) == (4, range(64))
    name = "model.layers.3.feed_forward.w2.weight"
    cut = strategy.stages[3].layouts[name].shard_grid(2)
    found = np.empty((128, 352), np.uint16)
    for rank in range(16):
        box = cut.box_of(rank, found.shape)
        dtype, shape, data = contents(tmp_path / f"checkpoint/rank_{48 + rank}/llama_small-3_1200.ckpt")[name]
        assert (dtype, shape) == ("BFloat16", (16, 176)) == ("BFloat16", box.shape)
        found[box.as_index()] = np.frombuffer(data, np.uint16).reshape(shape)
    assert np.array_equal(found, whole_model(1200)[name])


def test_it_is_some_tens_of_megabytes(demo: Path) -> None:
    assert 20e6 < sum(path.stat().st_size for path in demo.rglob("*.ckpt")) < 60e6


def digests(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

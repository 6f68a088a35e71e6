"""Making strategy files for other jobs, and converting to them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from demo.make_checkpoint import make_demo
from reshard.core.conversion.convert import convert
from reshard.core.conversion.make_strategy import make_strategy_file
from reshard.core.errors import InputError, StrategyError
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.derivation import TargetJob, facts_from_strategy
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import case, read_ckpt
from tests.support.plans import make_strategy

WHOLE_MATRIX = ParameterLayout((1,), ((), ()))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo")
    make_demo(parse_url(str(directory)))
    return directory


@pytest.mark.parametrize(
    ("name", "wish"),
    [
        ("made.ckpt", TargetJob(1, 4, 1)),
        ("made.json", TargetJob(2, 2, 3, optimizer_parallel=True, optimizer_threshold_bytes=0)),
    ],
    ids=lambda each: each if isinstance(each, str) else f"{each.data_parallel}x{each.model_parallel}x{each.pipeline}",
)
def test_conversions_to_made_strategies_and_back(demo: Path, tmp_path: Path, name: str, wish: TargetJob) -> None:
    like, made = demo / "strategy", tmp_path / name
    report = make_strategy_file(str(like), str(made), wish, checkpoint=str(demo / "checkpoint"))
    assert (report.source_data_parallel, report.source_model_parallel, report.source_pipeline) == (2, 2, 2)
    assert report.ranks == wish.data_parallel * wish.model_parallel * wish.pipeline
    assert report.unchecked == 0
    to, back = tmp_path / "to", tmp_path / "back"
    here, there = {"source_strategy": str(like)}, {"target_strategy": str(made)}
    convert(build_request(source=str(demo / "checkpoint"), target=str(to), **here, **there))
    convert(build_request(source=str(to), target=str(back), source_strategy=str(made), target_strategy=str(like)))
    for rank in range(8):
        [first], [second] = (demo / f"checkpoint/rank_{rank}").glob("*3_1200*"), (back / f"rank_{rank}").iterdir()
        assert read_ckpt(first) == read_ckpt(second)


def test_a_json_strategy_tells_shapes() -> None:
    source = read_strategy(str(case(7010).directory / "src_strategy.json"))
    assert facts_from_strategy(source).keys() == source.parameters


def test_one_stage_of_several_is_refused(demo: Path, tmp_path: Path) -> None:
    for rank in (0, 7):
        path = demo / f"strategy/ckpt_strategy_rank_{rank}_rank_{rank}.ckpt"
        with pytest.raises(StrategyError, match=rf"is the strategy of stage {rank // 4} alone"):
            make_strategy_file(str(path), str(tmp_path / "made.ckpt"), TargetJob(1, 1, 1))


def test_nothing_is_overwritten_unasked(demo: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.ckpt"
    made.write_text("precious")
    with pytest.raises(InputError, match="already exists"):
        make_strategy_file(str(demo / "strategy"), str(made), TargetJob(1, 1, 1))
    assert made.read_text() == "precious"
    make_strategy_file(str(demo / "strategy"), str(made), TargetJob(1, 1, 1), overwrite=True)
    assert read_strategy(str(made)).ranks == range(1)
    with pytest.raises(InputError, match="is a directory"):
        make_strategy_file(str(demo / "strategy"), str(tmp_path), TargetJob(1, 1, 1))
    with pytest.raises(InputError, match="lies inside"):
        make_strategy_file(str(demo / "strategy"), str(demo / "strategy/made.ckpt"), TargetJob(1, 1, 1))


def test_several_device_axes_on_one_tensor_axis_want_protobuf(tmp_path: Path) -> None:
    write_strategy(make_strategy({"l.0.wq": WHOLE_MATRIX}), str(tmp_path / "like.ckpt"))
    wish = TargetJob(2, 2, 1, cuts=["*=0:data,0:model"])
    with pytest.raises(StrategyError, match=re.escape("write it under a name that does not end in .json")):
        make_strategy_file(str(tmp_path / "like.ckpt"), str(tmp_path / "made.json"), wish)
    make_strategy_file(str(tmp_path / "like.ckpt"), str(tmp_path / "made.ckpt"), wish)
    assert len(read_strategy(str(tmp_path / "made.ckpt")).ranks) == 4


def test_json_strategies_tell_made_shapes(demo: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    make_strategy_file(str(demo / "strategy"), str(made), TargetJob(1, 1, 1), checkpoint=str(demo / "checkpoint"))
    layouts = json.loads(made.read_text())["parallel_layout_item"]
    assert layouts["0-model.tok_embeddings.embedding_weight"]["tensor_shape"] == [4096, 128]


def test_a_unified_checkpoint_tells_shapes(demo: Path, tmp_path: Path) -> None:
    like, unified = str(demo / "strategy"), str(tmp_path / "unified")
    options = {"layout": "unified", "select": "weights-only"}
    convert(build_request(source=str(demo / "checkpoint"), target=unified, source_strategy=like, **options))
    report = make_strategy_file(like, str(tmp_path / "made.ckpt"), TargetJob(1, 4, 1), checkpoint=unified)
    assert report.unchecked == report.parameters * 2 // 3  # the moments are not in it
    with pytest.raises(StrategyError, match="axis 0 has 4096 elements, which 3 devices cannot share evenly"):
        make_strategy_file(like, str(tmp_path / "other.ckpt"), TargetJob(1, 3, 1), checkpoint=unified)


@pytest.mark.parametrize("name", ["made.ckpt", "made.json"])
def test_a_directory_of_whole_tensors_needs_no_strategy(tmp_path: Path, name: str) -> None:
    (tmp_path / "hf").mkdir()
    shapes = {"embed": (7, 8), "layers.0.q_proj": (8, 8), "layers.1.q_proj": (8, 8), "layers.0.norm": (8,), "step": ()}
    values = {key: np.random.default_rng(1).random(shape, np.float32) for key, shape in shapes.items()}
    save_file(values, tmp_path / "hf/model.safetensors")
    (tmp_path / "hf/config.json").write_text("{}")
    like, made = str(tmp_path / "hf"), tmp_path / name
    wish = TargetJob(2, 4, 2, cuts=("*q_proj=0", "embed=1"), places=("embed=first", "step=all"))
    report = make_strategy_file(like, str(made), wish)
    assert (report.source_model_parallel, report.ranks, report.unchecked) == (1, 16, 0)
    convert(build_request(source=like, target=str(tmp_path / "out"), target_strategy=str(made), verify="content"))
    for rank, layer in ((3, 0), (13, 1)):
        shard = load_file(tmp_path / f"out/rank_{rank}/checkpoint_{rank}.safetensors")
        cut = values[f"layers.{layer}.q_proj"][rank % 4 * 2 :][:2]
        assert shard[f"layers.{layer}.q_proj"].tobytes() == cut.tobytes()
        assert ("embed" in shard, "layers.0.norm" in shard, "step" in shard) == (layer == 0, layer == 0, True)
    with pytest.raises(StrategyError, match=r"/hf: cannot be converted .*\n  - axis 0 has 7 elements, which 4 devices"):
        make_strategy_file(like, str(tmp_path / "other"), TargetJob(1, 4, 1, cuts=("embed=0",)))
    with pytest.raises(StrategyError, match=r"/hf: stage 1 would hold no parameter: 'places' moves all whose names"):
        make_strategy_file(like, str(tmp_path / "other"), TargetJob(1, 1, 2, places=("*=first",)))


def test_a_unified_checkpoint_of_other_names_is_refused(demo: Path, tmp_path: Path) -> None:
    save_file({"h.0.weight": np.ones((4, 4), np.float32)}, tmp_path / "model.safetensors")
    made = tmp_path / "made/strategy.ckpt"
    message = r"none of the parameters of .*, so .* it has 'h\.0\.weight', say, the strategy 'adam_m\.model\..*'\. Name"
    with pytest.raises(InputError, match=message):
        make_strategy_file(str(demo / "strategy"), str(made), TargetJob(1, 4, 1), checkpoint=str(tmp_path))
    assert not made.parent.exists()

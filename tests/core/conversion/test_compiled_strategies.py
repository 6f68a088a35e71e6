"""Strategies that MindSpore's compiler wrote on Ascend, and checkpoints sharded by them."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.make_strategy import make_strategy_file
from reshard.core.request.conversion import build_request
from reshard.core.strategy.derivation import TargetJob
from reshard.core.strategy.files import read_strategy, write_strategy
from tests.support.checkpoints import Contents, ckpt, read_ckpt, read_tree
from tests.support.places import FIXTURES
from tests.support.reference import RandomLayout, shard_of
from tests.support.strategy_writer import read_protobuf_strategy

FOUR, EIGHT = (FIXTURES / "compiled_strategies" / f"strategy_{count}_npus.ckpt" for count in (4, 8))
Layouts = dict[str, RandomLayout]


def layouts_in(path: Path) -> list[Layouts]:
    """Of each stage the layouts, read by protobuf's own classes."""
    stages: list[Layouts] = [{}, {}]
    for item in read_protobuf_strategy(path)["parallelLayoutItem"]:
        stage, _, name = item["paramName"].partition("-")
        fields = item["parallelLayouts"]
        [matrix], [tensor_map] = fields["devMatrix"], fields["tensorMap"]
        axes = tuple(() if axis == -1 else (axis,) for axis in tensor_map["dim"])
        stages[int(stage)][name] = RandomLayout(tuple(matrix["dim"]), axes, ())
    return stages


def whole_model() -> dict[str, np.ndarray]:
    """Tensors whose elements are all different; hidden size 16, as that of the job was."""
    axis_counts = {name: len(layout.tensor_map) for stage in layouts_in(FOUR) for name, layout in stage.items()}
    return {
        name: (np.arange(16**count, dtype=np.float32) + 1000 * number).reshape((16,) * count)
        for number, (name, count) in enumerate(axis_counts.items())
    }


def sharded(path: Path) -> dict[int, Contents]:
    """What the ranks of a job hold, by the slow reference."""
    model, stages = whole_model(), layouts_in(path)
    devices = 2 if path == FOUR else 4
    result: dict[int, Contents] = {}
    for rank in range(len(stages) * devices):
        stage, stage_rank = divmod(rank, devices)
        shards = {name: shard_of(model[name], layout, stage_rank) for name, layout in stages[stage].items()}
        result[rank] = {name: ("Float32", shard.shape, shard.tobytes()) for name, shard in shards.items()}
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The whole model as a file."""
    return ckpt(tmp_path_factory.mktemp("whole") / "model.ckpt", **whole_model())


@pytest.mark.parametrize("path", [FOUR, EIGHT], ids=["four", "eight"])
def test_the_layouts_are_read(path: Path) -> None:
    strategy = read_strategy(str(path))
    assert strategy.merged
    assert [stage.stage for stage in strategy.stages] == [0, 1]
    for stage, want in zip(strategy.stages, layouts_in(path), strict=True):
        assert {name: (each.device_matrix, each.tensor_map) for name, each in stage.layouts.items()} == {
            name: (each.device_matrix, each.tensor_map) for name, each in want.items()
        }
        assert not any(each.optimizer_shard_size or each.param_split_shape for each in stage.layouts.values())
    shared = set(strategy.stages[0].layouts) & set(strategy.stages[1].layouts)
    kinds = ("", "accu_grads.", "adam_m.", "adam_v.")
    assert shared == {f"{kind}backbone.embedding.word_embedding.embedding_table" for kind in kinds}


def test_they_are_written_as_they_were(tmp_path: Path) -> None:
    written = tmp_path / "again.ckpt"
    write_strategy(read_strategy(str(EIGHT)), str(written))
    assert layouts_in(written) == layouts_in(EIGHT)


@pytest.mark.parametrize("path", [FOUR, EIGHT], ids=["four", "eight"])
def test_a_whole_model_is_sharded(path: Path, whole: str, tmp_path: Path) -> None:
    convert(build_request(source=whole, target=str(tmp_path / "out"), target_strategy=str(path)))
    assert read_tree(tmp_path / "out") == sharded(path)


@pytest.mark.parametrize("layout", ["ranks", "checkpoint2"])
def test_there_and_back(layout: str, whole: str, tmp_path: Path) -> None:
    """Whole tensors on eight ranks, on four, on six by a strategy made from the former, and whole again."""
    convert(build_request(source=whole, target=str(tmp_path / "eight"), target_strategy=str(EIGHT)))
    six = tmp_path / "six.ckpt"
    make_strategy_file(str(EIGHT), str(six), TargetJob(3, 2, 1))
    form: dict[str, object] = {"layout": layout}
    if layout == "checkpoint2":
        form |= {"iteration": "40", "common": ["global_step=40"]}
    source = {"source": str(tmp_path / "eight"), "source_strategy": str(EIGHT)}
    convert(build_request(**source, target=str(tmp_path / "four"), target_strategy=str(FOUR), **form))
    source = {"source": str(tmp_path / "four")} | ({"source_strategy": str(FOUR)} if layout == "ranks" else {})
    convert(build_request(**source, target=str(tmp_path / "six"), target_strategy=str(six)))
    source = {"source": str(tmp_path / "six"), "source_strategy": str(six)}
    convert(build_request(**source, target=str(tmp_path / "one"), verify="content"))
    made = read_tree(tmp_path / "one")[0]
    assert {name: each for name, each in made.items() if name != "global_step"} == read_ckpt(Path(whole))

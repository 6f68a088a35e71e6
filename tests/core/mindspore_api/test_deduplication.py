"""Redundancy removed by ModelCheckpoint; `make conformance` compares its choice and its files with MindSpore's."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard import mindspore
from reshard.core.conversion.convert import convert
from reshard.core.errors import StrategyError
from reshard.core.mindspore_api.deduplication import omitted_parameters
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.mindspore import CheckpointConfig, ModelCheckpoint, RunContext
from tests.support.checkpoints import ALL_CASES, Case, case, read_ckpt, read_rank, read_tree

TWO_REPLICAS = ParameterLayout((2, 2), ((0,), ()))
FOUR_REPLICAS = ParameterLayout((4,), ((),))


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK_ID", "RANK_SIZE"):
        monkeypatch.delenv(name, raising=False)


def state(network: Any) -> RunContext:
    return RunContext(train_network=network, cur_epoch_num=1, cur_step_num=1, batch_num=1)


def strategy_of(*stages: dict[str, ParameterLayout], merged: bool = True, first: int = 0) -> Strategy:
    return Strategy(tuple(StageStrategy(first + n, each) for n, each in enumerate(stages)), "job.ckpt", merged)


def test_slices_are_dealt_to_those_that_share_them_in_the_order_of_names() -> None:
    layouts = {"d": TWO_REPLICAS, "c": FOUR_REPLICAS, "b": TWO_REPLICAS, "a": FOUR_REPLICAS, "e": FOUR_REPLICAS}
    strategy = strategy_of(layouts)
    assert [sorted(layouts.keys() - omitted_parameters(strategy, rank)) for rank in range(4)] == [
        ["a", "b"],
        ["b", "c"],
        ["d", "e"],
        ["d"],
    ]


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda each: each.directory.name)
def test_each_slice_is_saved_once_in_its_stage(conversion: Case) -> None:
    strategy = read_strategy(str(conversion.directory / "src_strategy.ckpt"))
    for stage in strategy.stages:
        saved: Counter[tuple[str, tuple[int, ...]]] = Counter()
        grids = {name: layout.shard_grid(len(layout.tensor_map)) for name, layout in stage.layouts.items()}
        for stage_rank, rank in enumerate(strategy.stage_ranks(stage)):
            for name in stage.layouts.keys() - omitted_parameters(strategy, rank):
                saved[name, grids[name].cell_of(stage_rank)] += 1
        assert saved == {(name, cell): 1 for name, grid in grids.items() for cell in grid.owners}


@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
@pytest.mark.parametrize("number", [7008, 7010, 7011, 7018])
def test_what_a_job_saves_converts_like_the_whole_checkpoint(tmp_path: Path, number: int, format: str) -> None:
    conversion = case(number)
    strategy = str(conversion.directory / "src_strategy.ckpt")
    ranks = read_tree(conversion.directory / "src")
    for rank in ranks:
        [file] = (conversion.directory / "src" / f"rank_{rank}").iterdir()
        network = mindspore.load_checkpoint(str(file), format=file.suffix.removeprefix("."))
        config = CheckpointConfig(remove_redundancy=True, format=format, append_info=["epoch_num"])
        folder = str(tmp_path / "saved" / f"rank_{rank}")
        ModelCheckpoint("net", folder, config, strategy=strategy, rank_id=rank).step_end(state(network))
    saved = read_tree(tmp_path / "saved")
    omitted = {rank: omitted_parameters(read_strategy(strategy), rank) for rank in ranks}
    assert any(omitted.values())
    assert {rank: set(of_rank) for rank, of_rank in saved.items()} == {
        rank: {*of_rank, "epoch_num"} - omitted[rank] for rank, of_rank in ranks.items()
    }
    report = convert(conversion.request(tmp_path / "out", source=str(tmp_path / "saved"), format="ckpt"))
    converted = read_tree(tmp_path / "out")
    for of_rank in converted.values():
        of_rank.pop("epoch_num", None)
    assert converted == {
        rank: {name: value for name, value in of_rank.items() if name != "epoch_num"}
        for rank, of_rank in conversion.want.items()
    }
    assert any("redundancy was removed from the source" in note for note in report.notes)


class Job:
    """Two ranks that hold the same two parameters."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.strategy = str(directory / "strategy.ckpt")
        both = ParameterLayout((2,), ((),))
        write_strategy(strategy_of({"a": both, "b": both}), self.strategy)
        self.network = {name: np.full(3, 7, np.float32) for name in ("a", "b", "outside")}

    def checkpoint(self, rank: int | None = 1, **others: Any) -> ModelCheckpoint:
        config = CheckpointConfig(**{"remove_redundancy": True} | others.pop("config", {}))
        arguments = {"strategy": self.strategy, "rank_id": rank} | others
        return ModelCheckpoint("net", str(self.directory / "rank"), config, **arguments)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_rank_of_the_environment(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "1")
    checkpoint = job.checkpoint(None)
    checkpoint.step_end(state(job.network))
    assert set(read_ckpt(Path(checkpoint.latest_ckpt_file_name))) == {"b", "outside"}


def test_the_strategy_as_layouts(job: Job) -> None:
    checkpoint = job.checkpoint(strategy=mindspore.build_searched_strategy(job.strategy))
    checkpoint.step_end(state(job.network))
    assert set(read_ckpt(Path(checkpoint.latest_ckpt_file_name))) == {"b", "outside"}


def test_a_strategy_that_compiling_the_network_writes(job: Job) -> None:
    compiled = Path(job.strategy).rename(job.directory / "compiled.ckpt")
    checkpoint = job.checkpoint(config={"save_checkpoint_steps": 5})
    checkpoint.begin(state(job.network))
    compiled.rename(job.strategy)
    checkpoint.end(state(job.network))
    assert set(read_ckpt(Path(checkpoint.latest_ckpt_file_name))) == {"b", "outside"}


def test_in_the_background(job: Job) -> None:
    for way in (True, "process"):
        with job.checkpoint(config={"async_save": way}) as checkpoint:
            checkpoint.step_end(state(job.network))
        assert set(read_ckpt(Path(checkpoint.latest_ckpt_file_name))) == {"b", "outside"}


def test_a_breakpoint_has_all_slices(job: Job) -> None:
    config = {"exception_save": True, "save_checkpoint_steps": 5}

    def train() -> None:
        with job.checkpoint(config=config) as checkpoint:
            checkpoint.step_end(state(job.network))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    [saved] = (job.directory / "rank").iterdir()
    assert set(read_ckpt(saved)) == {"a", "b", "outside"}


def test_a_rank_to_which_nothing_falls(tmp_path: Path) -> None:
    strategy = str(tmp_path / "strategy.ckpt")
    write_strategy(strategy_of({"w": ParameterLayout((2,), ((),))}), strategy)
    for rank in range(2):
        config = CheckpointConfig(remove_redundancy=True, format="safetensors")
        folder = str(tmp_path / "saved" / f"rank_{rank}")
        network = {"w": np.arange(3, dtype=np.float32)}
        ModelCheckpoint("net", folder, config, strategy=strategy, rank_id=rank).step_end(state(network))
    checkpoint = ModelCheckpoint(
        "net", str(tmp_path / "ckpt"), CheckpointConfig(remove_redundancy=True), strategy=strategy, rank_id=1
    )
    with pytest.raises(ValueError, match=r"a .ckpt file cannot be empty: set append_info=\['step_num'\]"):
        checkpoint.step_end(state(network))
    assert [set(of_rank) for of_rank in read_tree(tmp_path / "saved").values()] == [{"w"}, set()]
    request = case(7008).request(
        tmp_path / "out", source=str(tmp_path / "saved"), source_strategy=strategy, target_strategy="", format="ckpt"
    )
    convert(request)
    assert read_rank(tmp_path / "out", 0)["w"][2] == np.arange(3, dtype=np.float32).tobytes()


class TestRefused:
    def test_without_a_strategy(self, job: Job) -> None:
        with pytest.raises(
            TypeError, match="which ranks share a slice is not known: give ModelCheckpoint .* 'strategy'"
        ):
            job.checkpoint(strategy=None)

    def test_without_a_rank(self, job: Job) -> None:
        with pytest.raises(TypeError, match="which rank this is, is not known: give 'rank_id', or set RANK_ID"):
            job.checkpoint(None)

    def test_another_rank_than_the_environments(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK_ID", "0")
        with pytest.raises(ValueError, match="'rank_id' is 1, the environment's RANK_ID is 0"):
            job.checkpoint(1)

    @pytest.mark.parametrize("rank", [2, -1])
    def test_a_rank_that_the_strategy_lacks_is_refused_after_the_first_step(self, job: Job, rank: int) -> None:
        checkpoint = job.checkpoint(rank, config={"save_checkpoint_steps": 500})
        with pytest.raises(ValueError, match=f"describes ranks 0 to 1, not rank {rank}: give the strategy of this job"):
            checkpoint.step_end(state(job.network))
        assert not list((job.directory / "rank").iterdir())

    def test_no_strategy_file(self, job: Job) -> None:
        checkpoint = job.checkpoint(strategy=str(job.directory / "nowhere"))
        with pytest.raises(ValueError, match="'strategy': there is no such file"):
            checkpoint.step_end(state(job.network))

    @pytest.mark.parametrize(
        ("size", "stages", "merged", "first", "fits"),
        [
            ("4", 1, True, 0, True),
            ("2", 1, True, 0, False),
            ("8", 1, True, 0, False),
            ("8", 2, True, 0, True),
            ("4", 1, False, 0, True),
            ("8", 1, False, 0, True),
            ("8", 1, False, 1, True),
            ("4", 1, False, 1, False),
            ("6", 1, False, 0, False),
        ],
    )
    def test_a_job_of_another_size(
        self, monkeypatch: pytest.MonkeyPatch, size: str, stages: int, merged: bool, first: int, fits: bool
    ) -> None:
        monkeypatch.setenv("RANK_SIZE", size)
        strategy = strategy_of(*[{"w": FOUR_REPLICAS}] * stages, merged=merged, first=first)
        if fits:
            omitted_parameters(strategy, strategy.ranks.start)
            return
        with pytest.raises(StrategyError, match=rf"describes ranks .*RANK_SIZE is {size}: give the strategy of this"):
            omitted_parameters(strategy, strategy.ranks.start)

    def test_a_size_that_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK_SIZE", "many")
        with pytest.raises(StrategyError, match="RANK_SIZE is 'many', not a number of ranks"):
            omitted_parameters(strategy_of({"w": FOUR_REPLICAS}), 0)

    def test_a_layout_that_contradicts_itself(self) -> None:
        with pytest.raises(StrategyError, match="job.ckpt: parameter 'w': its tensor map names device axis 3"):
            omitted_parameters(strategy_of({"w": ParameterLayout((2,), ((3,),))}), 0)

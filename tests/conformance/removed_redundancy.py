"""Checkpoints without redundancy: MindSpore's, converted by reshard, and the same of reshard's ModelCheckpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.mindspore_api.deduplication import omitted_parameters
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import Strategy
from reshard.mindspore import CheckpointConfig, ModelCheckpoint, RunContext, load_checkpoint
from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import Case, Contents, case, read_safetensors, read_tree

CASES = (7008, 7010, 7011, 7018)
"""With optimizer shards, and with pipeline stages that share a parameter."""


def check_removed_redundancy(judge: Judge, directory: Path) -> list[str]:
    """What is not as it should be."""
    problems = []
    for number in CASES:
        problems += [f"case {number}: {problem}" for problem in _check(judge, directory / str(number), case(number))]
    return problems


def _check(judge: Judge, directory: Path, conversion: Case) -> Iterator[str]:
    directory.mkdir(parents=True)
    strategy = read_strategy(str(conversion.directory / "src_strategy.ckpt"))
    kept = _kept(judge, directory, strategy)
    for rank in strategy.ranks:
        ours = strategy.stage_of(rank).layouts.keys() - omitted_parameters(strategy, rank)
        if ours != kept[rank]:
            yield f"rank {rank}: saves {sorted(ours)}, with MindSpore {sorted(kept[rank])}"
    contents = read_tree(conversion.directory / "src")
    saved = {
        rank: {name: value for name, value in of_rank.items() if name not in strategy.parameters or name in kept[rank]}
        for rank, of_rank in contents.items()
    }
    if sum(map(len, saved.values())) == sum(map(len, contents.values())):
        yield "nothing is left out: it proves nothing"
    for format in ("ckpt", "safetensors"):
        for rank, of_rank in saved.items():
            _save(judge, directory / format / f"rank_{rank}", rank, of_rank, format)
            yield from _differences(conversion, directory, rank, format)
        options = {"source": str(directory / format), "format": "ckpt"}
        try:
            report = convert(conversion.request(directory / f"out_{format}", **options))
        except InputError as error:
            yield f".{format}: {error}"
            continue
        if read_tree(directory / f"out_{format}") != conversion.want:
            yield f".{format}: other contents than those of the whole checkpoint"
        if not any("redundancy was removed from the source" in note for note in report.notes):
            yield f".{format}: it is not said that redundancy was removed: {report.notes}"


def _differences(conversion: Case, directory: Path, rank: int, format: str) -> Iterator[str]:
    """What ModelCheckpoint saves otherwise than MindSpore."""
    [source] = (conversion.directory / "src" / f"rank_{rank}").iterdir()
    network = load_checkpoint(str(source), format=source.suffix.removeprefix("."))
    checkpoint = ModelCheckpoint(
        "net",
        str(directory / f"trained_{format}" / f"rank_{rank}"),
        CheckpointConfig(remove_redundancy=True, format=format),
        strategy=str(conversion.directory / "src_strategy.ckpt"),
        rank_id=rank,
    )
    checkpoint.step_end(RunContext(train_network=network, cur_epoch_num=1, cur_step_num=1, batch_num=1))
    ours, theirs = Path(checkpoint.latest_ckpt_file_name), directory / format / f"rank_{rank}" / f"net{rank}.{format}"
    if format == "ckpt" and ours.read_bytes() != theirs.read_bytes():
        yield f"rank {rank}: ModelCheckpoint's .ckpt has other bytes"
    if format == "safetensors" and _read(ours) != _read(theirs):
        yield f"rank {rank}: ModelCheckpoint's .safetensors differs"


def _read(path: Path) -> tuple[dict[str, str], Contents]:
    with safe_open(path, "numpy") as file:
        return file.metadata(), read_safetensors(path)


def _kept(judge: Judge, directory: Path, strategy: Strategy) -> dict[int, set[str]]:
    """Which parameters MindSpore lets each rank save, stage by stage as its ranks do."""
    kept: dict[int, set[str]] = {}
    for stage in strategy.stages:
        name = f"stage_{stage.stage}.ckpt"
        write_strategy(Strategy((stage,), name, merged=False), str(directory / name))
        first = strategy.stage_ranks(stage).start
        groups = _called(judge, directory, "get_parameter_redundancy", [name], {"initial_rank": first})
        chosen = _called(judge, directory, "remove_param_redundancy", [groups], {})
        kept |= {rank: set(chosen.get(rank, ())) for rank in strategy.stage_ranks(stage)}
    return kept


def _save(judge: Judge, folder: Path, rank: int, contents: Contents, format: str) -> None:
    folder.mkdir(parents=True)
    parameters = {name: {"$parameter": (name, *value)} for name, value in contents.items()}
    options = {"format": format, "remove_redundancy": True}
    _called(judge, folder, "save_checkpoint", [parameters, f"net{rank}.{format}"], options)


def _called(judge: Judge, directory: Path, function: str, arguments: list[Any], options: dict[str, Any]) -> Any:
    answer = judge.call(directory, function, repr((arguments, options)))
    if "error" in answer:
        raise RuntimeError(f"{function}: {answer}")
    return answer["value"]

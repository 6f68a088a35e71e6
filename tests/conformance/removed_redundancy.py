"""Sources without redundancy, each slice on the rank that MindSpore chooses for it, converted by reshard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import Strategy
from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import Case, Contents, case, read_tree

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

"""Strategies that reshard made, as MindSpore reads them: it converts to them as reshard does, and back again."""

from collections.abc import Iterator
from pathlib import Path

from demo.make_checkpoint import make_demo
from demo.model import Job
from reshard.core.conversion.convert import convert
from reshard.core.conversion.make_strategy import make_strategy_file
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.derivation import TargetJob
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.merging import merge_strategies
from reshard.core.strategy.model import Strategy
from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import read_tree

SOURCE = Job(stages=2, data_parallel=2, tensor_parallel=2)
WISHES = (
    ("made.json", TargetJob(1, 4, 1)),
    ("made.ckpt", TargetJob(4, 2, 1, optimizer_parallel=True, optimizer_threshold_bytes=0)),
)
"""Their numbers of devices divide the source's, or it them: MindSpore refuses others."""


def check_made_strategies(judge: Judge, directory: Path) -> list[str]:
    """What is not as it should be."""
    make_demo(parse_url(str(directory)), SOURCE)
    for path in (directory / "checkpoint").glob("rank_*/*-4_*"):  # MindSpore would take them
        path.unlink()
    write_strategy(read_strategy(str(directory / "strategy")), str(directory / "like.ckpt"))
    problems = []
    for number, (name, wish) in enumerate(WISHES):
        found = [*_check(judge, directory, directory / str(number) / name, wish)]
        problems += [f"{wish.data_parallel} x {wish.model_parallel} x {wish.pipeline}: {problem}" for problem in found]
    return problems


def _check(judge: Judge, directory: Path, made: Path, wish: TargetJob) -> Iterator[str]:
    source, like = directory / "checkpoint", directory / "like.ckpt"
    theirs, ours, back = (made.parent / name for name in ("theirs", "ours", "back"))
    for folder in (made.parent, theirs, back):
        folder.mkdir()
    make_strategy_file(str(like), str(made), wish, checkpoint=str(source))
    judge.transform(source, theirs, like, made)
    there = {"source_strategy": str(like), "target_strategy": str(made)}
    convert(build_request(source=str(source), target=str(ours), **there))
    if read_tree(theirs) != read_tree(ours):
        yield "MindSpore converts to it otherwise"
    judge.transform(theirs, back, made, like)
    if read_tree(back) != read_tree(source):
        yield "MindSpore does not convert it back to what it was"
    if not wish.optimizer_parallel:
        job = Job(wish.pipeline, wish.data_parallel, wish.model_parallel)
        compiled = merge_strategies([job.strategy(stage) for stage in range(job.stages)])
        if _cuts(compiled) != _cuts(read_strategy(str(made))):
            yield "parameters are not cut as those of a compiled job"


def _cuts(strategy: Strategy) -> list[dict[str, object]]:
    """Per stage the cells that each rank holds of each parameter."""
    return [
        {name: layout.shard_grid(len(layout.tensor_map)).cells.tolist() for name, layout in stage.layouts.items()}
        for stage in strategy.stages
    ]

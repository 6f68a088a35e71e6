"""The plan of a very large conversion, from records of files that do not exist: `python -m benchmarks.planning STAGES`.

Prints as JSON how long it took to build the plan with its proof of coverage, to add up what every rank has to
read, and to derive the reads of three ranks; building the records is not in it.
"""

import json
import math
import sys
import time

from benchmarks.models import FLOAT
from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import build_plan
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Extent, Shape

_SOURCE_RANKS = 4096
_TARGET_RANKS = 3072
_PARAMETERS = 2000
_TENSOR_PARALLEL = 8
_SHAPE = (12288, 1536)  # divides by every cut below


def main() -> None:
    """The command."""
    stages = int(sys.argv[1])
    source, target = _strategy(_SOURCE_RANKS, stages), _strategy(_TARGET_RANKS, stages)
    inputs = PlanInputs(_catalog(source), source, target, CheckpointFormat.CKPT)
    started = time.perf_counter()
    plan = build_plan(inputs)  # proves the coverage
    sources = sum(len(totals.source_ranks) for totals in plan.totals)
    reads = sum(
        len(parameter.reads)
        for rank in (0, _TARGET_RANKS // 2, _TARGET_RANKS - 1)
        for parameter in plan.rank_plan(rank).parameters
    )
    seconds = time.perf_counter() - started
    figures = {
        "ranks": len(plan.totals),
        "read_bytes": plan.read_bytes,
        "files": sources,
        "reads_of_three_ranks": reads,
    }
    print(json.dumps({"plan_seconds": seconds} | figures))


def _strategy(ranks: int, stages: int) -> Strategy:
    """Parameters dealt out to stages, in six cuts: by rows, by columns, not; with and without optimizer shards."""
    data_parallel = ranks // stages // _TENSOR_PARALLEL
    layouts = [
        ParameterLayout((data_parallel, _TENSOR_PARALLEL), tensor_map, True, step, size)
        for tensor_map in (((0,), ()), ((), (0,)), ((), ()))
        for step, size in ((0, 0), (_TENSOR_PARALLEL, data_parallel))
    ]
    names: list[dict[str, ParameterLayout]] = [{} for _ in range(stages)]
    for number in range(_PARAMETERS):
        names[number * stages // _PARAMETERS][f"blocks.{number}.weight"] = layouts[number % len(layouts)]
    return Strategy(tuple(StageStrategy(stage, held) for stage, held in enumerate(names)), origin="the benchmarks")


def _catalog(strategy: Strategy) -> CheckpointCatalog:
    records = {}
    for stage in strategy.stages:
        entries = {name: _entry(name, layout) for name, layout in stage.layouts.items()}
        # as in a catalog of real files: what is laid out alike shares one index
        index = FileIndex(CheckpointFormat.CKPT, sum(entry.size_bytes for entry in entries.values()), entries)
        for rank in strategy.stage_ranks(stage):
            records[rank] = CatalogRecord(rank, f"/source/rank_{rank}/model.ckpt", index.size_bytes, "1", index)
    return CheckpointCatalog("/source", CheckpointFormat.CKPT, None, records)


def _entry(name: str, layout: ParameterLayout) -> TensorEntry:
    shard: Shape = tuple(length // pieces for length, pieces in zip(_SHAPE, layout.shard_grid(2).pieces, strict=True))
    return TensorEntry(name, FLOAT, shard, (Extent(0, math.prod(shard) * FLOAT.itemsize),))


if __name__ == "__main__":
    main()

"""Writes the demo: `python -m demo.make_checkpoint DIRECTORY`.

    checkpoint/rank_{r}/llama_small-3_1200.ckpt                      8 ranks: 2 stages x 2 data x 2 tensor parallel
    checkpoint/rank_{0,1}/llama_small-4_1600.ckpt                    a later step, whose saving was interrupted
    strategy/ckpt_strategy_rank_{r}_rank_{r}.ckpt                    how those ranks cut the model
    target_strategy/ckpt_strategy_rank_{r}_rank_{r}.ckpt             4 ranks: 2 data x 2 tensor, optimizer parallel

The later step is there because it happens: reshard has to take the newest step that every rank has. Options make the
training job larger: `--stages 4 --data-parallel 8 --tensor-parallel 2 --optimizer-shards 8` is one of 64 ranks.
"""

import argparse
from collections.abc import Mapping

import numpy as np

from demo.model import Job, Parameter, stage_parameters, training_state, values
from reshard.core.files.any_format import plan_file
from reshard.core.files.model import CheckpointFormat, OutputEntry
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_file
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.dtypes import DType, dtype_from_name

SOURCE = Job(stages=2, data_parallel=2, tensor_parallel=2)
TARGET = Job(stages=1, data_parallel=2, tensor_parallel=2, optimizer_shards=2)
PREFIX = "llama_small"
COMPLETE = (3, 1200)
INTERRUPTED = (4, 1600)
_RANKS_SAVED_BEFORE_INTERRUPTION = range(2)

Shards = Mapping[str, tuple[DType, np.ndarray]]
"""Parameter name -> its dtype, and what one rank holds of it."""


def make_demo(directory: Location, job: Job = SOURCE) -> None:
    """Writes everything below `directory`, the checkpoint as `job` saves it."""
    _write_strategies(job, directory.child("strategy"))
    _write_strategies(TARGET, directory.child("target_strategy"))
    _write_step(directory.child("checkpoint"), job, COMPLETE, job.ranks)
    _write_step(directory.child("checkpoint"), job, INTERRUPTED, _RANKS_SAVED_BEFORE_INTERRUPTION)


def _write_strategies(job: Job, directory: Location) -> None:
    for rank in job.ranks:
        location = directory.child(f"ckpt_strategy_rank_{rank}_rank_{rank}.ckpt")
        write_strategy(job.strategy(job.stage_of(rank)), str(location))


def _write_step(directory: Location, job: Job, at: tuple[int, int], ranks: range) -> None:
    epoch, step = at
    state = {name: (_dtype_of(array), array) for name, array in training_state(epoch, step).items()}
    for rank in ranks:
        parameters = stage_parameters(job.stage_of(rank), job.stages)
        shards = {parameter.name: (parameter.dtype, _shard(parameter, job, step, rank)) for parameter in parameters}
        _write_file(directory.child(f"rank_{rank}", f"{PREFIX}-{epoch}_{step}.ckpt"), shards | state)


def _shard(parameter: Parameter, job: Job, step: int, rank: int) -> np.ndarray:
    cut = job.layout(parameter).shard_grid(len(parameter.shape))
    box = cut.box_of(rank % job.devices_per_stage, parameter.shape)
    return values(parameter, step)[box.as_index()]


def _write_file(location: Location, shards: Shards) -> None:
    entries = [OutputEntry(name, dtype, array.shape) for name, (dtype, array) in shards.items()]
    with write_file(location) as file:
        for segment in plan_file(CheckpointFormat.CKPT, entries).segments:
            if isinstance(segment, bytes):
                file.write(segment)
            else:
                file.write(shards[segment.name][1].tobytes()[segment.start : segment.stop])


def _dtype_of(array: np.ndarray) -> DType:
    return dtype_from_name(array.dtype.name.capitalize())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m demo.make_checkpoint", description="Writes the demo checkpoint.")
    parser.add_argument("directory", help="where to; files that are there already are overwritten")
    for option, default, meaning in (
        ("--stages", SOURCE.stages, "pipeline stages"),
        ("--data-parallel", SOURCE.data_parallel, "replicas of the model"),
        ("--tensor-parallel", SOURCE.tensor_parallel, "devices that share each matrix"),
        ("--optimizer-shards", SOURCE.optimizer_shards, "pieces that replicas cut matrices into; 0: none"),
    ):
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"{meaning} (default: {default})")
    asked = parser.parse_args()
    job = Job(asked.stages, asked.data_parallel, asked.tensor_parallel, asked.optimizer_shards)
    directory = parse_url(asked.directory)
    make_demo(directory, job)
    print(f"Wrote a checkpoint of {len(job.ranks)} ranks and two strategies to {directory}")


if __name__ == "__main__":
    main()

"""A small training job of real processes, cut like large ones: data, tensor and optimizer parallelism, in numpy.

A two-layer network learns by Adam. Each process is a rank: it holds its slices of weights and moments, computes the
gradients of its micro-batches, and updates its slices. Ranks talk through the parent process, which plays the
cluster: it can kill ranks, and ends the others by SIGTERM as soon as they wait for the killed ones, as schedulers do.
Gradients are added in the order of the micro-batches, whichever ranks computed them: so the arithmetic, and each bit of
the result, is the same for any number of data-parallel ranks.

Ranks save by ModelCheckpoint, every few steps; on SIGTERM by the elastic ExceptionHandler, which decides which ranks of
those that hold the same slices have to.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from demo.model import Job, Parameter
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import TensorSlice
from reshard.mindspore import CheckpointConfig, ModelCheckpoint, RunContext, load_checkpoint, save_checkpoint

STEPS_PER_EPOCH = 20
PREFIX = "net"
FAULTS = "faults.json"

_FLOAT32 = dtype_from_name("Float32")
_WEIGHTS = (Parameter("net.up.weight", _FLOAT32, (24, 8), 0), Parameter("net.down.weight", _FLOAT32, (6, 24), 1))
_MOMENTS = ("adam_m", "adam_v")
_MICRO_BATCHES, _SAMPLES = 12, 4
_LEARNING_RATE, _DECAYS, _EPSILON = np.float32(0.01), (np.float32(0.9), np.float32(0.999)), np.float32(1e-8)

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Faults:
    """Ranks that die without a word in a step."""

    ranks: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class State:
    """A rank's slices after a step; replaced as a whole, so that a signal finds all slices of one step."""

    step: int
    arrays: Arrays

    @property
    def context(self) -> RunContext:
        """The training as callbacks see it."""
        return RunContext(
            train_network=self.arrays,
            cur_step_num=self.step,
            cur_epoch_num=(self.step - 1) // STEPS_PER_EPOCH + 1,
            batch_num=STEPS_PER_EPOCH,
        )


def write_job_strategy(job: Job, path: Path) -> None:
    """Write a job's strategy file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    layouts = {parameter.name: job.layout(parameter) for parameter in _parameters()}
    operator = OperatorStrategy("Default/net/MatMul-op0", 0, ((job.data_parallel, 1), (1, job.tensor_parallel)))
    write_strategy(Strategy((StageStrategy(0, layouts, (operator,)),), origin="the demo", merged=False), str(path))


def train(
    job: Job, directory: Path, steps: int, *, start: Path | None = None, faults: Faults | None = None
) -> dict[int, int]:
    """Run a job to a step, and return how each rank's process ended: its exit code, or minus the signal.

    Args:
        job: the devices.
        directory: where ranks save, in `rank_{r}`.
        steps: the last step.
        start: a checkpoint of this job to go on from.
        faults: ranks that are killed.
    """
    directory.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    connections: dict[int, Connection] = {}
    processes: dict[int, BaseProcess] = {}
    for rank in job.ranks:
        connections[rank], theirs = context.Pipe()
        processes[rank] = context.Process(target=_run_rank, args=(job, rank, theirs, directory, steps, start))
        processes[rank].start()
        theirs.close()
    _exchange_until_the_end(connections, processes, directory, faults)
    for process in processes.values():
        process.join()
    return {rank: process.exitcode or 0 for rank, process in processes.items()}


def _exchange_until_the_end(
    connections: dict[int, Connection], processes: Mapping[int, BaseProcess], directory: Path, faults: Faults | None
) -> None:
    """Give each rank what all ranks sent, until they end; end them when some died and the others wait for these."""
    sent: dict[int, Any] = {}
    living = dict(connections)
    while living:
        for connection in wait([connection for rank, connection in living.items() if rank not in sent]):
            rank = next(rank for rank, each in living.items() if each is connection)
            try:
                sent[rank] = living[rank].recv()
            except EOFError:
                del living[rank]
        if len(sent) == len(connections):
            if faults and next(iter(sent.values()))["step"] == faults.step:
                for rank in faults.ranks:
                    os.kill(processes[rank].pid or 0, signal.SIGKILL)
            everything = [sent[rank]["arrays"] for rank in sorted(sent)]
            for rank in sent:
                if not (faults and rank in faults.ranks and sent[rank]["step"] == faults.step):
                    living[rank].send(everything)
            sent = {}
        elif faults and living and len(sent) == len(living):
            (directory / FAULTS).write_text(json.dumps({"FaultRankIds": [str(rank) for rank in faults.ranks]}))
            for rank in living:
                processes[rank].terminate()
            return


def _run_rank(job: Job, rank: int, connection: Connection, directory: Path, steps: int, start: Path | None) -> None:
    """Train one rank, in a process of its own."""
    os.environ |= {"RANK_ID": str(rank), "RANK_SIZE": str(len(job.ranks))}
    os.environ["RESHARD_FAULT_RANKS_FILE"] = str(directory / FAULTS)
    # registers the signals, in the process that trains
    from reshard.elastic import exception_checkpoint

    folder = directory / f"rank_{rank}"
    trainer = Trainer(job, rank, connection)
    if start is not None:
        trainer.resume(start)
    exception_checkpoint.set_config(trainer.save_now, (folder,), partial_save=True, group_info=replica_groups(job))
    config = CheckpointConfig(
        10, keep_checkpoint_max=2, integrated_save=False, append_info=["epoch_num", "step_num"], crc_check=True
    )
    with ModelCheckpoint(PREFIX, str(folder), config) as checkpoint:
        while trainer.state.step < steps:
            trainer.train_step()
            checkpoint.step_end(trainer.state.context)
        checkpoint.end(trainer.state.context)


def replica_groups(job: Job) -> list[list[int]]:
    """Ranks that hold the same slices."""
    groups: dict[tuple[TensorSlice, ...], list[int]] = {}
    for rank in job.ranks:
        groups.setdefault(tuple(_boxes(job, rank).values()), []).append(rank)
    return list(groups.values())


class Trainer:
    """A rank's slices, and how it trains them with the others."""

    def __init__(self, job: Job, rank: int, connection: Connection) -> None:
        self._job = job
        self._rank = rank
        self._connection = connection
        self._data_rank, self._tensor_rank = divmod(rank, job.tensor_parallel)
        self._boxes = _boxes(job, rank)
        self._all_boxes = [_boxes(job, each) for each in job.ranks]
        first = {parameter.name: _first_values(parameter) for parameter in _parameters()}
        self.state = State(0, {name: first[name][box.as_index()].copy() for name, box in self._boxes.items()})

    def resume(self, checkpoint: Path) -> None:
        """Go on from this rank's file of a checkpoint, or from its two files of a Checkpoint 2.0."""
        tracker = checkpoint / "latest_checkpointed_iteration.txt"
        if tracker.exists():
            iteration = checkpoint / f"iteration_{int(tracker.read_text()):08}"
            step = json.loads((iteration / "common.json").read_text())["global_step"]
            loaded: dict[str, Any] = {}
            for file in iteration.glob(f"*-{self._rank:07}-*.safetensors"):
                loaded |= load_checkpoint(str(file), format="safetensors")
        else:
            [file] = (checkpoint / f"rank_{self._rank}").glob("*.ckpt")
            loaded = load_checkpoint(str(file))
            step = int(np.asarray(loaded["step_num"]))
        self.state = State(step, {name: np.asarray(loaded[name]) for name in self._boxes})

    def save_now(self, folder: Path) -> None:
        """Save the last whole step, under the name that a regular checkpoint of it would have."""
        args = self.state.context.original_args()
        folder.mkdir(exist_ok=True)
        name = f"{PREFIX}-{args.cur_epoch_num}_{(args.cur_step_num - 1) % STEPS_PER_EPOCH + 1}.ckpt"
        numbers = {"epoch_num": args.cur_epoch_num, "step_num": args.cur_step_num}
        save_checkpoint(self.state.arrays, str(folder / name), append_dict=numbers, crc_check=True)

    def train_step(self) -> None:
        """Train on the next batch."""
        step = self.state.step + 1
        inputs, wanted = _batch(step)
        up, down = self._gathered_weights(step)
        mine = range(self._data_rank, _MICRO_BATCHES, self._job.data_parallel)
        hidden = {number: np.maximum(inputs[number] @ up.T, 0) for number in mine}
        partials = {str(number): hidden[number] @ down.T for number in mine}
        outputs = self._added_over_tensors(step, partials)
        gradients: Arrays = {}
        for number in mine:
            error = outputs[str(number)] - wanted[number]
            back = (error @ down) * (hidden[number] > 0)
            gradients |= {f"{number} up": back.T @ inputs[number], f"{number} down": error.T @ hidden[number]}
        up_gradient, down_gradient = self._added_over_batches(step, gradients)
        self.state = State(step, self._updated(step, {"net.up.weight": up_gradient, "net.down.weight": down_gradient}))

    def _exchanged(self, step: int, arrays: Arrays) -> list[Arrays]:
        """What each rank sent."""
        self._connection.send({"step": step, "arrays": arrays})
        received: list[Arrays] = self._connection.recv()
        return received

    def _gathered_weights(self, step: int) -> list[np.ndarray]:
        """The slices of both weights that this rank's tensor-parallel place computes with."""
        mine = {weight.name: self.state.arrays[weight.name] for weight in _WEIGHTS}
        whole = {weight.name: np.empty(weight.shape, np.float32) for weight in _WEIGHTS}
        for boxes, sent in zip(self._all_boxes, self._exchanged(step, mine), strict=True):
            for name, array in sent.items():
                whole[name][boxes[name].as_index()] = array
        return [np.ascontiguousarray(whole[weight.name][self._tensor_slice(weight)]) for weight in _WEIGHTS]

    def _tensor_slice(self, weight: Parameter) -> tuple[slice, ...]:
        axis = weight.cut_axis or 0
        length = weight.shape[axis] // self._job.tensor_parallel
        cut = slice(self._tensor_rank * length, (self._tensor_rank + 1) * length)
        return tuple(cut if each == axis else slice(None) for each in range(len(weight.shape)))

    def _added_over_tensors(self, step: int, partials: Arrays) -> Arrays:
        sent = self._exchanged(step, partials)
        first = self._data_rank * self._job.tensor_parallel
        group = sent[first : first + self._job.tensor_parallel]
        return {number: sum(each[number] for each in group[1:]) + group[0][number] for number in partials}

    def _added_over_batches(self, step: int, gradients: Arrays) -> list[np.ndarray]:
        sent = self._exchanged(step, gradients)
        together: Arrays = {}
        for arrays in sent[self._tensor_rank :: self._job.tensor_parallel]:
            together |= arrays
        count = np.float32(_MICRO_BATCHES * _SAMPLES)
        added = []
        for name in ("up", "down"):
            total = together[f"0 {name}"].copy()
            for number in range(1, _MICRO_BATCHES):
                total += together[f"{number} {name}"]
            added.append(total / count)
        return added

    def _updated(self, step: int, gradients: Arrays) -> Arrays:
        """Adam, on this rank's slices."""
        updated: Arrays = {}
        for weight in _WEIGHTS:
            # the box is one of the whole tensor, the gradient is that of the tensor-parallel slice
            offset = tuple(-(cut.start or 0) for cut in self._tensor_slice(weight))
            gradient = gradients[weight.name][self._boxes[weight.name].shifted(offset).as_index()]
            first, second = (self.state.arrays[f"{moment}.{weight.name}"] for moment in _MOMENTS)
            first = _DECAYS[0] * first + (1 - _DECAYS[0]) * gradient
            second = _DECAYS[1] * second + (1 - _DECAYS[1]) * gradient * gradient
            corrected = [moment / (1 - decay**step) for moment, decay in zip((first, second), _DECAYS, strict=True)]
            change = _LEARNING_RATE * corrected[0] / (np.sqrt(corrected[1]) + _EPSILON)
            updated |= {weight.name: self.state.arrays[weight.name] - change}
            updated |= dict(zip((f"{moment}.{weight.name}" for moment in _MOMENTS), (first, second), strict=True))
        return updated


def _parameters() -> Sequence[Parameter]:
    """Weights, and the moments of each."""
    return (
        *_WEIGHTS,
        *(replace(weight, name=f"{moment}.{weight.name}") for moment in _MOMENTS for weight in _WEIGHTS),
    )


def _boxes(job: Job, rank: int) -> dict[str, TensorSlice]:
    return {
        parameter.name: job.layout(parameter).shard_grid(len(parameter.shape)).box_of(rank, parameter.shape)
        for parameter in _parameters()
    }


def _first_values(parameter: Parameter) -> np.ndarray:
    if parameter.name.startswith(_MOMENTS):
        return np.zeros(parameter.shape, np.float32)
    values = np.random.default_rng(len(parameter.name)).standard_normal(parameter.shape, np.float32)
    return values * np.float32(0.3)


def _batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and wanted outputs of a step's micro-batches: a function that the network can learn."""
    inputs = np.random.default_rng(step).standard_normal((_MICRO_BATCHES, _SAMPLES, 8), np.float32)
    return inputs, np.tanh(inputs[..., :6] * inputs[..., 2:])

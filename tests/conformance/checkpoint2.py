"""Random Checkpoint 2.0 directories that MindFormers' own functions save and load, converted by reshard.

A case is made from its seed: a job, whose ranks MindFormers plays and saves, and two more that go on from it. The first
one's ranks have to get, byte by byte, the shards that the slow reference cuts from the whole tensors, and what
MindFormers' loader gives them, except for what that is known to get wrong. Then the source is converted to a Checkpoint
2.0 for each of the two; MindFormers has to call both valid, and to load each by the layouts of the other job.
"""

import math
import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError, ReshardError
from reshard.core.request.conversion import build_request
from tests.conformance.cases import DTYPES, Entry, ShardGrid
from tests.conformance.differences import differences
from tests.conformance.mindspore_process import MindFormersJudge, RefusalError
from tests.conformance.seeded import check_seeds
from tests.support.checkpoints import Contents, read_safetensors, read_tree, write_safetensors
from tests.support.reference import RandomLayout, device_matrices, shard_of
from tests.support.strategy_writer import write_strategy_file

CASES = 24
_DEVICES_PER_STAGE = (1, 2, 3, 4, 6, 8)
_NAMES = ("embedding.word_embeddings.weight", "decoder.layers.{}.linear_qkv.weight", "decoder.layers.{}.norm.weight")
_MOMENTS = ("adam_m", "adam_v")
_STEP = "global_step"

Sharding = RandomLayout | None
"""None: every rank that has it has all of it."""


@dataclass(frozen=True)
class Job:
    """A job: of each pipeline stage the tensors, and how they are sharded over its devices."""

    devices: int
    stages: tuple[dict[str, Sharding], ...]

    @property
    def ranks(self) -> range:
        return range(len(self.stages) * self.devices)

    def of_rank(self, rank: int) -> dict[str, Sharding]:
        """The tensors of a rank."""
        return self.stages[rank // self.devices]

    def layouts(self, names: set[str]) -> list[dict[str, Any]]:
        """For each rank the layouts of tensors, as metadata.json has them."""
        stages = [range(number * self.devices, (number + 1) * self.devices) for number in range(len(self.stages))]
        return [
            {
                name: layout and folded(layout, stages[rank // self.devices])
                for name, layout in self.of_rank(rank).items()
                if name in names
            }
            for rank in self.ranks
        ]

    def homes(self, name: str) -> list[int]:
        """The stages that have a tensor."""
        return [number for number, stage in enumerate(self.stages) if name in stage]

    def shards(self, model: Contents, rank: int) -> Contents:
        """What a rank is to hold."""
        return {name: _shard(model[name], layout, rank % self.devices) for name, layout in self.of_rank(rank).items()}


@dataclass(frozen=True)
class Checkpoint2Case:
    """A job that is saved, and two that go on with it."""

    seed: int
    model: Contents
    source: Job
    target: Job
    other: Job
    optimizer: tuple[str, ...]
    unwritten: tuple[tuple[str, ...], ...]
    iteration: int
    prefix: str | None
    remove_redundancy: bool
    format: str

    def loadable(self, job: Job) -> set[str]:
        """The tensors of a job's checkpoint that MindFormers' loader can place: see docs/reference/formats.md."""
        found = set()
        for name in self.model:
            homes = job.homes(name)
            layouts = {job.stages[home][name] for home in homes}
            if len(layouts) == 1 and (None not in layouts or homes[0] == 0):
                found.add(name)
        return found


def folded(layout: RandomLayout, ranks: range) -> dict[str, Any]:
    """A layout as metadata.json has it: the optimizer's shards follow in axis 0's entry."""
    parts = dict(zip(reversed(layout.repeated), layout.optimizer_parts, strict=False))
    matrix: list[int] = []
    used: list[int] = []
    new_place = {}
    for place, size in enumerate(layout.device_matrix):
        part = parts.get(place, 1)
        if 1 < part < size:
            matrix.append(size // part)
        new_place[place] = len(matrix)
        matrix.append(part if part > 1 else size)
        if part > 1:
            used.append(new_place[place])
    last = len(matrix) - 1
    tensor_map: list[list[int]] = [
        [last - new_place[len(layout.device_matrix) - 1 - axis] for axis in axes] for axes in layout.tensor_map
    ]
    tensor_map[0] += [last - place for place in used]
    return {
        "device_matrix": matrix,
        "tensor_map": [axes if len(axes) > 1 else axes[0] if axes else -1 for axes in tensor_map],
        "interleaved_parallel": False,
        "alias_name": [f"axis{place}" for place in range(len(matrix))],
        "rank_list": list(ranks),
    }


def build_case(seed: int) -> Checkpoint2Case:
    """The case of a seed."""
    return _Builder(random.Random(seed)).build(seed)


class _Builder:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.removes_redundancy = self._chance(0.4)

    def build(self, seed: int) -> Checkpoint2Case:
        names = [name.format(number) for number in range(2) for name in _NAMES[bool(number) :]]
        weights = {name: self.rng.choice((0, 1, 1, 2, 2, 2, 3)) for name in names}
        has_optimizer = self._chance(0.8)
        whole = {name for name, axes in weights.items() if not axes or self._chance(0.15)}
        late = {name for name in whole if weights[name] and self._chance(0.4)}
        source = self._job(weights, whole, has_optimizer)
        target = self._target(weights, whole - late, has_optimizer)
        other = self._target(weights, whole, has_optimizer)
        axes = {name: weights[_weight(name)] for stage in source.stages for name in stage}
        model = {name: self._tensor(name, count, (source, target, other)) for name, count in axes.items()}
        remove_redundancy = len(source.ranks) > 1 and self.removes_redundancy
        return Checkpoint2Case(
            seed,
            model,
            source,
            target,
            other,
            tuple(name for name in model if _weight(name) != name),
            tuple(() if remove_redundancy else self._unwritten(source, rank) for rank in source.ranks),
            self.rng.choice((7, 1200, 123456789)),
            self.rng.choice((None, "llama", "llama-sft_1", "model-opt")),
            remove_redundancy,
            self.rng.choice(("ckpt", "safetensors")),
        )

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _target(self, weights: Mapping[str, int], whole: set[str], has_optimizer: bool) -> Job:
        while True:
            job = self._job(weights, whole, has_optimizer, whole_everywhere=True)
            if all(any(stage.values()) for stage in job.stages):  # a strategy file has no empty stages
                return job

    def _job(
        self, weights: Mapping[str, int], whole: set[str], has_optimizer: bool, whole_everywhere: bool = False
    ) -> Job:
        stage_count, devices = self.rng.choice((1, 1, 2, 3)), self.rng.choice(_DEVICES_PER_STAGE)
        stages: list[dict[str, Sharding]] = [{} for _ in range(stage_count)]
        folds = self._chance(0.5)
        # removing redundancy, MindFormers else saves the shards of one stage only of what several share
        alike = self.removes_redundancy and not whole_everywhere
        for number, (name, axes) in enumerate(weights.items()):
            homes = sorted({number % stage_count} | ({stage_count - 1} if self._chance(0.2) else set()))
            if whole_everywhere and name in whole:
                homes = list(range(stage_count))
            tensors = [name, *(f"{moment}.{name}" for moment in (_MOMENTS if has_optimizer else ()))]
            for home in homes:
                if home == homes[0] or not (alike or self._chance(0.7)):
                    layout = None if name in whole else self._layout(devices, axes)
                    shardings = [layout and self._folding(layout, folds) for _ in tensors]
                stages[home] |= dict(zip(tensors, shardings, strict=True))
        return Job(devices, tuple(stages))

    def _layout(self, devices: int, axes: int) -> RandomLayout:
        matrix = self.rng.choice(device_matrices(devices))
        tensor_map: list[list[int]] = [[] for _ in range(axes)]
        for axis in self.rng.sample(range(len(matrix)), len(matrix)):
            if self._chance(0.6):
                self.rng.choice(tensor_map).append(axis)
        return RandomLayout(matrix, tuple(map(tuple, tensor_map)), ())

    def _folding(self, layout: RandomLayout, folds: bool) -> RandomLayout:
        sizes = [layout.device_matrix[place] for place in reversed(layout.repeated)]
        if not folds or not sizes or self._chance(0.3):
            return layout
        count = self.rng.randrange(len(sizes))
        divisors = [part for part in range(1, sizes[count] + 1) if sizes[count] % part == 0]
        return replace(layout, optimizer_parts=(*sizes[:count], self.rng.choice(divisors)))

    def _unwritten(self, job: Job, rank: int) -> tuple[str, ...]:
        """What a later stage shares with an earlier one is flagged, and not saved."""
        stage = rank // job.devices
        return tuple(name for name in job.stages[stage] if job.homes(name)[0] < stage)

    def _tensor(self, name: str, axes: int, jobs: Sequence[Job]) -> Entry:
        layouts = [stage[name] for job in jobs for stage in job.stages if stage.get(name)]
        grids = [ShardGrid(layout) for layout in layouts if layout is not None]
        shape = tuple(
            math.lcm(*(grid.pieces(axis) for grid in grids)) * self.rng.choice((1, 1, 2, 3)) for axis in range(axes)
        )
        dtype = self.rng.choice(("Float32", "Float16", "BFloat16"))
        data = self.rng.randbytes(math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize)
        return dtype, shape, data


def check_checkpoint2(first: int, directory: Path) -> list[str]:
    """What is not as it should be, in the cases from seed `first` on."""
    directory.mkdir()
    with MindFormersJudge(directory / "mindformers.log") as judge:
        seeds = range(first, first + CASES)
        return check_seeds(seeds, directory, lambda seed, place: _Check(build_case(seed), judge, place).run())


class _Check:
    def __init__(self, case: Checkpoint2Case, judge: MindFormersJudge, directory: Path) -> None:
        self.case = case
        self.judge = judge
        self.directory = directory
        self.whole = directory / "whole.safetensors"
        self.source = directory / "source"

    def run(self) -> Iterator[str]:
        case = self.case
        self.directory.mkdir()
        write_safetensors(self.whole, case.model)
        self._save()
        step = {} if self._is_deduplicated or not case.optimizer else {_STEP: _step(case.iteration)}
        want = {rank: case.target.shards(case.model, rank) | step for rank in case.target.ranks}
        try:
            self._convert()
        except Exception as error:
            yield f"{type(error).__name__}: {error}" if isinstance(error, ReshardError) else traceback.format_exc()
            return
        yield from differences("reshard's", read_tree(self.directory / "out"), want)
        yield from self._load(self.source, case.source, case.target)
        jobs = {"a": case.target, "b": case.other}
        for name, job in jobs.items():
            try:
                self._convert_to_iterations(name, job)
            except Exception as error:
                yield f"{type(error).__name__}: {error}" if isinstance(error, ReshardError) else traceback.format_exc()
                return
        yield from self._load(self.directory / "a", jobs["a"], jobs["b"])
        yield from self._load(self.directory / "b", jobs["b"], jobs["a"])

    def _save(self) -> None:
        """Have MindFormers save; it cannot remove redundancy if that leaves a rank without a shard."""
        case = self.case
        arguments: dict[str, Any] = {
            "whole": str(self.whole),
            "root": str(self.source),
            "iteration": case.iteration,
            "ranks": case.source.layouts(set(case.model)),
            "optimizer": case.optimizer,
            "unwritten": case.unwritten,
            "common": {"epoch_num": 1, "step_num": case.iteration, "global_step": case.iteration},
            "prefix": case.prefix,
        }
        self._is_deduplicated = case.remove_redundancy
        try:
            self.judge.ask("save", **arguments, remove_redundancy=case.remove_redundancy)
        except RefusalError as refusal:
            if not case.remove_redundancy or "NoneType.__format__" not in str(refusal):
                raise
            self._is_deduplicated = False
            self.judge.ask("save", **arguments)

    def _convert(self) -> None:
        case = self.case
        strategy = self._strategy("target", case.target)
        target = self.directory / "out"
        convert(
            build_request(
                source=str(self.source), target=str(target), target_strategy=strategy, format=case.format, workers=1
            )
        )

    def _convert_to_iterations(self, name: str, job: Job) -> None:
        """Convert the source to a Checkpoint 2.0 of a job, and have MindFormers call it valid."""
        target = self.directory / name
        options: dict[str, Any] = {
            "source": str(self.source),
            "target": str(target),
            "target_strategy": self._strategy(name, job),
            "layout": "checkpoint2",
            "workers": 1,
        }
        try:
            convert(build_request(**options, remove_redundancy=self.case.remove_redundancy and name == "a"))
        except PlanError as error:
            if "redundancy cannot be removed" not in str(error):  # it is where files would be empty
                raise
            convert(build_request(**options))
        self.judge.ask("verify", iteration=str(target / f"iteration_{self.case.iteration:08d}"))

    def _strategy(self, name: str, job: Job) -> str:
        """Write a job's strategy."""
        path = self.directory / f"{name}.ckpt"
        layouts = {
            number: {
                f"{number}-{name}": ShardGrid(layout, nested=_is_nested(layout)).for_file(self.case.model[name][1])
                for name, layout in stage.items()
                if layout is not None
            }
            for number, stage in enumerate(job.stages)
        }
        write_strategy_file(path, layouts)
        return str(path)

    def _load(self, checkpoint: Path, saved: Job, loading: Job) -> Iterator[str]:
        """Have MindFormers load the checkpoint of one job on the ranks of another."""
        case = self.case
        names = case.loadable(saved)
        loaded = self.directory / f"{checkpoint.name}_loaded"
        refusals = self.judge.ask(
            "load",
            checkpoint=str(checkpoint),
            target=str(loaded),
            whole=str(self.whole),
            optimizer=case.optimizer,
            ranks=loading.layouts(names),
        )
        yield from (
            f"{checkpoint.name}: MindFormers does not load rank {rank}: {why}" for rank, why in refusals.items()
        )
        got = {int(path.stem): read_safetensors(path) for path in loaded.iterdir()}
        step = {_STEP: _step(case.iteration)} if case.optimizer else {}
        expected = {
            rank: {name: each for name, each in loading.shards(case.model, rank).items() if name in names} | step
            for rank in loading.ranks
            if str(rank) not in refusals
        }
        yield from differences(f"{checkpoint.name}: MindFormers'", got, expected)


def _is_nested(layout: RandomLayout) -> bool:
    return any(len(axes) > 1 for axes in layout.tensor_map)


def _step(iteration: int) -> Entry:
    return "Int32", (1,), iteration.to_bytes(4, "little")


def _weight(name: str) -> str:
    """The parameter that a moment is of; any other name itself."""
    kind, _, rest = name.partition(".")
    return rest if kind in _MOMENTS else name


def _shard(whole: Entry, layout: Sharding, rank: int) -> Entry:
    dtype, shape, data = whole
    if layout is None:
        return whole
    shard = shard_of(np.frombuffer(data, DTYPES[dtype]).reshape(shape), layout, rank)
    return dtype, shard.shape, shard.tobytes()

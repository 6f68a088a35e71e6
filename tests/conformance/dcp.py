"""Random Distributed Checkpoints that PyTorch's own functions save, converted by reshard.

A case is made from its seed: tensors of any shape on a mesh of up to 4 ranks, sharded evenly or not along any axes,
stored in any strides, and saved by one of torch's writers. Whole, they have to be what torch was given, byte by byte;
under a strategy of MindSpore, what the slow reference cuts from that. From another Distributed Checkpoint that
becomes of it torch has to load the same, into other meshes and into one file.
"""

import math
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.conversion import build_request
from tests.conformance.cases import DTYPES, Entry, ShardGrid
from tests.conformance.differences import differences
from tests.conformance.mindspore_process import JudgeProcess, RefusalError
from tests.conformance.seeded import check_seeds
from tests.support.checkpoints import Contents, read_safetensors, read_tree, write_safetensors
from tests.support.places import PROJECT
from tests.support.reference import RandomLayout, device_matrices, shard_of
from tests.support.strategy_writer import write_strategy_file

PYTHON = PROJECT / ".venv-torch" / "bin" / "python"
CASES = 30
_MESHES = ((1,), (2,), (3,), (4,), (2, 2))
_WRITERS = ("one", "one", "flat", "many", "threads", "safetensors", "hf")
_FORMS = ("", "", "transposed", "cut", "parameter")
_LENGTHS = (0, 1, 2, 3, 5, 6, 8, 12, 16)


class TorchJudge(JudgeProcess):
    """Asks torch: see the operations of `torch_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, PYTHON, "torch_judge.py")


@dataclass(frozen=True)
class DcpCase:
    """Tensors, how torch saves them, and their layouts in the target.

    `how`: name -> the placements and the form that `torch_judge` knows.
    """

    seed: int
    model: Contents
    mesh: tuple[int, ...]
    how: dict[str, dict[str, Any]]
    writer: str
    objects: dict[str, Any]
    devices: int
    layouts: dict[str, RandomLayout]
    format: str


def build_case(seed: int) -> DcpCase:
    """The case of a seed."""
    rng = random.Random(seed)
    mesh, writer = rng.choice(_MESHES), rng.choice(_WRITERS)
    model: Contents = {}
    how: dict[str, dict[str, Any]] = {}
    layouts: dict[str, RandomLayout] = {}
    devices = rng.choice((1, 2, 3, 4, 6, 8))
    for number in range(rng.randrange(3, 10)):
        name = f"{rng.choice(('model', 'optim.state'))}.layers.{number}.weight"
        model[name] = _tensor(rng)
        shape = model[name][1]
        # writers of safetensors take no views
        form = "" if writer in ("hf", "safetensors") else rng.choice(_FORMS)
        how[name] = {"placements": _placements(rng, shape, mesh), "form": form}
        layouts[name] = _layout(rng, devices, shape)
    objects = {"optim.step": 7, "optim.betas": [0.5, 0.25]} if writer != "hf" and rng.random() < 0.5 else {}
    return DcpCase(seed, model, mesh, how, writer, objects, devices, layouts, rng.choice(("ckpt", "safetensors")))


def _tensor(rng: random.Random) -> Entry:
    dtype = rng.choice(("Float32", "Float32", "Float16", "BFloat16", "Int32", "Int64", "Bool", "UInt8"))
    shape = tuple(rng.choice(_LENGTHS) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3))))
    count = math.prod(shape)
    if dtype == "Bool":
        return dtype, shape, bytes(rng.randrange(2) for _ in range(count))
    return dtype, shape, rng.randbytes(count * np.dtype(DTYPES[dtype]).itemsize)


def _placements(rng: random.Random, shape: tuple[int, ...], mesh: tuple[int, ...]) -> list[str] | None:
    if not shape or rng.random() < 0.15:
        return None
    return ["R" if rng.random() < 0.25 else f"S{rng.randrange(len(shape))}" for _ in mesh]


def _layout(rng: random.Random, devices: int, shape: tuple[int, ...]) -> RandomLayout:
    """A layout that the shape divides by."""
    matrix = rng.choice(device_matrices(devices))
    tensor_map: list[list[int]] = [[] for _ in shape]
    pieces = [1] * len(shape)
    for axis in rng.sample(range(len(matrix)), len(matrix)):
        size = matrix[len(matrix) - 1 - axis]
        fits = [place for place, length in enumerate(shape) if length % (pieces[place] * size) == 0]
        if fits and rng.random() < 0.7:
            place = rng.choice(fits)
            tensor_map[place].append(axis)
            pieces[place] *= size
    return RandomLayout(matrix, tuple(map(tuple, tensor_map)), ())


def check_dcp(first: int, directory: Path) -> list[str]:
    """What is not as it should be, in the cases from seed `first` on."""
    directory.mkdir()
    with TorchJudge(directory / "torch.log") as judge:
        seeds = range(first, first + CASES)
        return check_seeds(seeds, directory, lambda seed, place: _Check(build_case(seed), judge, place).run())


class _Check:
    def __init__(self, case: DcpCase, judge: TorchJudge, directory: Path) -> None:
        self.case = case
        self.judge = judge
        self.directory = directory
        self.source = directory / "source"

    def run(self) -> Iterator[str]:
        self.directory.mkdir()
        self._save()
        try:
            yield from self._check_whole()
            yield from self._check_ranks()
            yield from self._check_loaded()
        except Exception as error:
            yield f"{type(error).__name__}: {error}" if isinstance(error, ReshardError) else traceback.format_exc()

    def _save(self) -> None:
        case = self.case
        whole = self.directory / "whole.safetensors"
        write_safetensors(whole, case.model)
        self.judge.ask(
            "save",
            mesh=case.mesh,
            source=str(whole),
            target=str(self.source),
            tensors=case.how,
            objects=case.objects,
            writer=case.writer,
        )

    def _check_whole(self) -> Iterator[str]:
        self._convert("one", layout="unified", verify="content")
        made = read_safetensors(self.directory / "one" / "model.safetensors")
        yield from differences("whole", {0: made}, {0: self.case.model})

    def _check_ranks(self) -> Iterator[str]:
        case = self.case
        strategy = self.directory / "target.ckpt"
        layouts = {
            name: ShardGrid(layout, nested=any(len(axes) > 1 for axes in layout.tensor_map)).for_file(
                case.model[name][1]
            )
            for name, layout in case.layouts.items()
        }
        write_strategy_file(strategy, {0: {f"0-{name}": layout for name, layout in layouts.items()}})
        self._convert("ranks", target_strategy=str(strategy), format=case.format)
        want = {rank: {name: self._shard(name, rank) for name in case.model} for rank in range(case.devices)}
        yield from differences("ranks", read_tree(self.directory / "ranks"), want)

    def _check_loaded(self) -> Iterator[str]:
        case = self.case
        rng = random.Random(f"loaded {case.seed}")
        strategy = str(self.directory / "target.ckpt")
        choices: tuple[dict[str, object], ...] = (
            {"shards": rng.randrange(1, 9)},
            {"target_strategy": strategy},
            {"source": str(self.directory / "ranks"), "source_strategy": strategy},
        )
        options = rng.choice(choices)
        self._convert("dcp", layout="dcp", verify="content", **options)
        made, whole = str(self.directory / "dcp"), str(self.directory / "whole.safetensors")
        mesh = rng.choice(_MESHES)
        places = {name: _placements(rng, shape, mesh) for name, (_, shape, _) in case.model.items()}
        try:
            self.judge.ask("load", mesh=mesh, source=made, whole=whole, tensors=places)
            self.judge.ask("join", source=made, whole=whole, target=str(self.directory / "one.pt"))
        except RefusalError as refusal:
            yield f"as DCP, {options}: torch: {refusal}"

    def _convert(self, name: str, **options: object) -> None:
        given: dict[str, Any] = {"source": str(self.source), "target": str(self.directory / name), "workers": 1}
        convert(build_request(**given | options))

    def _shard(self, name: str, rank: int) -> Entry:
        dtype, shape, data = self.case.model[name]
        shard = shard_of(np.frombuffer(data, DTYPES[dtype]).reshape(shape), self.case.layouts[name], rank)
        return dtype, shard.shape, shard.tobytes()

"""Random models that ranks train under torch's FSDP and save as verl does, converted by reshard.

A case is made from its seed: a model of any shapes, divided evenly or not, the mesh of the ranks, with copies and
tensor parallelism or without, and the optimizer. Whole, it has to be what the same ranks gather, byte by byte.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.mindspore_process import FsdpJudge
from tests.conformance.seeded import check_seeds
from tests.conformance.tiny_descriptions import describe_model
from tests.conformance.whole_models import problems_of, unlike_whole
from tests.support.checkpoints import read_safetensors

CASES = 16
MESHES: tuple[dict[str, int], ...] = (
    {"fsdp": 1},
    {"fsdp": 2},
    {"fsdp": 3},
    {"fsdp": 4},
    {"ddp": 2, "fsdp": 2},
    {"ddp": 2, "fsdp": 1},
    {"fsdp": 2, "tp": 2},
    {"fsdp": 1, "tp": 3},
    {"fsdp": 3, "tp": 1},
    {"ddp": 2, "fsdp": 1, "tp": 2},
    {"ddp": 1, "fsdp": 2, "tp": 2},
)
_DTYPES = ("float32", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class FsdpCase:
    """A model, and the job that saves it: as `tiny_models` and `fsdp_judge` know them."""

    seed: int
    model: dict[str, Any]
    job: dict[str, Any]

    @property
    def options(self) -> dict[str, str]:
        """Options of its conversion: FSDP1's moments are nameless pieces of whole units."""
        return {} if self.job["version"] == 2 else {"select": "weights-only"}


def build_case(seed: int) -> FsdpCase:
    """Return the case of a seed."""
    draw = random.Random(f"fsdp {seed}")
    version = draw.choice((1, 2, 2, 2))
    # FSDP1 has no tensor parallelism, and lets copies of unsharded models drift apart
    meshes = [each for each in MESHES if version == 2 or ("tp" not in each and each != {"ddp": 2, "fsdp": 1})]
    mesh = draw.choice(meshes)
    original = draw.random() < 0.5
    dtypes = (draw.choice(_DTYPES),) if version == 1 else _DTYPES
    # what FSDP1 makes one vector of is trained or frozen as one
    model = describe_model(draw, dtypes, may_freeze=version == 2 or original)
    wrapped = draw.random() < 0.5
    if version == 1 and wrapped and original:
        model["tied"] = {}  # torch itself then gathers another value for the second name
    job = {
        "version": version,
        "mesh": mesh,
        "optimizer": draw.choice((None, "Adam", "AdamW", "AdamW")),
        "steps": 2,
        "tensor_parallel": _tensor_parallel(draw, model, mesh.get("tp", 0)),
        "dimensions": _dimensions(draw, model, mesh) if version == 2 else {},
        "wrapped": wrapped,
        "original": original,
    }
    return FsdpCase(seed, model, job)


def _tensor_parallel(draw: random.Random, model: dict[str, Any], size: int) -> dict[str, int]:
    """The dimensions that tensor parallelism cuts; torch cannot gather what leaves a rank without a row."""
    if not size:
        return {}
    found = {}
    for name, how in model["parameters"].items():
        fits = [place for place, length in enumerate(how["shape"]) if _leaves_none_out(length, size)]
        if fits and name.startswith("layers.") and draw.random() < 0.6:
            found[name] = draw.choice(fits)
    return found


def _leaves_none_out(length: int, ranks: int) -> bool:
    return -(-length // ranks) * (ranks - 1) < length


def _dimensions(draw: random.Random, model: dict[str, Any], mesh: dict[str, int]) -> dict[str, int]:
    """Parameters of which FSDP2 cuts another dimension than the first: evenly, as it demands."""
    if "tp" in mesh:
        return {}
    shapes = {name: how["shape"] for name, how in model["parameters"].items()}
    fits = [name for name, shape in shapes.items() if len(shape) > 1 and shape[1] % mesh["fsdp"] == 0]
    return {name: 1 for name in fits if draw.random() < 0.2}


def check_fsdp(first: int, directory: Path) -> list[str]:
    """Return the problems of the cases from seed `first` on."""
    directory.mkdir()
    with FsdpJudge(directory / "fsdp.log") as judge:
        seeds = range(first, first + CASES)
        return check_seeds(seeds, directory, lambda seed, place: check_case(build_case(seed), judge, place))


def check_case(case: FsdpCase, judge: FsdpJudge, directory: Path) -> Iterator[str]:
    """Yield what is not as the ranks of a case have it."""
    return problems_of(case, _differences(case, judge, directory))


def _differences(case: FsdpCase, judge: FsdpJudge, directory: Path) -> Iterator[str]:
    source, want = save_case(case, judge, directory)
    yield from unlike_whole(source, directory / "whole", read_safetensors(want), **case.options)


def save_case(case: FsdpCase, judge: FsdpJudge, directory: Path) -> tuple[Path, Path]:
    """Have the ranks of a case save; return their directory, and the file of the whole tensors."""
    directory.mkdir(parents=True)
    source, want = directory / "global_step_2" / "actor", directory / "want.safetensors"
    judge.ask("save", directory=str(source), want=str(want), model=case.model, job=case.job, seed=case.seed)
    return source, want

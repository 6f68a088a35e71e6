"""Random models that ranks train under DeepSpeed's ZeRO, converted by reshard.

A case is made from its seed: a model of any shapes, the stage, the groups of its parameters and other settings that
change the files. Whole, it has to be what the engine says of the same training, byte by byte: the masters under the
model's names, and their moments.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.mindspore_process import ZeroJudge
from tests.conformance.seeded import check_seeds
from tests.conformance.tiny_descriptions import describe_model
from tests.conformance.whole_models import problems_of, unlike_whole
from tests.support.checkpoints import read_safetensors

CASES = 16
_PRECISIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"bf16": {"enabled": True}},
    "float16": {"fp16": {"enabled": True, "initial_scale_power": 4}},
    "static float16": {"fp16": {"enabled": True, "loss_scale": 8}},
    "float32": {},
}


@dataclass(frozen=True)
class ZeroCase:
    """A model, and the job that saves it: as `tiny_models` and `zero_judge` know them."""

    seed: int
    model: dict[str, Any]
    job: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings of ZeRO."""
        settings: dict[str, Any] = self.job["config"]["zero_optimization"]
        return settings

    @property
    def stage(self) -> int:
        """What is partitioned: 1 the optimizer, 2 gradients, too, 3 parameters, too."""
        stage: int = self.settings["stage"]
        return stage

    @property
    def has_other_class(self) -> bool:
        """True if files are those of BF16_Optimizer, which say no stage."""
        return self.stage == 1 and "data_types" in self.job["config"]


def build_case(seed: int) -> ZeroCase:
    """Return the case of a seed."""
    draw = random.Random(f"zero {seed}")
    model = describe_model(draw, ("float32",))
    stage = draw.choice((1, 2, 3, 3))
    precision = draw.choice(("bfloat16", "bfloat16", *_PRECISIONS))
    settings = _partitions(draw) if stage == 3 else _vectors(draw)
    if draw.random() < 0.3:
        settings["offload_optimizer"] = {"device": "cpu"}
    config = {**_PRECISIONS[precision], "zero_optimization": {"stage": stage, **settings}}
    if precision == "bfloat16" and draw.random() < 0.3:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        if stage == 1:
            config["zero_optimization"] = {"stage": 1}
    trained = sum(not how["frozen"] for how in model["parameters"].values())
    job = {
        "world": draw.choice((1, 2, 3, 4)),
        "groups": draw.choice([count for count in (1, 2, 3) if count <= trained]),
        "optimizer": draw.choice(("Adam", "AdamW")),
        "steps": 2,
        "partitioned": stage == 3 and draw.random() < 0.4,
        "config": config,
    }
    return ZeroCase(seed, model, job)


def _vectors(draw: random.Random) -> dict[str, Any]:
    """Settings of stages 1 and 2, where ranks have pieces of vectors of many parameters."""
    return {
        name: True
        for name in ("round_robin_gradients", "elastic_checkpoint", "parameter_alignment")
        if draw.random() < 0.25
    }


def _partitions(draw: random.Random) -> dict[str, Any]:
    """Settings of stage 3, where ranks have pieces of each parameter."""
    settings: dict[str, Any] = {}
    if draw.random() < 0.5:
        settings["sub_group_size"] = draw.choice((1, 30, 100))
    if draw.random() < 0.5:
        settings["stage3_param_persistence_threshold"] = 0
    if draw.random() < 0.2:
        settings["offload_param"] = {"device": "cpu"}
    return settings


def check_zero(first: int, directory: Path) -> list[str]:
    """Return the problems of the cases from seed `first` on."""
    directory.mkdir()
    with ZeroJudge(directory / "zero.log") as judge:
        seeds = range(first, first + CASES)
        return check_seeds(seeds, directory, lambda seed, place: check_case(build_case(seed), judge, place))


def check_case(case: ZeroCase, judge: ZeroJudge, directory: Path) -> Iterator[str]:
    """Yield what is not as the engine of a case has it."""
    return problems_of(case, _differences(case, judge, directory))


def _differences(case: ZeroCase, judge: ZeroJudge, directory: Path) -> Iterator[str]:
    source, want = save_case(case, judge, directory)
    if not case.has_other_class:  # whose files zero_to_fp32 refuses
        unlike = judge.ask("compare_fp32", directory=str(source), want=str(want))
        yield from (f"zero_to_fp32 has another {name}" for name in unlike)
    yield from unlike_whole(source, directory / "whole", read_safetensors(want))


def save_case(case: ZeroCase, judge: ZeroJudge, directory: Path) -> tuple[Path, Path]:
    """Have the ranks of a case save; return their directory, and the file of the whole tensors."""
    directory.mkdir(parents=True)
    source, want = directory / "saved", directory / "want.safetensors"
    judge.ask("save", directory=str(source), want=str(want), model=case.model, job=case.job, seed=case.seed)
    return source, want

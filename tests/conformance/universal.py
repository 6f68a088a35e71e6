"""Universal checkpoints that reshard makes of ZeRO's, loaded by DeepSpeed on other numbers of ranks, in other stages.

What the engine of the job that loads says of masters and moments has to be what the engine that saved said, byte by
byte; where DeepSpeed's own conversion can be loaded as well, the losses of a training that goes on have to be the same.
"""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.conversion import build_request
from tests.conformance.differences import differences
from tests.conformance.mindspore_process import RefusalError, UniversalJudge
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.families import directory_contents

_MODEL: dict[str, Any] = {
    "parameters": {
        "embed.weight": {"shape": [37, 5], "dtype": "float32"},
        "layers.0.down.weight": {"shape": [7, 3], "dtype": "float32"},
        "layers.0.norm.weight": {"shape": [7], "dtype": "float32"},
        "layers.1.experts": {"shape": [2, 3, 4], "dtype": "float32"},
        "layers.1.frozen": {"shape": [3, 2], "dtype": "float32", "frozen": True},
        "tiny": {"shape": [1], "dtype": "float32"},
    },
    "buffers": {
        "seen": {"shape": [2], "dtype": "int64"},
        "layers.0.scale": {"shape": [], "dtype": "float32"},
    },
    "tied": {"head.weight": "embed.weight"},
}
_SETTINGS: dict[str, Any] = {
    "gradient_clipping": 2.0,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.03, "warmup_num_steps": 6}},
}
_SEED = 7


@dataclass(frozen=True)
class UniversalCase:
    """A job that saves: its stage, processes and groups of parameters, and the (stage, processes) of those that load.

    `alike` are those in which DeepSpeed loads its own conversion, too.
    """

    name: str
    stage: int
    world: int
    groups: int
    loaded: tuple[tuple[int, int], ...]
    alike: tuple[tuple[int, int], ...] = ()
    weights_only: bool = False

    def job(self, stage: int, world: int) -> dict[str, Any]:
        """Return a job with the same optimizer, as `zero_judge` knows it."""
        return {
            "world": world,
            "groups": self.groups,
            "optimizer": "AdamW",
            "partitioned": False,
            "weights_only": self.weights_only,
            "config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}, **_SETTINGS},
        }


CASES = (
    UniversalCase("stage 2, two groups", 2, 2, 2, ((1, 1), (2, 3), (3, 2)), alike=((1, 1), (2, 3))),
    UniversalCase("stage 3, one group", 3, 3, 1, ((3, 2), (1, 2), (3, 1)), alike=((3, 2),)),
    UniversalCase("weights", 1, 2, 1, ((3, 2), (2, 1)), weights_only=True),
)


def check_universal(_: int, directory: Path) -> list[str]:
    """Return the problems of all cases."""
    directory.mkdir()
    with UniversalJudge(directory / "universal.log") as judge:
        return [
            f"{case.name}: {line}"
            for case in CASES
            for line in check_case(case, judge, directory / case.name.replace(" ", "_"))
        ]


def check_case(case: UniversalCase, judge: UniversalJudge, directory: Path) -> Iterator[str]:
    """Yield what is not as the engine of the job that saved has it."""
    try:
        save_case(case, judge, directory)
        yield from unlike_saved(case, judge, directory)
    except (ReshardError, RefusalError) as error:
        yield f"{type(error).__name__}: {error}"
    except Exception:
        yield traceback.format_exc()


def save_case(case: UniversalCase, judge: UniversalJudge, directory: Path) -> None:
    """Save a tag, and make universal checkpoints of it: `made`, and if it can be loaded alike, DeepSpeed's `own`."""
    directory.mkdir(parents=True)
    source, want = directory / "saved", directory / "want.safetensors"
    job = case.job(case.stage, case.world)
    judge.ask("save", directory=str(source), want=str(want), model=_MODEL, job=job, seed=_SEED)
    select = "weights-only" if case.weights_only else "all"
    target = str(directory / "made")
    convert(build_request(source=str(source), target=target, layout="universal", verify="content", select=select))
    if case.alike:
        own = directory / "own" / "global_step2_universal"
        judge.ask("to_universal", source=str(source / "global_step2"), target=str(own))


def unlike_saved(case: UniversalCase, judge: UniversalJudge, directory: Path) -> Iterator[str]:
    """Yield what jobs that load `made` have otherwise than the one that saved, or than those that load `own`.

    And what reshard reads in both otherwise.
    """
    expected = _trained(read_safetensors(directory / "want.safetensors"), case)
    for name in ("made", "own") if case.alike else ("made",):
        whole = directory / f"whole_{name}"
        convert(build_request(source=str(directory / name), target=str(whole), layout="unified", allow_missing=["*"]))
        yield from differences(f"reshard's of {name}", {0: _trained(directory_contents(whole), case)}, {0: expected})
    for stage, world in case.loaded:
        where, held = f"stage {stage} on {world}", directory / f"held_{stage}_{world}.safetensors"
        asked = {"model": _MODEL, "job": case.job(stage, world), "seed": _SEED}
        losses = judge.ask("resume", directory=str(directory / "made"), held=str(held), **asked)
        yield from differences(where, {0: _trained(read_safetensors(held), case)}, {0: expected})
        if (stage, world) in case.alike:
            others = judge.ask("resume", directory=str(directory / "own"), held="", **asked)
            if losses != others:
                yield f"{where}: the losses are {losses}, those of DeepSpeed's own conversion {others}"


def _trained(contents: Contents, case: UniversalCase) -> Contents:
    """What a universal checkpoint gives back: masters, and their moments."""
    trained = {name for name, how in _MODEL["parameters"].items() if not how.get("frozen")}
    moments = () if case.weights_only else ("exp_avg", "exp_avg_sq")
    names = trained | {f"{moment}.{name}" for moment in moments for name in trained}
    return {name: contents[name] for name in names}

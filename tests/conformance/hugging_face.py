"""Random tiny models that transformers makes, through another world of names and random shardings, and back.

A case is made from its seed: a family, sizes, a dtype, a world of the family's preset, its switches, and a job whose
ranks get the model under that world's names. From these ranks a complete directory is made again, which transformers
has to load, without a weight too many or too few, into a model that gives the same logits, bit by bit. That the ranks
hold what the world's own program makes of the same model, and not only what leads back, is shown by the rules in numpy
that some families have, by tests/fixtures/model_families, and by tests/conformance/megatron_core.py.
"""

import math
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reshard import make_strategy
from reshard.core.changes.preset import Preset, Switch, read_preset, read_spellings
from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.conformance.families import FAMILIES, Family
from tests.conformance.mindspore_process import RefusalError, TransformersJudge
from tests.support.families import directory_contents

CASES_OF_EACH = 1
_CUT_PROBABILITY = 0.8


@dataclass(frozen=True)
class Case:
    """A model and a job.

    Attributes:
        family: its family.
        world: whose names the ranks have.
        config: fields of config.json.
        dtype: of its weights.
        switches: how the ranks have it.
        data, model, stages: numbers of devices.
        optimizer: the optimizer is sharded as well.
    """

    seed: int
    family: Family
    world: str
    config: dict[str, Any]
    dtype: str
    switches: dict[str, str]
    data: int
    model: int
    stages: int
    optimizer: bool

    def __str__(self) -> str:
        """Name what tells this case from others."""
        switches = " ".join(f"{name}={value}" for name, value in self.switches.items())
        return f"{self.family.preset} {self.world} {self.seed} ({switches}; {self.config})"


def build_case(seed: int, family: Family, world: str) -> Case:
    """Return the case of a seed."""
    draw = random.Random(f"{seed} {family.preset} {world}")
    config = family.drawn_config(draw)
    switches = {name: draw.choice(values) for name, values in open_values(family, world).items()}
    switches |= {name: value for each, others in family.settles.items() if each in _texts(switches)
                 for name, value in others.items()}  # fmt: skip
    for each in (f"names={world}", *_texts(switches)):
        config |= family.needs.get(each, {})
    return Case(
        seed,
        family,
        world,
        family.whole_config(config),
        draw.choice(family.dtypes),
        switches,
        data=draw.choice((1, 2)),
        model=draw.choice((2, 4)),
        stages=draw.choice((1, 2)),
        optimizer=draw.random() < 0.5,
    )


def _texts(switches: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in switches.items()]


def open_values(family: Family, world: str) -> dict[str, list[str]]:
    """The values of these switches that the family has."""
    return {
        name: [value for value in switch.values if f"{name}={value}" not in family.refused]
        for name, switch in open_switches(family.preset, world).items()
    }


@cache
def open_switches(name: str, world: str) -> dict[str, Switch]:
    """The switches between rows of a world, and its spellings; not those that the names of a model's files show."""
    preset = read_preset(name)
    found = dict(_chosen(preset, world))
    if spellings := preset.names[world].spellings:
        table = read_spellings(spellings)
        settled = preset.names[world].switches
        found |= {
            key: each for key, each in _chosen(table, table.worlds[0]) if not each.shown_by and key not in settled
        }
    return found


def _chosen(preset: Preset, world: str) -> Iterator[tuple[str, Switch]]:
    rows = [row for _, row in preset.names[world].rows_of_weights]
    hf = {name for row in rows for name in row.hf}
    counted = {name for row in rows for name in row.when}
    for name, switch in preset.switches.items():
        is_shown = bool(switch.shown_by) and hf.issuperset(switch.shown_by.values())
        if name in counted and not is_shown:
            yield name, switch


def judged_worlds(family: Family) -> tuple[str, ...]:
    """The worlds that a family's models go through."""
    return tuple(world for world in read_preset(family.preset).worlds if world not in family.without)


def check_hugging_face(first: int, directory: Path) -> list[str]:
    """Return the problems of some models of each family, in each world."""
    directory.mkdir(parents=True, exist_ok=True)
    with TransformersJudge(directory / "transformers.log") as judge:
        return [
            f"{case}: {problem}"
            for number, family in enumerate(FAMILIES)  # several may be of one preset
            for world in judged_worlds(family)
            for seed in range(first, first + CASES_OF_EACH)
            for case in [build_case(seed, family, world)]
            for problem in check_case(case, judge, directory / f"{number}_{family.preset}_{world}_{seed}")
        ]


def check_case(case: Case, judge: TransformersJudge, directory: Path) -> list[str]:
    """Return the problems of a case, or how it failed."""
    try:
        return _check(case, judge, directory)
    except (ReshardError, RefusalError) as error:
        return [f"{type(error).__name__}: {error}"]
    except Exception:
        return traceback.format_exc().splitlines()[-4:]


def _check(case: Case, judge: TransformersJudge, directory: Path) -> list[str]:
    directory.mkdir()
    model, whole, ranks, back = (directory / name for name in ("model", "whole", "ranks", "back"))
    judge.ask("make_model", directory=str(model), config=case.config, dtype=case.dtype, seed=case.seed)
    switch = [f"names={case.world}", *_texts(case.switches)]
    preset = {"preset": case.family.preset, "switch": switch, "allow_model": [case.config["model_type"]]}
    convert(build_request(source=str(model), target=str(whole), layout="unified", **preset))
    problems = _against_rules(case, model, whole)
    strategy = directory / "strategy.ckpt"
    make_strategy(
        str(strategy),
        like=str(whole),
        data_parallel=case.data,
        model_parallel=case.model,
        pipeline=case.stages,
        optimizer_parallel=case.optimizer,
        optimizer_threshold_bytes=0,
        cuts=_cuts(case, whole),
        places=[f"{prefix}*=first" for prefix in read_preset(case.family.preset).passed],
    )
    convert(build_request(source=str(model), target=str(ranks), target_strategy=str(strategy), **preset))
    known = {"source_strategy": str(strategy), "layout": "unified", "like": str(model), "max_shard_size": "50KB"}
    convert(build_request(source=str(ranks), target=str(back), verify="content", **known, **preset))
    problems += judge.ask("compare_models", directory=str(model), other=str(back), seed=case.seed)
    same = compare_checkpoints(build_comparison(a=str(ranks), b=str(model), strategy_a=str(strategy), **preset))
    return problems if same.same else [*problems, f"reshard diff: {same.verdict}"]


def _against_rules(case: Case, model: Path, whole: Path) -> list[str]:
    """What the world's side has other than by its rules in numpy."""
    rules = case.family.rules.get(case.world)
    if rules is None:
        return []
    switches = {name: {"true": True, "false": False}.get(value, value) for name, value in case.switches.items()}
    hf = {name: _array(entry) for name, entry in directory_contents(model).items()}
    made = rules(hf, case.config, **switches)
    if made is None:
        return []
    expected = {name: array.tobytes() for name, array in made.items()}
    found = {name: entry[2] for name, entry in directory_contents(whole).items()}
    return [
        f"{name}: not as the rules of {case.world} have it"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def _array(entry: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    """The bits of a tensor: numpy has no bfloat16 of its own."""
    _, shape, content = entry
    return np.frombuffer(content, f"u{len(content) // math.prod(shape)}").reshape(shape)


def _cuts(case: Case, whole: Path) -> list[str]:
    """Most tensors with an axis that so many devices divide are cut there, along any such axis."""
    draw = random.Random(case.seed)
    cuts = []
    for name, (_, shape, _) in sorted(directory_contents(whole).items()):
        axes = [axis for axis, length in enumerate(shape) if length % case.model == 0]
        if axes and len(shape) > 1 and draw.random() < _CUT_PROBABILITY:
            cuts.append(f"{name}={draw.choice(axes)}")
    return cuts

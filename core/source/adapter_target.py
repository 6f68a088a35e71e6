"""An adapter as a target: what has to be known beside its tensors, by peft or by MindFormers' training."""

import json
import math
from collections import defaultdict

from reshard.core.changes.lora.pairing import matrix_of
from reshard.core.changes.lora.settings import LoraSettings
from reshard.core.errors import PlanError, raise_problems
from reshard.core.layouts.targets import side_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.preset_steps import without_state
from reshard.core.runtime.wording import counted
from reshard.core.source.adapter import CONFIG_NAME, AdapterChoice, recorded_settings_of, settings_of
from reshard.core.source.opening import Source
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option


def with_adapter_facts(plan: ConversionPlan, choice: AdapterChoice, source: Source, rank_factor: int) -> ConversionPlan:
    """Return the plan of an adapter with its configuration, if its target has one, or else a note on its scale.

    Its matrices have `rank_factor` times the source's rank.

    Raises:
        InputError: alpha is not known, and the configuration needs it.
        PlanError: its matrices do not go together, or the target cannot say what the source's configuration says.
        StorageError: a transient failure.
    """
    layout = plan.inputs.layout
    side = side_of(layout)
    needs_config = side.needs_adapter_config(layout)
    is_known = needs_config or choice.alpha
    settings = settings_of(choice, source) if is_known else recorded_settings_of(choice, source)
    ranks = _ranks(plan, choice, needs_config=needs_config)
    if settings is None:
        if rank_factor == 1:
            return plan
        return plan.with_notes(
            f"the source does not say what alpha is: a training that goes on from this adapter needs {rank_factor} "
            "times the lora_rank and the lora_alpha of the one before"
        )
    problem = _problem(settings, ranks, rank_factor)
    if problem:
        raise PlanError(f"{choice.url}: {problem}")
    rank = next(iter(ranks.values()))
    if not needs_config:
        alpha = f"{settings.scale_of('', rank // rank_factor) * rank:.12g}"
        return plan.with_notes(f"a training that goes on from this adapter needs lora_rank {rank}, lora_alpha {alpha}")
    config = _peft_config(settings, rank, _alpha(settings, rank_factor), sorted(ranks))
    note = f"{CONFIG_NAME}: r {rank}, lora_alpha {config['lora_alpha']}, {counted(len(ranks), 'module')}"
    return plan.with_layout(side.with_adapter_config(layout, json.dumps(config, indent=2) + "\n")).with_notes(note)


def _ranks(plan: ConversionPlan, choice: AdapterChoice, *, needs_config: bool) -> dict[str, int]:
    """The rank of each module in the target.

    Raises:
        PlanError: matrices do not go together, or there are states of the optimizer, and the target has no place.
    """
    shapes: dict[str, dict[str, Shape]] = defaultdict(dict)
    states = []
    for parameter in plan.match.resharded:
        matrix = matrix_of(parameter.name)
        if without_state(parameter.name) != parameter.name:
            states.append(parameter.name)
        elif matrix:
            module, which = matrix
            shapes[module][which] = parameter.shape
    if states and needs_config:
        raise PlanError(
            f"{choice.url}: has states of the optimizer, such as what becomes {states[0]!r}, and a directory of peft's "
            f"has no place for them: leave them out, {option('select', 'weights-only')}"
        )
    problems = [
        f"{module!r} would get A of shape {list(both['a'])} and B of {list(both['b'])}: they must be [rank, in] and "
        "[out, rank]"
        for module, both in shapes.items()
        if len(both) == 2 and not (len(both["a"]) == len(both["b"]) == 2 and both["a"][0] == both["b"][1])
    ]
    raise_problems(PlanError, f"{choice.url}: the matrices of this adapter do not go together", problems)
    return {module: both["a"][0] for module, both in shapes.items() if "a" in both}


def _alpha(settings: LoraSettings, rank_factor: int) -> float:
    """The alpha with which so many times the rank has the same scale."""
    return settings.alpha * (math.sqrt(rank_factor) if settings.is_rank_stabilized else rank_factor)


def _peft_config(settings: LoraSettings, rank: int, alpha: float, modules: list[str]) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "use_rslora": settings.is_rank_stabilized,
        "bias": "none",
        "target_modules": modules,
    }


def _problem(settings: LoraSettings, ranks: dict[str, int], rank_factor: int) -> str:
    """What the target's configuration cannot say, or the source's says wrongly; empty if there is nothing."""
    found = sorted({rank // rank_factor for rank in ranks.values()})
    what = ""
    if settings.rank_pattern or settings.alpha_pattern:
        what = "its configuration has rank_pattern or alpha_pattern, by names that change"
    elif settings.is_transposed:
        what = "its configuration has fan_in_fan_out, for a base whose matrices are transposed"
    elif len(found) != 1:
        what = f"its modules have ranks of {' and '.join(map(str, found)) or 'nothing'}"
    if what:
        return f"{what}; the target has no place for that. Merge it into its base instead, {option('lora')}"
    if settings.rank not in (0, found[0]):
        return (
            f"its matrices have rank {found[0]}, and its configuration says {settings.rank}: correct it, or name that "
            "of its own training"
        )
    return ""

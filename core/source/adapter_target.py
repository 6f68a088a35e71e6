"""An adapter as a target: what has to be known beside its tensors, by peft or by MindFormers' training."""

import json

from reshard.core.changes.lora.pairing import matrix_of
from reshard.core.changes.lora.settings import LoraSettings
from reshard.core.errors import PlanError
from reshard.core.layouts.targets import side_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import counted
from reshard.core.source.adapter import CONFIG_NAME, AdapterChoice, recorded_settings_of, settings_of
from reshard.core.source.opening import Source


def with_adapter_facts(plan: ConversionPlan, choice: AdapterChoice, source: Source) -> ConversionPlan:
    """Return the plan of an adapter with its configuration, if its target has one, or else a note on its scale.

    Raises:
        InputError: alpha is not known, and the configuration needs it.
        PlanError: the target cannot say what the source's configuration says.
        StorageError: a transient failure.
    """
    layout = plan.inputs.layout
    side = side_of(layout)
    needs_config = side.needs_adapter_config(layout)
    settings = settings_of(choice, source) if needs_config else recorded_settings_of(choice, source)
    if settings is None:
        return plan
    ranks: dict[str, int] = {}
    for parameter in plan.match.resharded:
        matrix = matrix_of(parameter.name)
        if matrix and matrix[1] == "a":
            ranks[matrix[0]] = parameter.shape[0]
    problem = _problem(settings, ranks)
    if problem:
        raise PlanError(f"{choice.url}: {problem}; the target has no place for that")
    rank = next(iter(ranks.values()))
    if not needs_config:
        alpha = f"{settings.scale_of('', rank) * rank:.12g}"
        return plan.with_notes(f"a training that goes on from this adapter needs lora_rank {rank}, lora_alpha {alpha}")
    config = _peft_config(settings, rank, sorted(ranks))
    note = f"{CONFIG_NAME}: r {rank}, lora_alpha {config['lora_alpha']}, {counted(len(ranks), 'module')}"
    return plan.with_layout(side.with_adapter_config(layout, json.dumps(config, indent=2) + "\n")).with_notes(note)


def _peft_config(settings: LoraSettings, rank: int, modules: list[str]) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": int(settings.alpha) if settings.alpha.is_integer() else settings.alpha,
        "lora_dropout": 0.0,
        "use_rslora": settings.is_rank_stabilized,
        "bias": "none",
        "target_modules": modules,
    }


def _problem(settings: LoraSettings, ranks: dict[str, int]) -> str:
    """What the target's configuration cannot say; empty if there is nothing."""
    if settings.rank_pattern or settings.alpha_pattern:
        return "its configuration has rank_pattern or alpha_pattern, by names that change"
    if settings.is_transposed:
        return "its configuration has fan_in_fan_out, for a base whose matrices are transposed"
    found = sorted(set(ranks.values()))
    if len(found) != 1:
        return f"its modules have ranks of {' and '.join(map(str, found)) or 'nothing'}"
    if settings.rank not in (0, found[0]):
        return f"its matrices have rank {found[0]}, and its configuration says {settings.rank}"
    return ""

"""What an adapter's configuration says: rank and scale of each module, and what cannot be merged.

PEFT's `adapter_config.json`. The tensors themselves say which modules are adapted, so its fields that choose these are
not looked at.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from reshard.core.changes.model_config import text_field
from reshard.core.changes.rules import regular_expression
from reshard.core.errors import InputError, raise_problems
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import quoted

_MEANINGLESS = frozenset(
    {
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "exclude_modules"),
        *("fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform"),
        *("lora_alpha", "lora_bias", "lora_dropout", "megatron_config", "megatron_core", "modules_to_save"),
        *("peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config"),
        *("target_modules", "target_parameters", "task_type", "use_dora", "use_rslora"),
    }
)
"""Fields that are read here, or do not change what a merge does."""
_CHANGING_STARTS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin a training that change the base's weights."""
_BIASES = ("none", "all", "lora_only")
_SWITCHES = ("fan_in_fan_out", "use_rslora")


class LoraSettings(Record):
    """What a configuration says of an adapter.

    Attributes:
        alpha: numerator of the scale.
        rank: the rank; 0: that of each matrix.
        rank_pattern: regular expression of a module's name -> its rank; the first that fits counts.
        alpha_pattern: the same for alpha.
        is_rank_stabilized: the scale is alpha / sqrt(rank), not alpha / rank.
        is_transposed: the base's matrices are [in, out].
        has_biases: it has biases that replace the base's.
        saved_modules: names, or the last parts of names, of modules that replace the base's.
        target_parameters: parameters, by the last parts of their names, that are adapted instead of modules.
        base: the model that it was trained with, as the configuration calls it; empty if it does not say.
    """

    alpha: float
    rank: int = 0
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    is_rank_stabilized: bool = False
    is_transposed: bool = False
    has_biases: bool = False
    saved_modules: tuple[str, ...] = ()
    target_parameters: tuple[str, ...] = ()
    base: str = ""

    @property
    def patterns(self) -> tuple[str, ...]:
        """All regular expressions, as they are matched with whole names."""
        return tuple(_of_whole(key) for key, _ in (*self.rank_pattern, *self.alpha_pattern))

    def rank_of(self, module: str) -> int:
        """Return the rank of a module; 0: that of its matrices."""
        return int(_first_fitting(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str, rank: int) -> float:
        """Return the factor of a module's product."""
        alpha = float(_first_fitting(self.alpha_pattern, module, self.alpha))
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank


def parse_peft_config(config: Mapping[str, Any], url: str) -> LoraSettings:
    """Read the fields of an `adapter_config.json`.

    Raises:
        InputError: it is not LoRA's, a field has a wrong type, or it asks for what reshard cannot merge.
    """
    problems = list(_problems(config))
    raise_problems(InputError, f"{url}: this adapter cannot be merged", problems)
    return LoraSettings(
        alpha=float(config["lora_alpha"]),
        rank=config["r"],
        rank_pattern=tuple((config.get("rank_pattern") or {}).items()),
        alpha_pattern=tuple((config.get("alpha_pattern") or {}).items()),
        is_rank_stabilized=bool(config.get("use_rslora")),
        is_transposed=bool(config.get("fan_in_fan_out")),
        has_biases=config.get("bias", "none") != "none",
        saved_modules=tuple(config.get("modules_to_save") or ()),
        target_parameters=tuple(config.get("target_parameters") or ()),
        base=text_field(config, "base_model_name_or_path"),
    )


def _problems(config: Mapping[str, Any]) -> list[str]:
    kind = config.get("peft_type")
    if kind != "LORA":
        return [f"its peft_type is {kind!r}, and reshard merges 'LORA' only"]
    found = []
    for name, value in config.items():
        if name not in _MEANINGLESS and _is_set(value):
            found.append(f"{quoted(name)} is {value!r}, which reshard does not support")
    if config.get("use_dora"):
        found.append("'use_dora' is true: DoRA's norms of whole rows are not supported; merge it with peft")
    if config.get("lora_bias"):
        found.append("'lora_bias' is true: biases of the matrix B are not supported; merge it with peft")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGING_STARTS):
        found.append(
            f"'init_lora_weights' is {start!r}: the training began with other weights than the base's. Convert the "
            "adapter with peft's path_initial_model_for_weight_conversion first"
        )
    if not is_count(config.get("r")):
        found.append(f"'r' must be a whole number from 1 on, not {config.get('r')!r}")
    if not is_scale(config.get("lora_alpha")):
        found.append(_bad_alpha("'lora_alpha'", config.get("lora_alpha")))
    if config.get("bias", "none") not in _BIASES:
        found.append(f"'bias' must be one of {', '.join(_BIASES)}, not {config['bias']!r}")
    for name, is_right in (("rank_pattern", is_count), ("alpha_pattern", is_scale)):
        found += _pattern_problems(name, config.get(name) or {}, is_right)
    for name in _SWITCHES:
        if config.get(name) not in (None, True, False):
            found.append(f"{name!r} must be true or false, not {config[name]!r}")
    for name in ("modules_to_save", "target_parameters"):
        value = config.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            found.append(f"{name!r} must be a list of names, not {value!r}")
    return found


def _pattern_problems(name: str, value: Any, is_right: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"{name!r} must map names to numbers, not {value!r}"]
    found = []
    for key, number in value.items():
        try:
            regular_expression(_of_whole(key))
        except ValueError as error:
            found.append(f"{name!r}: {error}")
        if not is_right(number):
            found.append(_bad_alpha(f"{name!r} of {quoted(key)}", number))
    return found


def _bad_alpha(what: str, value: object) -> str:
    return f"{what} must be a number above 0, not {value!r}" + (
        ": who wrote the adapter left it out. Correct it by the training's options" if value == 0 else ""
    )


def _is_set(value: object) -> bool:
    return value not in (None, False, "", [], {})


def is_count(value: object) -> bool:
    """True for a whole number from 1 on."""
    return type(value) is int and 1 <= value < 2**31


def is_scale(value: object) -> TypeGuard[float]:
    """True for a number above 0 whose products are finite in float32."""
    return type(value) in (int, float) and 0 < value < 1e30  # type: ignore[operator]


def _of_whole(key: str) -> str:
    """PEFT's way to match a key with the end of a module's name."""
    return rf"(.*\.)?({key})$"


def _first_fitting(patterns: tuple[tuple[str, Any], ...], module: str, default: Any) -> Any:
    return next((value for key, value in patterns if re.match(_of_whole(key), module)), default)

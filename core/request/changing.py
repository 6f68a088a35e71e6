"""Options of what becomes of parameters on their way to the target."""

from enum import StrEnum

from pydantic import Field, field_validator

from reshard.core.changes.changes import Fp8, OverflowPolicy, Selection
from reshard.core.changes.info_texts import InfoValue, parse_info
from reshard.core.changes.option_types import (
    ALLOW_MODEL_DESCRIPTION,
    AllowedModels,
    Casts,
    InfoTexts,
    LoraAlpha,
    Preset,
    Renames,
    Switches,
    WorldName,
)
from reshard.core.options.fields import Patterns, SharedParameters, Url
from reshard.core.options.validation import RequestModel, only_with


class UnmatchedPolicy(StrEnum):
    """What to do with parameters that the target's strategy lacks."""

    DROP = "drop"
    FAIL = "fail"


class Dialect(StrEnum):
    """How a Hugging Face directory names what transformers 5 names otherwise than files on the hub do."""

    AUTO = "auto"
    HUB = "hub"
    TRANSFORMERS5 = "transformers5"


DIALECT_DESCRIPTION = (
    "How the target's Hugging Face directory names experts. hub: one by one, as files on the hub. transformers5: all "
    "of a layer in one parameter, as transformers 5 has them in memory. auto: as the directory that the target is "
    "modelled on, or else hub."
)


class ChangeOptions(RequestModel):
    """Which parameters are converted, and how they change."""

    select: Selection = Field(
        default=Selection.ALL,
        description="weights-only: leave out optimizer moments, gradient accumulators, loss scale and other training "
        "state.",
    )
    include: Patterns = Field(
        default=[], description="Patterns (model.layers.*) of source parameters to convert. Empty: all."
    )
    exclude: Patterns = Field(default=[], description="Patterns of source parameters to leave out.")
    rename: Renames = Field(
        default=[],
        description="OLD=NEW, a parameter's name and its new name; or re:PATTERN=NEW, a regular expression that "
        "matches whole names, and the new name, which may refer to groups (re:layers\\.(\\d+)\\.(.*)=h.\\1.\\2). The "
        "first match counts.",
    )
    cast: Casts = Field(
        default=[],
        description="PATTERN=DTYPE (*=bfloat16): cast the floating-point parameters that match, rounding to nearest. "
        "The first match counts.",
    )
    cast_overflow: OverflowPolicy = Field(
        default=OverflowPolicy.FAIL,
        title="Overflow",
        description="If a cast makes finite values infinite: fail, or allow it and report how many.",
    )
    fp8: Fp8 = Field(
        default=Fp8.AUTO,
        title="fp8",
        description="What to do with 8-bit weights that have a scale for each block. keep: copy both unchanged. "
        "dequantize: make them bfloat16. auto: dequantize with a preset, else keep. quantize: make the linear layers "
        "of a Hugging Face directory fp8, in blocks of 128 x 128 (unified layout only).",
    )
    transpose: Patterns = Field(
        default=[], description="Patterns of parameters to transpose (reverse their axes). The first match counts."
    )
    changes: Url = Field(
        default="",
        description="A YAML or JSON file with these changes, and with splits and joins of fused parameters (qkv, "
        "gate-up). Options take precedence over it.",
    )
    preset: Preset = Field(
        default="",
        description="The model's family (qwen3; 'reshard presets' lists them), or a preset file of your own: converts "
        "names and layouts of MindFormers, Megatron or torchtitan to Hugging Face's, or the other way round, depending "
        "on the source's names.",
    )
    names: WorldName = Field(
        default="",
        title="Names of the target",
        description="Whose names the target gets: hf, mindformers, megatron or titan, if the preset has them, "
        "or one of its worlds (mcore, legacy). Empty: Hugging Face's, or MindFormers' if the source has Hugging "
        "Face's.",
    )
    switch: Switches = Field(
        default=[],
        description="NAME=VALUE, a fact that the preset needs and the checkpoint does not show; names=WORLD says whose "
        "names the source has, where they do not show it.",
    )
    dialect: Dialect = Field(default=Dialect.AUTO, title="Dialect of names", description=DIALECT_DESCRIPTION)
    lora: Url = Field(
        default="",
        title="LoRA adapter",
        description="A LoRA adapter to merge into the source's weights, before all other changes, or after the "
        "preset's if it has the names that these make: a directory of PEFT's or MindFormers', or the source itself, if "
        "its files have both.",
    )
    lora_alpha: LoraAlpha = 0.0
    training_config: Url = Field(
        default="",
        description="The training's YAML, from which the preset's switches and the adapter's alpha are taken.",
    )
    config_json: Url = Field(
        default="",
        title="config.json",
        description="The model's config.json, or its directory, with the numbers that the preset needs. Empty: the one "
        "in the directory that the target is modelled on, or beside the source.",
    )
    allow_model: AllowedModels = Field(default=[], title="Allowed models", description=ALLOW_MODEL_DESCRIPTION)

    _check_of_either = field_validator("lora_alpha", "training_config")(only_with("preset", "lora"))
    _check_of_preset = field_validator("names", "switch", "dialect", "config_json", "allow_model")(only_with("preset"))


class MatchingOptions(RequestModel):
    """What becomes of parameters that one side lacks, or that several stages hold, and what every file gets."""

    unmatched: UnmatchedPolicy = Field(
        default=UnmatchedPolicy.DROP,
        title="Unmatched parameters",
        description="Parameters that only the source strategy has (often optimizer state): drop and report them, or "
        "fail.",
    )
    append_info: InfoTexts = Field(
        default=[],
        title="Appended information",
        description="NAME=VALUE (epoch_num=5) to write into every target file, replacing the source's value. Values "
        "are true, false, a number or text; the prefix text: makes any value a text (version=text:2.0).",
    )
    shared_parameters: SharedParameters = Field(
        default="first",
        description="What to do if pipeline stages of the source hold different contents for the same parameter, such "
        "as a tied embedding. first: take the first stage's; a number: take that stage's; fail: stop.",
    )

    @property
    def info(self) -> tuple[tuple[str, InfoValue], ...]:
        """Names and values for every target file."""
        return parse_info(self.append_info)

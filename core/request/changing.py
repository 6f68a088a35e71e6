"""Options of what becomes of parameters on their way to the target."""

from enum import StrEnum

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.changes.changes import OverflowPolicy, Selection
from reshard.core.changes.info_texts import InfoValue, parse_info
from reshard.core.changes.option_types import (
    ALLOW_MODEL_DESCRIPTION,
    AllowedModels,
    Casts,
    InfoTexts,
    Preset,
    Renames,
    Switches,
)
from reshard.core.options.fields import Patterns, SharedParameters, Url
from reshard.core.options.validation import RequestModel
from reshard.core.text.options import option, spelled


class UnmatchedPolicy(StrEnum):
    """What to do with parameters that the target's strategy lacks."""

    DROP = "drop"
    FAIL = "fail"


class ChangeOptions(RequestModel):
    """Which parameters are converted, and how they change."""

    select: Selection = Field(
        default=Selection.ALL,
        description="weights-only: without optimizer moments, gradient accumulators, loss scale and other training "
        "state.",
    )
    include: Patterns = Field(
        default=[], description="Patterns (model.layers.*) of source parameters to convert. Empty: all."
    )
    exclude: Patterns = Field(default=[], description="Patterns of source parameters to leave out.")
    rename: Renames = Field(
        default=[],
        description="OLD=NEW, a parameter's name and its new one; or re:PATTERN=NEW, a regular expression of whole "
        "names and what they become, with its groups (re:layers\\.(\\d+)\\.(.*)=h.\\1.\\2). The first match "
        "counts.",
    )
    cast: Casts = Field(
        default=[],
        description="PATTERN=DTYPE (*=bfloat16): floating-point parameters that get another dtype, rounded to the "
        "nearest. The first match counts.",
    )
    cast_overflow: OverflowPolicy = Field(
        default=OverflowPolicy.FAIL,
        title="Overflow",
        description="If finite values become infinite in the dtype that they are cast to: fail, or allow it and "
        "report how many do.",
    )
    transpose: Patterns = Field(
        default=[], description="Patterns of parameters whose axes are reversed. The first match counts."
    )
    changes: Url = Field(
        default="",
        description="A YAML or JSON file that declares all these changes, and splits and joins of fused parameters "
        "(qkv, gate-up) as well. Options take precedence over it.",
    )
    preset: Preset = Field(
        default="",
        description="The model's family (qwen3; reshard presets lists them), by which MindFormers' names and layouts "
        "become Hugging Face's, or the other way round, as the source's names tell; or a document of your own.",
    )
    switch: Switches = Field(
        default=[],
        description="NAME=VALUE, a fact that the preset needs and the checkpoint does not hold.",
    )
    training_config: Url = Field(default="", description="The training's YAML, from which the preset reads such facts.")
    config_json: Url = Field(
        default="",
        title="config.json",
        description="The model's config.json, or its directory, for the numbers that the preset needs. Empty: the one "
        "in the directory that the target is modelled on, or beside the source.",
    )
    allow_model: AllowedModels = Field(default=[], title="Allowed models", description=ALLOW_MODEL_DESCRIPTION)

    @field_validator("switch", "training_config", "config_json", "allow_model")
    @classmethod
    def _check_of_preset(cls, value: list[str] | str, info: ValidationInfo) -> list[str] | str:
        if value and not info.data.get("preset", True):
            raise ValueError(spelled(f"only valid with {option('preset')}"))
        return value


class MatchingOptions(RequestModel):
    """What becomes of parameters that one side lacks, or that several stages hold, and what every file gets."""

    unmatched: UnmatchedPolicy = Field(
        default=UnmatchedPolicy.DROP,
        title="Unmatched parameters",
        description="Parameters of the source's strategy that the target's lacks (optimizer state, often): drop and "
        "report them, or fail.",
    )
    append_info: InfoTexts = Field(
        default=[],
        title="Appended information",
        description="NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A "
        "value is true or false, a number, or else text; after text: it is always text (version=text:2.0).",
    )
    shared_parameters: SharedParameters = Field(
        default="first",
        description="If several pipeline stages of the source hold a parameter, such as tied embeddings, with "
        "different contents: first, take the first stage's; a number, that stage's; fail.",
    )

    @property
    def info(self) -> tuple[tuple[str, InfoValue], ...]:
        """Names and values for every target file."""
        return parse_info(self.append_info)

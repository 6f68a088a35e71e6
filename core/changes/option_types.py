"""Types of options that declare changes: rules, presets and what these need, and information for the target's files."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from reshard.core.changes.changes import parse_cast, parse_rename
from reshard.core.changes.info_texts import InfoValue, check_info, format_value, parse_info
from reshard.core.options.fields import (
    NO_CREDENTIALS,
    Metavar,
    check_no_credentials,
    each_parsed_by,
    parsed_by,
    pattern_of,
)
from reshard.core.options.written import PATH, TEXTS, Bare, pairs_by, text_itself, text_of_setting

PRESET_NAME = pattern_of(rf"^([\w-]+$|{NO_CREDENTIALS})", "the name of a preset, or the path or URL of a changed one")

WORLD_NAME = pattern_of(r"^[\w-]*$", "the name of a world")


def is_own_preset(name: str) -> bool:
    """True if a preset is named by the URL of its document, and not one of the package's."""
    return "/" in name or name.endswith((".yaml", ".yml", ".json"))


def _parse_switch(text: str) -> None:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r} must be NAME=VALUE")


def _text_of_info(name: str, value: Any) -> str:
    if not isinstance(value, InfoValue):
        raise ValueError(f"the value of {name!r} must be a text, a number, true or false, not {value!r}")
    return value if isinstance(value, Bare) else format_value(check_info(name, value))


_RULES = pairs_by(text_itself, str.rpartition, "Rules")

Renames = Annotated[list[str], _RULES, each_parsed_by(parse_rename), Metavar("OLD=NEW")]
Casts = Annotated[list[str], _RULES, each_parsed_by(parse_cast), Metavar("PATTERN=DTYPE")]
Preset = Annotated[
    str, Field(json_schema_extra=PRESET_NAME), PATH, AfterValidator(check_no_credentials), Metavar("NAME|URL")
]
Switches = Annotated[
    list[str],
    pairs_by(text_of_setting, str.partition, "Settings"),
    each_parsed_by(_parse_switch),
    Metavar("NAME=VALUE"),
]
ALLOW_MODEL_DESCRIPTION = (
    "A model_type (kimi_k2) to accept although the preset does not list it: the model must have the names and layouts "
    "of the preset's family."
)
LoraAlpha = Annotated[
    float,
    Field(
        title="LoRA's alpha",
        ge=0,
        allow_inf_nan=False,
        description="Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.",
    ),
]
WorldName = Annotated[str, Field(json_schema_extra=WORLD_NAME), Metavar("WORLD")]
AllowedModels = Annotated[list[str], TEXTS, Metavar("TYPE")]
InfoTexts = Annotated[
    list[str], pairs_by(_text_of_info, str.partition, "Settings"), parsed_by(parse_info), Metavar("NAME=VALUE")
]

"""Types of options that declare changes: rules, presets and what these need, and information for the target's files."""

from typing import Annotated

from pydantic import AfterValidator, Field

from reshard.core.changes.changes import parse_cast, parse_rename
from reshard.core.changes.info_texts import parse_info
from reshard.core.options.fields import (
    NO_CREDENTIALS,
    Metavar,
    check_no_credentials,
    each_parsed_by,
    parsed_by,
    pattern_of,
)

PRESET_NAME = pattern_of(rf"^([\w-]+$|{NO_CREDENTIALS})", "the name of a preset, or the path or URL of a changed one")


def is_own_preset(name: str) -> bool:
    """True if a preset is named by the URL of its document, and not one of the package's."""
    return "/" in name or name.endswith((".yaml", ".yml", ".json"))


def _parse_switch(text: str) -> None:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r} must be NAME=VALUE")


Renames = Annotated[list[str], each_parsed_by(parse_rename), Metavar("OLD=NEW")]
Casts = Annotated[list[str], each_parsed_by(parse_cast), Metavar("PATTERN=DTYPE")]
Preset = Annotated[str, Field(json_schema_extra=PRESET_NAME), AfterValidator(check_no_credentials), Metavar("NAME|URL")]
Switches = Annotated[list[str], each_parsed_by(_parse_switch), Metavar("NAME=VALUE")]
ALLOW_MODEL_DESCRIPTION = (
    "A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model must have the "
    "names and layouts of the preset's family."
)
AllowedModels = Annotated[list[str], Metavar("TYPE")]
InfoTexts = Annotated[list[str], parsed_by(parse_info), Metavar("NAME=VALUE")]

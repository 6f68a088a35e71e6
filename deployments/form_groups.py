"""Groups of fields in the forms of conversions and comparisons: what most runs need is open, the rest folded by group.

A group is a parameter of its own with its fields inside. Prefect's form shows `anyOf` as tabs; the first tab is empty,
so a group stays closed and out of the run's parameters. Through the API fields may also be given directly: the schema
has them as `patternProperties`, and the server checks them in either place.

`prefect deployment run --param` takes only names of `properties`, and Prefect's form shows all of these. So
`convert-expert`, for shells, has all fields there, with the group in front of a field's title.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prefect import Flow
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel

from reshard.core.errors import InputError
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.groups import GROUPS
from reshard.core.runtime.records import Record

EVERYDAY = (
    *("source", "source_strategy", "target", "target_strategy", "step"),
    *("select", "format", "layout", "verify", "overwrite", "dry_run"),
    *("keep_checkpoint_max", "approval_seconds"),
)
"""Fields of a conversion's form outside of its groups."""

_GROUPS_OF_COMPARISONS = {
    "How A and B were saved": (
        *("auto_strategy", "root_a", "root_b", "integrated_save_a", "integrated_save_b"),
        *("trust_strategy_a", "trust_strategy_b"),
    ),
    "Changes between A and B": (
        *("preset", "names", "changes", "fp8", "switch", "lora", "lora_alpha"),
        *("training_config", "config_json", "allow_model"),
    ),
    "Encrypted checkpoints": ("decrypt_key_a", "decrypt_mode_a", "decrypt_key_b", "decrypt_mode_b"),
    "Resources": ("workers", "memory_limit", "bandwidth_limit", "storage_a", "storage_b"),
}

GROUPED = "grouped"
"""Keyword of a group's parameter with the names of its fields, from which `form_schema` makes the group."""
_CLOSED = {"type": "object", "title": "Defaults"}
_OPEN = "Change"


class Group(Record):
    """A group of a form's fields, by their names."""

    title: str
    fields: tuple[str, ...]

    @property
    def parameter(self) -> str:
        """The parameter of runs that has the fields."""
        return re.sub(r"\W+", "_", self.title.lower())


def groups_of(model: type[BaseModel]) -> tuple[Group, ...]:
    """Return the groups of a request's form; small forms have none."""
    return tuple(_groups_of(model))


def _groups_of(model: type[BaseModel]) -> Iterator[Group]:
    for title, names in _titled_groups(model).items():
        fields = tuple(name for name in names if name in model.model_fields and name not in EVERYDAY)
        if fields:
            yield Group(title, fields)


def _titled_groups(model: type[BaseModel]) -> Mapping[str, tuple[str, ...]]:
    if issubclass(model, ConversionOptions):
        return GROUPS
    return _GROUPS_OF_COMPARISONS if issubclass(model, ComparisonRequest) else {}


def title_of(model: type[BaseModel], name: str) -> str:
    """Return the title of a form's field, with its group in front if it has one."""
    title = str(model.model_fields[name].title)
    return next((f"{group.title}: {title}" for group in groups_of(model) if name in group.fields), title)


def form_schema(form: Flow[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a deployed flow's parameters, with its fields in groups if it has any.

    The server refuses a run with any other parameter, which would crash without saying why.
    """
    schema: dict[str, Any] = parameter_schema(form).model_dump(exclude_unset=True)
    schema["properties"] = properties = {name: _in_words(field) for name, field in schema["properties"].items()}
    groups = {name: field for name, field in properties.items() if GROUPED in field}
    if not groups:
        return schema | {"additionalProperties": False}
    definitions: dict[str, Any] = schema.setdefault("definitions", {})
    patterns: dict[str, Any] = {}
    for parameter, shown in groups.items():
        inside = enumerate(shown[GROUPED])
        fields = {name: properties.pop(name) | {"position": place} for place, name in inside}
        patterns |= {f"^{name}$": field for name, field in fields.items()}
        definitions[parameter] = {"type": "object", "properties": fields, "additionalProperties": False}
        group = {"$ref": f"#/definitions/{parameter}"}
        patterns[f"^{parameter}$"] = group
        properties[parameter] = {
            "title": shown["title"],
            "description": ", ".join(field["title"] for field in fields.values()),
            "position": shown["position"],
            "anyOf": [_CLOSED, group | {"title": _OPEN}],
        }
    # not `additionalProperties`: its error would list all patterns
    return schema | {"patternProperties": patterns, "unevaluatedProperties": False}


def _in_words(field: dict[str, Any]) -> dict[str, Any]:
    """Let the server say in words what it expects in a field; of a pattern it would show the regular expression."""
    if "expected" not in field:
        return field
    kept = {name: value for name, value in field.items() if name not in ("pattern", "expected")}
    return kept | {"if": {"not": {"pattern": field["pattern"]}}, "then": {"const": field["expected"]}}


def ungrouped(model: type[BaseModel], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, wherever the parameters of a run have them.

    Raises:
        InputError: a field is given twice, or a group has one that is not its own.
    """
    groups = {group.parameter: group.fields for group in groups_of(model)}
    fields = {name: value for name, value in parameters.items() if name not in groups}
    for group, names in groups.items():
        inside = parameters.get(group) or {}
        if not isinstance(inside, Mapping):
            raise InputError(f"{group}: must be a mapping of its fields, not {type(inside).__name__}")
        for name, value in inside.items():
            if name not in names:
                raise InputError(f"{group}: has no field {name!r}; its fields are {', '.join(names)}")
            # Prefect passes the defaults of what is not given
            if fields.get(name, value) not in (value, model.model_fields[name].get_default()):
                why = f"is given directly, and differently in {group}"
                raise InputError(f"{name}: {why}: leave one of them out, or fill in a new form")
            fields[name] = value
    return fields

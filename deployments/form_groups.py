"""Groups of fields in the forms of conversions: the fields that most runs need come first, the others by group.

`prefect deployment run --param` takes only names of `properties`, and Prefect's form shows all of these. So deployments
that shells and programs start have all fields there, with the group in front of a field's title. In the one that people
start, a group is a parameter of its own with its fields inside, and opens on demand. There the fields may also be given
directly through the API: the schema has them as `patternProperties`, and the server checks them in either place.

The form shows `anyOf` as tabs. The first tab is empty, so a group stays closed and out of the run's parameters.
"""

import re
from collections.abc import Mapping
from typing import Any

from prefect import Flow
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel

from reshard.core.errors import InputError
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.groups import GROUPS

EVERYDAY = (
    *("source", "source_strategy", "target", "target_strategy", "step"),
    *("select", "format", "layout", "verify", "overwrite", "dry_run"),
    "approval_seconds",
)
"""Fields of a conversion's form outside of its groups."""

_CLOSED = {"type": "object", "title": "Defaults"}
_OPEN = "Change"


def groups_of(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return the groups of a request's form that open on demand, by parameter: the fields in each."""
    if not issubclass(model, ApprovedConversionRequest):
        return {}
    fields = model.model_fields
    groups = {
        _parameter(title): tuple(name for name in names if name in fields and name not in EVERYDAY)
        for title, names in GROUPS.items()
    }
    return {name: fields for name, fields in groups.items() if fields}


def title_of(model: type[BaseModel], name: str) -> str:
    """Return the title of a form's field, with its group if that is not shown otherwise."""
    title = str(model.model_fields[name].title)
    if name in EVERYDAY or groups_of(model) or not issubclass(model, ConversionOptions):
        return title
    return next((f"{group}: {title}" for group, names in GROUPS.items() if name in names), title)


def form_schema(form: Flow[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a deployed flow's parameters, with its fields in groups if it has any.

    The server refuses a run with any other parameter, which would crash without saying why.
    """
    schema: dict[str, Any] = parameter_schema(form).model_dump(exclude_unset=True)
    schema["properties"] = properties = {name: _in_words(field) for name, field in schema["properties"].items()}
    present = {title: _parameter(title) for title in GROUPS if _parameter(title) in properties}
    if not present:
        return schema | {"additionalProperties": False}
    definitions: dict[str, Any] = schema.setdefault("definitions", {})
    patterns: dict[str, Any] = {}
    for title, parameter in present.items():
        position = properties.pop(parameter)["position"]
        inside = [name for name in GROUPS[title] if name in properties and name not in EVERYDAY]
        fields = {name: properties.pop(name) | {"position": place} for place, name in enumerate(inside)}
        patterns |= {f"^{name}$": field for name, field in fields.items()}
        definitions[parameter] = {"type": "object", "properties": fields, "additionalProperties": False}
        group = {"$ref": f"#/definitions/{parameter}"}
        patterns[f"^{parameter}$"] = group
        properties[parameter] = {
            "title": title,
            "description": ", ".join(field["title"] for field in fields.values()),
            "position": position,
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
    groups = groups_of(model)
    fields = {name: value for name, value in parameters.items() if name not in groups}
    for group, names in groups.items():
        inside = parameters.get(group) or {}
        if not isinstance(inside, Mapping):
            raise InputError(f"{group}: must be its fields by name, not {type(inside).__name__}")
        for name, value in inside.items():
            if name not in names:
                raise InputError(f"{group}: has no field {name!r}, but {', '.join(names)}")
            # Prefect passes the defaults of what is not given
            if fields.get(name, value) not in (value, model.model_fields[name].get_default()):
                why = f"is given directly, and differently in {group}"
                raise InputError(f"{name}: {why}: leave one of them out, or fill in a new form")
            fields[name] = value
    return fields


def _parameter(title: str) -> str:
    return re.sub(r"\W+", "_", title.lower())

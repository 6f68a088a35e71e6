"""Requests as documents: the fields of a request by name, in YAML or JSON.

The same fields as keywords of the functions of `reshard`, and of Prefect's forms. YAML is written so that every reader
of it takes numbers of steps and the like for texts.
"""

from collections.abc import Collection
from typing import Any

import yaml
from pydantic import BaseModel

from reshard.core.changes.documents import parse_mapping
from reshard.core.errors import InputError
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.text.options import option

_COMMAND_LINE_ONLY = ("dry_run", "engine", "json")
"""Options of commands that decide how a request is carried out, not what it is."""


def parse_job(
    data: bytes,
    origin: str,
    model: type[BaseModel],
    passed_over: Collection[str] = (),
    options: Collection[str] = _COMMAND_LINE_ONLY,
) -> dict[str, Any]:
    """Return the fields of a request that a document gives, unchecked.

    `passed_over` are fields of other requests, `options` names of the command's options, for messages.

    Raises:
        InputError: it is malformed, or has other fields.
    """
    document = parse_mapping(data, origin, "document of options", "source: checkpoint", texts=True) or {}
    unknown = [name for name in document if name not in model.model_fields and name not in passed_over]
    if unknown:
        raise InputError("\n".join(f"{origin}: {name}: {_advice(name, model, options)}" for name in unknown))
    return {name: value for name, value in document.items() if name in model.model_fields and value is not None}


def dump_job(request: BaseModel) -> str:
    """Format a request as YAML: what it must have, and what differs from the defaults."""
    defaults = {name: field for name, field in type(request).model_fields.items() if not field.is_required()}
    given = request.model_dump(mode="json")
    document = {name: value for name, value in given.items() if name not in defaults or value != defaults[name].default}
    return _yaml(document)


def _yaml(document: dict[str, Any]) -> str:
    text = _dumped(document, allow_unicode=True)
    # some characters change how a terminal shows a text
    return text if text.replace("\n", "").isprintable() else _dumped(document, allow_unicode=False)


def _dumped(document: dict[str, Any], *, allow_unicode: bool) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=allow_unicode, width=2**20))


def _advice(name: str, model: type[BaseModel], options: Collection[str]) -> str:
    if name in _COMMAND_LINE_ONLY and name in options:
        return f"there is no such field; it belongs on the command line: {option(name)}"
    return f"there is no such field{did_you_mean(name, model.model_fields)}"

"""Documents that declare changes: what they may hold, and what is wrong with one, in its own words."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.errors import InputError
from reshard.core.text.printing import listed_lines

_MESSAGES = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "model_type": "must be a mapping of a rule's fields, such as {{parameters: …}}",
    "string_type": "must be a text",
    "too_long": "has too many items: at most {max_length}",
    "tuple_type": "must be a list, between [ and ]",
}
"""pydantic's kind of error -> message in the words of documents."""


def read_changes(url: str) -> Changes:
    """Read the changes that a document declares."""
    from reshard.core.changes.documents import read_document  # loads YAML

    return parse_changes(read_document(url), url)


def parse_changes(data: bytes, origin: str) -> Changes:
    """Parse the changes that a document declares; `origin` is its name in messages."""
    from reshard.core.changes.documents import parse_mapping

    document = parse_mapping(data, origin, "document of changes", "exclude: [adam_*]")
    return NO_CHANGES if document is None else validated_changes(document, origin)


def validated_changes(document: Mapping[str, Any], origin: str) -> Changes:
    """Return the changes that a mapping declares; `origin` is its name in messages.

    Raises:
        InputError: it is malformed.
    """
    try:
        return Changes.model_validate(document)
    except ValidationError as error:
        problems = [_field_problem(detail) for detail in error.errors(include_url=False, include_input=False)]
        raise InputError("\n".join(f"{origin}: {problem}" for problem in listed_lines(problems))) from error


def _field_problem(detail: Any) -> str:
    """Format what is wrong with a field: `split[0].into: …`."""
    place = ""
    for part in detail["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    message = _MESSAGES.get(detail["type"])
    problem = message.format(**detail.get("ctx", {})) if message else detail["msg"].removeprefix("Value error, ")
    return f"{place}: {problem.replace('Input should be', 'must be')}"

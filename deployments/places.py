"""Absolute paths for deployed runs: relative ones are refused.

A run's process works in a directory of its own, which is removed when the run ends. A relative path would never find
the intended file there, and a target would be removed right after it was verified.
"""

import os

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reshard.core.request.fields import STORAGE_NAME, WITHOUT_CREDENTIALS

_ADVICE = (
    "a relative path, but a deployed run works in a directory of its own, which is removed when it ends: give an "
    "absolute path, or a URL"
)
_LOCAL = "|".join(LocalFileSystem.protocol)
_ABSOLUTE = rf"(?=$|[/~]|[A-Za-z][\w+.-]*://)(?!({_LOCAL})://[^/])"
_OF_REQUESTS, _OF_NAMES = str(WITHOUT_CREDENTIALS["pattern"]), str(STORAGE_NAME["pattern"])
_PATTERNS = {
    _OF_REQUESTS: f"^{_ABSOLUTE}{_OF_REQUESTS.removeprefix('^')}",
    _OF_NAMES: _OF_NAMES.replace(r"file:\S", "file:[/~]"),
}
"""A request's pattern of places, or of names that may be a file's -> the form's pattern."""


def deployed_pattern(field: FieldInfo) -> str | None:
    """The pattern of a field in a form's schema, if the field holds a place; short rather than exact."""
    return _PATTERNS.get(_pattern_of(field))


def relative_places(request: BaseModel) -> dict[str, str]:
    """Fields of a request with a relative path -> the problem and the remedy."""
    fields = {name: _pattern_of(field) for name, field in type(request).model_fields.items()}
    places = {name: str(getattr(request, name)) for name, pattern in fields.items() if pattern in _PATTERNS}
    return {
        name: f"{place!r}: {_ADVICE}" for name, place in places.items() if place and _is_relative(place, fields[name])
    }


def _pattern_of(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("pattern", "")) if isinstance(extra, dict) else ""


def _is_relative(place: str, pattern: str) -> bool:
    if pattern == _OF_NAMES:
        kind, _, path = place.partition(":")
        return kind == "file" and not _is_absolute(path)
    protocol, separator, path = place.partition("://")
    if not separator:
        return not _is_absolute(place)
    return protocol in LocalFileSystem.protocol and not path.startswith("/")


def _is_absolute(path: str) -> bool:
    return os.path.isabs(os.path.expanduser(path))

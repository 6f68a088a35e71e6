"""Places that a deployed run may be given: absolute ones.

Its process works in a directory of its own, which is removed when it ends: what a relative path names there is never
what was meant, and a target there is gone a moment after it was verified.
"""

import os

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from core.request import STORAGE_NAME, WITHOUT_CREDENTIALS

_ADVICE = (
    "a relative path, but a deployed run works in a directory of its own, which is removed when it ends: give an "
    "absolute path, or a URL"
)
_LOCAL = "|".join(LocalFileSystem.protocol)
_ABSOLUTE = rf"(?=$|[/~]|[A-Za-z][\w+.-]*://)(?!({_LOCAL})://[^/])"
_OF_REQUESTS, _OF_NAMES = str(WITHOUT_CREDENTIALS["pattern"]), str(STORAGE_NAME["pattern"])
_PATTERNS = {
    _OF_REQUESTS: f"^{_ABSOLUTE}{_OF_REQUESTS.removeprefix('^')}",
    _OF_NAMES: r"^((env|block):\S.*|file:[/~].*)?$",
}
"""What a request's schema demands of a place, or of a name that may be a file's -> what a form's does."""


def deployed_pattern(field: FieldInfo) -> str | None:
    """The pattern of a field in a form's schema, if it holds a place: short rather than exact, as a request's are."""
    return _PATTERNS.get(_pattern_of(field))


def relative_places(request: BaseModel) -> dict[str, str]:
    """The fields of a request that name something by a relative path -> what is wrong with that, and what to do."""
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

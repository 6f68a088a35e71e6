"""Absolute paths for deployed runs: relative ones are refused.

A run's process works in a directory of its own, which is removed when the run ends. A relative path would never find
the intended file there, and a target would be removed right after it was verified.
"""

import os

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reshard.core.changes.option_types import PRESET_NAME, is_own_preset
from reshard.core.options.fields import STORAGE_NAME, WITHOUT_CREDENTIALS
from reshard.core.runtime.records import Record

_ADVICE = (
    "a relative path, but a deployed run works in a temporary directory of its own: give an absolute path, or a URL"
)
_LOCAL = "|".join(LocalFileSystem.protocol)
_ABSOLUTE = rf"(?=$|[/~]|[A-Za-z][\w+.-]*://)(?!({_LOCAL})://[^/])"
_OF_REQUESTS, _OF_NAMES = str(WITHOUT_CREDENTIALS["pattern"]), str(STORAGE_NAME["pattern"])
_OF_PRESETS = str(PRESET_NAME["pattern"])


class DeployedPlaces(Record):
    """What a form accepts in a field with a place, or with a name that may be a file's.

    Attributes:
        pattern: a regular expression, short rather than exact.
        expected: the same in words.
        note: addition to the field's description.
    """

    pattern: str
    expected: str
    note: str


_DEPLOYED = {
    _OF_REQUESTS: DeployedPlaces(
        f"^{_ABSOLUTE}{_OF_REQUESTS.removeprefix('^')}",
        "an absolute path such as /data/x, or a URL such as s3://bucket/x, without a password, token or signature",
        "An absolute path (/data/x) on the worker's machine, or a URL.",
    ),
    _OF_PRESETS: DeployedPlaces(
        rf"^([\w-]+$|{_ABSOLUTE}{_OF_REQUESTS.removeprefix('^')})",
        "the name of a preset, or the absolute path or URL of a changed one, without a password, token or signature",
        "Its path is absolute (/data/x), on the worker's machine.",
    ),
    _OF_NAMES: DeployedPlaces(
        _OF_NAMES.replace(r"file:\S", "file:[/~]"),
        "env:NAME, block:NAME or file:/ABSOLUTE/PATH, which name where it is kept",
        "PATH is absolute (/run/x), on the worker's machine.",
    ),
}
"""A request's pattern of places, or of names that may be a file's -> what forms accept."""


def deployed_places(field: FieldInfo) -> DeployedPlaces | None:
    """What a form accepts in a field, if the field holds a place, or a name that may be a file's."""
    return _DEPLOYED.get(_pattern_of(field))


def relative_places(request: BaseModel) -> dict[str, str]:
    """Fields of a request with a relative path -> the problem and the remedy."""
    fields = {name: _pattern_of(field) for name, field in type(request).model_fields.items()}
    places = {name: str(getattr(request, name)) for name, pattern in fields.items() if pattern in _DEPLOYED}
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
    if pattern == _OF_PRESETS and not is_own_preset(place):
        return False
    protocol, separator, path = place.partition("://")
    if not separator:
        return not _is_absolute(place)
    return protocol in LocalFileSystem.protocol and not path.startswith("/")


def _is_absolute(path: str) -> bool:
    return os.path.isabs(os.path.expanduser(path))

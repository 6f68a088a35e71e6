"""A training's configuration, MindFormers' YAML: what a checkpoint does not show."""

from collections.abc import Collection, Iterator
from typing import Any

from reshard.core.errors import InputError
from reshard.core.request.documents import parse_mapping, read_document


def read_switches(url: str, names: Collection[str]) -> dict[str, str]:
    """Return the values that a training's configuration has for some fields, wherever they stand in it.

    Raises:
        InputError: the document is malformed, or has a field with several values.
        StorageError: a transient failure.
    """
    document = parse_mapping(read_document(url), url, "training's configuration", "model: …", texts=True)
    found: dict[str, str] = {}
    for name, value in _fields(document):
        if name not in names or not isinstance(value, str):
            continue
        text = value.lower()
        if found.setdefault(name, text) != text:
            raise InputError(
                f"{url}: has {name} twice, as {found[name]} and {text}: say which with --switch {name}=VALUE"
            )
    return found


def _fields(document: Any) -> Iterator[tuple[str, Any]]:
    left = [document]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield from each.items()
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)

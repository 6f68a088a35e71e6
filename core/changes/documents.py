"""Reads YAML and JSON documents that users write: small, with bounded memory; most have each name once."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser
from yaml.resolver import Resolver

from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.options.written import Bare
from reshard.core.storage.listing import is_missing
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import parse_url

MAX_DOCUMENT_BYTES = 2**20
_MAX_NODES = 2**20
_MAX_VALUES = 2**17
_BOOLEANS = ("true", "false")


def read_document(url: str) -> bytes:
    """Read a document; a missing or too large one is an InputError."""
    location = parse_url(url)
    try:
        return read_small_file(location, MAX_DOCUMENT_BYTES)
    except StorageError as error:
        if is_transient(error):
            raise
        raise InputError(f"{error.marked}{did_you_mean(location) if is_missing(error) else ''}") from error


def parse_mapping(data: bytes, origin: str, kind: str, example: str, *, texts: bool = False) -> dict[str, Any] | None:
    """Parse a document, JSON if its name ends in .json, else YAML; None if it is empty.

    Args:
        data: the document.
        origin: its name in messages.
        kind: what it is, such as `document of changes`.
        example: a line of such a document.
        texts: all scalars of YAML are texts as they are written, but for null: 10_5 is no number, nor is yes true.
            Values of mappings inside are `Bare` if they have no quotes.

    Raises:
        InputError: it is malformed, or not a mapping.
    """
    document = _parsed(data, origin, kind, _from_json, lambda text: _from_yaml(text, _texts_of if texts else None))
    if document is not None and not isinstance(document, dict):
        raise InputError(_no_mapping(origin, kind, example))
    return document


def parse_fields(data: bytes, origin: str, kind: str, example: str) -> list[tuple[tuple[str, ...], str]]:
    """Return the scalars of a document, as texts, each with the names and numbers in lists that lead to it.

    A name may be there several times, with all its values. Texts that look like booleans are in quotes: for programs
    that use them as such, "False" is true. Arguments and errors are those of `parse_mapping`.
    """

    def from_json(text: str) -> Any:
        return json.loads(text, object_pairs_hook=tuple)

    def from_yaml(text: str) -> Any:
        return _from_yaml(text, _pairs_of, once=False)

    document = _parsed(data, origin, kind, from_json, from_yaml)
    if document is not None and not isinstance(document, tuple):
        raise InputError(_no_mapping(origin, kind, example))
    return list(_fields(document or ()))


def _parsed(
    data: bytes, origin: str, kind: str, from_json: Callable[[str], Any], from_yaml: Callable[[str], Any]
) -> Any:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError(f"{origin}: has more than {MAX_DOCUMENT_BYTES} bytes, the limit for such a file")
    try:
        text = data.decode()
        return from_json(text) if origin.endswith(".json") else from_yaml(text)
    # PyYAML raises the last three for values that do not fit their tags, such as !!bool maybe
    except (ValueError, yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError) as error:
        problem = " ".join(str(error).split()).replace('in "<unicode string>", ', "at ")
        raise InputError(f"{origin}: not a readable {kind}: {problem}{_advice(problem)}") from error


def _no_mapping(origin: str, kind: str, example: str) -> str:
    return f"{origin}: not a {kind}: it must be a mapping, such as '{example}'"


def _fields(document: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """The scalars of a document whose mappings are tuples of pairs, in order."""
    left: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while left:
        path, value = left.pop()
        if isinstance(value, tuple):
            left.extend(((*path, name), below) for name, below in reversed(value))
        elif isinstance(value, list):
            left.extend(((*path, str(number)), below) for number, below in reversed([*enumerate(value)]))
        else:
            is_plain = isinstance(value, str) and value.lower() not in _BOOLEANS
            yield path, value if is_plain else json.dumps(value)


def _advice(problem: str) -> str:
    """Advice about backslashes, which are frequent in regular expressions."""
    if "unknown escape character" in problem:
        return ". In double quotes a backslash begins an escape: put expressions between 'single quotes'"
    return r": a backslash is written \\ in JSON" if "Invalid \\escape" in problem else ""


def _from_json(text: str) -> Any:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_once([name for name, _ in pairs])
        return dict(pairs)

    return json.loads(text, object_pairs_hook=mapping)


def _from_yaml(text: str, value_of: Callable[[yaml.Node], Any] | None, *, once: bool = True) -> Any:
    """Read YAML; `once`: a mapping with a name twice is refused."""
    loader = _Loader(text)
    document = loader.get_single_node()
    left = [document]
    count = 0
    while left:
        node = left.pop()
        count += 1
        if count > _MAX_NODES:  # repeated aliases count each time: a few lines can expand to billions of values
            raise ValueError(f"it has more than {_MAX_NODES} values, with what its aliases repeat")
        if isinstance(node, yaml.MappingNode):
            if once:
                _check_once([name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)])
            left.extend(each for pair in node.value for each in pair)
        elif isinstance(node, yaml.SequenceNode):
            left.extend(node.value)
    if document is None:
        return None
    return value_of(document) if value_of else loader.construct_document(document)


def _texts_of(document: yaml.Node) -> Any:
    if not isinstance(document, yaml.MappingNode):
        return _text_of(document)
    return {str(_text_of(name)): _text_of(value) for name, value in document.value}


def _text_of(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {str(_text_of(name)): _bare_or_text(value) for name, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_text_of(each) for each in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else node.value


def _bare_or_text(node: yaml.Node) -> Any:
    value = _text_of(node)
    is_plain = isinstance(node, yaml.ScalarNode) and not node.style
    return Bare(value) if is_plain and isinstance(value, str) else value


def _pairs_of(node: yaml.Node) -> Any:
    """As `_text_of`, but a mapping is a tuple of pairs, and booleans are no texts."""
    if isinstance(node, yaml.MappingNode):
        return tuple((str(_text_of(name)), _pairs_of(value)) for name, value in node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_pairs_of(each) for each in node.value]
    if node.tag == "tag:yaml.org,2002:bool":
        return SafeConstructor.bool_values[node.value.lower()]
    return _text_of(node)


class _Loader(Composer, CParser, SafeConstructor, Resolver):  # type: ignore[misc]
    """A YAML loader that counts values as it reads them: each takes about 2,000 bytes.

    libyaml's parser takes a seventh of the time of PyYAML's own, whose time grows with the square of the depth.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES} values")
        return super().compose_node(parent, index)


def _check_once(names: Sequence[str]) -> None:
    """Raise ValueError if a name is there twice: the first value would be lost silently."""
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is there twice")

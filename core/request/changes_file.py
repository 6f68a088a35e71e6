"""The changes of a request: declared by its options, and in the document that it names.

Options take precedence over the document: a selection or overflow policy other than the default replaces its, patterns
to include and exclude are added to its, and rules of options come before its.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from reshard.core.errors import InputError
from reshard.core.request.changes import NO_CHANGES, Changes, TransposeRule, parse_cast, parse_rename
from reshard.core.request.conversion import ConversionOptions
from reshard.core.runtime.wording import listed_lines
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import parse_url

_MAX_DOCUMENT_BYTES = 2**20
_MAX_NODES = 2**20
_MAX_VALUES = 2**17

_MESSAGES = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "model_type": "must be a mapping of a rule's fields, such as {parameters: …}",
    "string_type": "must be a text",
    "tuple_type": "must be a list, between [ and ]",
}
"""pydantic's kind of error -> message in the words of documents."""

Member = TypeVar("Member")


def declared_changes(request: ConversionOptions) -> Changes:
    """Return all changes of a request; a malformed document is an InputError."""
    document = read_changes(request.changes) if request.changes else NO_CHANGES
    transpose = tuple(TransposeRule(parameters=pattern) for pattern in request.transpose)
    return document.model_copy(
        update={
            "select": _option_or(request.select, document.select, NO_CHANGES.select),
            "include": (*request.include, *document.include),
            "exclude": (*request.exclude, *document.exclude),
            "transpose": transpose + document.transpose,
            "rename": (*map(parse_rename, request.rename), *document.rename),
            "cast": (*map(parse_cast, request.cast), *document.cast),
            "cast_overflow": _option_or(request.cast_overflow, document.cast_overflow, NO_CHANGES.cast_overflow),
        }
    )


def read_changes(url: str) -> Changes:
    """Read the changes that a document declares."""
    return parse_changes(read_small_file(parse_url(url), _MAX_DOCUMENT_BYTES), url)


def parse_changes(data: bytes, origin: str) -> Changes:
    """Parse the changes that a document declares; `origin` is its name in messages."""
    try:
        text = data.decode()
        document = _from_json(text) if origin.endswith(".json") else _from_yaml(text)
    # PyYAML raises the last three for values that do not fit their tags, such as !!bool maybe
    except (ValueError, yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError) as error:
        problem = " ".join(str(error).split()).replace('in "<unicode string>", ', "at ")
        raise InputError(f"{origin}: not a readable document of changes: {problem}{_advice(problem)}") from error
    if document is None:
        return NO_CHANGES
    if not isinstance(document, dict):
        raise InputError(f"{origin}: not a document of changes: it must be a mapping, such as 'exclude: [adam_*]'")
    try:
        return Changes.model_validate(document)
    except ValidationError as error:
        problems = [_field_problem(detail) for detail in error.errors(include_url=False, include_input=False)]
        raise InputError("\n".join(f"{origin}: {problem}" for problem in listed_lines(problems))) from error


def _option_or(option: Member, declared: Member, default: Member) -> Member:
    return declared if option == default else option


def _advice(problem: str) -> str:
    """Advice about backslashes, which are frequent in regular expressions."""
    if "unknown escape character" in problem:
        return ". In double quotes a backslash begins an escape: put expressions between 'single quotes'"
    return r": a backslash is written \\ in JSON" if "Invalid \\escape" in problem else ""


def _field_problem(detail: Any) -> str:
    """Format what is wrong with a field: `split[0].into: …`."""
    place = ""
    for part in detail["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    problem = _MESSAGES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    return f"{place}: {problem.replace('Input should be', 'must be')}"


def _from_json(text: str) -> Any:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_once([name for name, _ in pairs])
        return dict(pairs)

    return json.loads(text, object_pairs_hook=mapping)


def _from_yaml(text: str) -> Any:
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
            _check_once([name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)])
            left.extend(each for pair in node.value for each in pair)
        elif isinstance(node, yaml.SequenceNode):
            left.extend(node.value)
    return None if document is None else loader.construct_document(document)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader that counts values as it reads them: each takes about 2,000 bytes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
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

"""Storage options by name: a request says `env:NAME`, and what stands there opens its URLs; it is written nowhere.

What is kept there (`reshard.core.runtime.named_values`) is a JSON object of fsspec's storage options:
{"endpoint_url": "…", "key": "…", "secret": "…"}

Names are resolved once, where their block is entered. Which URLs they are for, and the options, are carried by the
context, and so reach work in other threads. URLs are told apart by how they begin.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import combinations, product

from reshard.core.errors import InputError
from reshard.core.runtime.named_values import NAME_ADVICE, Resolver, value_of
from reshard.core.storage.filesystems import Options, open_filesystem, url_of

_SLASHES_AT_END = re.compile(r"(?<![:/])/+$")  # not those of s3://


@dataclass(frozen=True)
class _Storage:
    starts: tuple[str, ...]
    """How URLs on it begin: as the user wrote it, and as it is told."""
    name: str
    options: Options = field(repr=False)


Pairs = tuple[tuple[str, str], ...]
"""URLs, each with the name of the options that everything at and below it is opened with; an empty name: none."""


@dataclass(frozen=True)
class Storages:
    """Names of storage options that were resolved, and the URLs that they are for."""

    asked: Pairs = ()
    found: tuple[_Storage, ...] = ()


_current: ContextVar[Storages] = ContextVar("reshard_storages", default=Storages())  # noqa: B039


def options_for(url: str) -> Options:
    """The options that were named for a URL; none, if none were."""
    matches = [
        (len(start), storage.options)
        for storage in _current.get().found
        for start in storage.starts
        if _below(url, start)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else {}


@contextmanager
def named_storages(pairs: Sequence[tuple[str, str]], resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Inside the block everything at and below these URLs is opened with the options of these names.

    A pair is a URL and a name; an empty name stands for no options. Where the same pairs are in force already, nothing
    is resolved anew.

    Raises:
        InputError: a name cannot be resolved, or two storages cannot be told apart by their URLs.
    """
    if _current.get().asked == _asked(pairs):
        yield
        return
    with storages_in_force(resolve_storages(pairs, resolvers)):
        yield


def resolve_storages(pairs: Sequence[tuple[str, str]], resolvers: Mapping[str, Resolver] | None = None) -> Storages:
    """The storages of URLs and names, to be put in force in several contexts of a process; see `named_storages`.

    Raises:
        InputError: a name cannot be resolved, or two storages cannot be told apart by their URLs.
    """
    asked = _asked(pairs)
    options = {name: _resolved(name, resolvers or {}) for name in dict.fromkeys(name for _, name in pairs) if name}
    found = [
        _Storage(_starts(url, options.get(name, {})), name, options.get(name, {})) for url, name in asked if options
    ]
    _check_apart(found)
    return Storages(asked, tuple(found))


@contextmanager
def storages_in_force(storages: Storages) -> Iterator[None]:
    """Inside the block these storages, and no others, are known."""
    token = _current.set(storages)
    try:
        yield
    finally:
        _current.reset(token)


def _asked(pairs: Sequence[tuple[str, str]]) -> Pairs:
    return tuple((url, name) for url, name in pairs if "://" in url)


def _starts(url: str, options: Options) -> tuple[str, ...]:
    before, field, _ = url.partition("{")  # of a pattern, the directory that all ranks are below
    start = before[: before.rfind("/") + 1] if field else url
    return _without_slash(start), _without_slash(url_of(*open_filesystem(start, options)))


def _below(url: str, start: str) -> bool:
    return (url + "/").startswith(start + "/")


def _without_slash(url: str) -> str:
    return _SLASHES_AT_END.sub("", url)


def _check_apart(storages: Sequence[_Storage]) -> None:
    for one, other in combinations(storages, 2):
        if one.name != other.name and _overlap(one.starts, other.starts):
            told = " and ".join(f"{each.starts[0]} ({each.name or 'no storage named'})" for each in (one, other))
            raise InputError(
                f"{told}: one is inside the other, so that it cannot be told which storage a URL is on. "
                "Name the same storage for both, or put one of them elsewhere"
            )


def _overlap(starts: Sequence[str], others: Sequence[str]) -> bool:
    return any(_below(inner, outer) for pair in product(starts, others) for inner, outer in (pair, reversed(pair)))


def _resolved(name: str, resolvers: Mapping[str, Resolver]) -> Options:
    """The options that have a name. No error repeats what is there, nor is one caused by an error that does."""
    value = value_of(name, resolvers, f"the name of storage options {NAME_ADVICE}")
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, Mapping):
        raise InputError(
            f'{name}: is no JSON object of storage options, such as {{"endpoint_url": "…", "key": "…", "secret": "…"}}'
        )
    return dict(value)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

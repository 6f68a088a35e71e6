"""Storage options by name: a request gives `env:NAME`, whose value opens its URLs and is written nowhere.

The value (see `reshard.core.runtime.named_values`) is a JSON object of fsspec's storage options:
{"endpoint_url": "…", "key": "…", "secret": "…"}

Names are resolved once, when their block is entered. The context carries URLs and options, so that they reach work in
other threads. A URL gets the options of the longest prefix that it begins with.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import combinations, product

from reshard.core.errors import InputError
from reshard.core.runtime.context import having
from reshard.core.runtime.named_values import NAME_ADVICE, Resolver, value_of
from reshard.core.runtime.records import Record
from reshard.core.storage.chains import above_pattern, place_in_order
from reshard.core.storage.stores import Options, open_store

_SLASHES_AT_END = re.compile(r"(?<![:/])/+$")  # not those of s3://


class _Storage(Record):
    prefixes: tuple[str, ...]
    """Beginnings of its URLs: as the user wrote them, and as we format them."""
    name: str
    options: Options

    def __repr__(self) -> str:
        return f"_Storage(prefixes={self.prefixes!r}, name={self.name!r})"  # no secret in messages and logs


Pairs = tuple[tuple[str, str], ...]
"""URLs, each with the name of the options for everything at and below it; an empty name: no options."""


class Storages(Record):
    """Resolved storage options, and the URLs that they are for."""

    asked: Pairs = ()
    found: tuple[_Storage, ...] = ()


_current: ContextVar[Storages] = ContextVar("reshard_storages", default=Storages())  # noqa: B039


def options_for(url: str) -> Options:
    """Return the options named for a URL; empty without any."""
    matches = [
        (len(prefix), storage.options)
        for storage in _current.get().found
        for prefix in storage.prefixes
        if _below(url, prefix)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else {}


@contextmanager
def named_storages(pairs: Sequence[tuple[str, str]], resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Open everything at and below these URLs with the options of these names, inside the block.

    A pair is a URL and a name; an empty name means no options. Pairs already in force are not resolved again.

    Raises:
        InputError: a name cannot be resolved, or two storages cannot be distinguished by their URLs.
    """
    if _current.get().asked == _asked(pairs):
        yield
        return
    with storages_in_force(resolve_storages(pairs, resolvers)):
        yield


@contextmanager
def with_options_of(url: str, place: object) -> Iterator[None]:
    """Open everything at and below a place with the options of `url`, inside the block, unless it has its own."""
    options = options_for(url)
    if not options or options_for(str(place)):
        yield
        return
    storages = _current.get()
    added = _Storage(_prefixes(str(place), options), "", options)
    with storages_in_force(Storages(storages.asked, (*storages.found, added))):
        yield


def resolve_storages(pairs: Sequence[tuple[str, str]], resolvers: Mapping[str, Resolver] | None = None) -> Storages:
    """Resolve storages that several contexts of a process will put in force; see `named_storages`.

    Raises:
        InputError: a name cannot be resolved, or two storages cannot be distinguished by their URLs.
    """
    asked = _asked(pairs)
    options = {name: _resolved(name, resolvers or {}) for name in dict.fromkeys(name for _, name in pairs) if name}
    found = [
        _Storage(_prefixes(url, options.get(name, {})), name, options.get(name, {})) for url, name in asked if options
    ]
    _check_apart(found)
    return Storages(asked, tuple(found))


def storages_in_force(storages: Storages) -> AbstractContextManager[Storages]:
    """Put these storages, and no others, in force inside the block."""
    return having(_current, storages)


def _asked(pairs: Sequence[tuple[str, str]]) -> Pairs:
    return tuple((url, name) for url, name in pairs if "://" in url)


def _prefixes(url: str, options: Options) -> tuple[str, ...]:
    prefix = above_pattern(url)
    store, path = open_store(prefix, options)
    return _without_slash(prefix), _without_slash(store.url(path))


def _below(url: str, prefix: str) -> bool:
    return f"{place_in_order(url)}/".startswith(f"{place_in_order(prefix)}/")


def _without_slash(url: str) -> str:
    return _SLASHES_AT_END.sub("", url)


def _check_apart(storages: Sequence[_Storage]) -> None:
    for one, other in combinations(storages, 2):
        if one.name != other.name and _overlap(one.prefixes, other.prefixes):
            both = " and ".join(f"{each.prefixes[0]} ({each.name or 'no storage named'})" for each in (one, other))
            raise InputError(
                f"{both}: one is inside the other, so the storage of a URL is ambiguous. "
                "Name the same storage for both, or put one of them elsewhere"
            )


def _overlap(prefixes: Sequence[str], others: Sequence[str]) -> bool:
    return any(_below(inner, outer) for pair in product(prefixes, others) for inner, outer in (pair, reversed(pair)))


def _resolved(name: str, resolvers: Mapping[str, Resolver]) -> Options:
    """Look up options. No error contains their values, nor is caused by an error that does."""
    value = value_of(name, resolvers, f"the name of storage options {NAME_ADVICE}")
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, Mapping):
        raise InputError(
            f"{name}: is not a JSON object of storage options, "
            'such as {"endpoint_url": "…", "key": "…", "secret": "…"}'
        )
    return dict(value)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

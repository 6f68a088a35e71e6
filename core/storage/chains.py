"""Chains of URLs as fsspec spells them: `zip://inner/dir::s3://bucket/a.zip`, `simplecache::s3://bucket/dir`.

Each link before a `::` is applied to what follows: another link, or the URL or path of a storage. fsspec's own classes
for archives and caches are not used: they keep reading an archive, or a copy, that was replaced meanwhile. Storage
options are those of the last URL; those of a link are under its protocol's name.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from reshard.core.errors import InputError
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.store import Store
from reshard.core.text.secrets import scrubbed

Options = Mapping[str, Any]
OpenStore = Callable[[str, Options], tuple[Store, str]]

_ARCHIVES = ("zip", "tar")
_CACHES = ("filecache", "simplecache")
_INSTEAD = {
    "blockcache": "use filecache::, whose copies belong to one version of a file",
    "cached": "use filecache::, whose copies belong to one version of a file",
    "dir": "give the URL of the directory itself",
    "reference": "it reads parts of other files, whose changes would go unnoticed: give the URL of those files",
    "libarchive": "only archives that are not compressed can be read in parts: zip:// and tar://",
}
_LINK = re.compile(r"(?P<protocol>[A-Za-z0-9+.-]+)(?P<slashes>://)?")


def split_chain(url: str) -> tuple[str, str]:
    """Split the first link from a chain; the second text is empty for any other URL or path.

    An object may have `::` in its name: after `://` a chain has another URL, or began with an archive.
    """
    link, separator, rest = url.partition("::")
    found = _LINK.match(link)
    if not separator or found is None:
        return url, ""
    protocol, slashes = found["protocol"], found["slashes"]
    if slashes:
        is_chain = protocol in _ARCHIVES or protocol in _INSTEAD or "://" in rest
    else:
        is_chain = found[0] == link and "://" in rest
    return (link, rest) if is_chain else (url, "")


def place_in_order(url: str) -> str:
    """Return a URL with its storage first and the path in an archive last: all that is below a place begins alike."""
    link, rest = split_chain(url)
    if not rest:
        return url
    protocol, _, path = link.partition("://")
    inside = f"/::{protocol}/{path}".rstrip("/") if protocol in _ARCHIVES else ""
    return place_in_order(rest) + inside


def above_pattern(url: str) -> str:
    """Return the directory that contains all that a pattern can match; any other URL itself."""
    link, rest = split_chain(url)
    before, field, _ = link.partition("{")
    if field:
        link = before[: before.rfind("/") + 1]
    elif rest:
        rest = above_pattern(rest)
    return f"{link}::{rest}" if rest else link


def open_chain(url: str, options: Options, open_store: OpenStore) -> tuple[Store, str]:
    """Return the store of a chain, and the path in it.

    Raises:
        InputError: a link is unknown or refused, or options do not open it.
    """
    link, rest = split_chain(url)
    protocol, _, path = link.partition("://")
    if protocol not in (*_ARCHIVES, *_CACHES):
        advice = _INSTEAD.get(protocol, f"in front of :: may stand {', '.join((*_ARCHIVES, *_CACHES))}")
        raise InputError(f"{url!r}: {protocol} cannot be used in a chain of URLs: {advice}")
    of_link = options.get(protocol) or {}
    if not isinstance(of_link, Mapping):
        raise InputError(f"{url!r}: cannot be opened: {protocol}: must be an object of options")
    behind, place = _open_rest(rest, {name: value for name, value in options.items() if name != protocol}, open_store)
    try:
        if protocol in _ARCHIVES:
            if of_link:
                raise ValueError(f"{', '.join(of_link)}: {protocol} has no storage options")
            return _archive(protocol, behind, place), "/" + path.strip("/")
        if behind.has_paths:
            raise ValueError("files on this machine need no cache")
        if path.strip("/"):
            raise ValueError(f"write {protocol}::{rest}")
        return _file_cache(protocol, behind, tuple(of_link.items())), place
    except (ValueError, OSError) as error:
        raise InputError(f"{url!r}: cannot be opened: {scrubbed(str(error))}") from error


def _open_rest(url: str, options: Options, open_store: OpenStore) -> tuple[Store, str]:
    if split_chain(url)[1]:
        return open_store(url, options)
    protocol, separator, _ = url.partition("://")
    if separator:
        nested = options.get(protocol)
        if isinstance(nested, Mapping):
            options = {name: value for name, value in options.items() if name != protocol} | dict(nested)
        store, path = open_store(url, options)
    else:
        store, path = LOCAL_DISK, os.path.expanduser(url)
    return store, os.path.realpath(path) if store.has_paths else path.rstrip("/")


# one for all of a process, so that an archive is indexed once, and a file fetched once
@cache
def _archive(protocol: str, store: Store, path: str) -> Store:
    from reshard.core.storage.archives import ArchiveStore

    return ArchiveStore(protocol, store, path)


@cache
def _file_cache(protocol: str, store: Store, options: tuple[tuple[str, Any], ...]) -> Store:
    from reshard.core.storage.file_cache import FileCache, directory_for

    return FileCache(protocol, store, directory_for(protocol, dict(options)))

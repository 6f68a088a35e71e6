"""Reads ranges of an object, each only if it still has the version that it had when it was opened."""

import errno
import os
import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Self

from reshard.core.storage.ranges import RangeReader
from reshard.core.storage.store import ChangedFileError

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult
    from obstore.store import ObjectStore as Client

_PIECE_BYTES = 2**18
"""Answers are copied in pieces of about this size, while they are in the processor's cache: with 1 MiB reading took a
tenth more of its time."""
_VERSION = re.compile(r"(?P<size>\d+)-(?P<etag>[^\s\"]+)")


class NoVersionError(OSError):
    """Changes of an object would go unnoticed."""

    def __init__(self) -> None:
        super().__init__("the server shows no version (ETag) of what it sends: it cannot be read from safely")


class ObjectReader(RangeReader):
    """An object open for reading; `client` refuses in a forked process."""

    is_proven = True

    def __init__(self, client: Callable[[], "Client"], key: str, size_bytes: int, etag: str) -> None:
        super().__init__(size_bytes, f"{size_bytes}-{etag}")
        self._client = client
        self._key = key
        self._etag = etag

    @classmethod
    def expecting(cls, client: Callable[[], "Client"], key: str, version: str) -> Self | None:
        """Open an object of an expected version without a look; None if the version is not one of an object."""
        found = _VERSION.fullmatch(version)
        return cls(client, key, int(found["size"]), found["etag"]) if found else None

    def pieces(self, offset: int, length: int) -> Generator[memoryview, None, None]:
        """Yield the bytes of a range, if the object still has its version."""
        import obstore
        from obstore.exceptions import PreconditionError

        options: Any = {"if_match": f'"{self._etag}"'}
        if length < self.size_bytes:  # some servers answer a range that is the whole object with 200, not 206
            options["range"] = offset, offset + length
        try:
            answer = obstore.get(self._client(), self._key, options=options)
        except PreconditionError as error:
            raise ChangedFileError from error
        found = etag_of(answer.meta)
        if not found:
            raise NoVersionError
        if found != self._etag:  # not every server heeds conditions
            raise ChangedFileError
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            yield memoryview(piece)


def etag_of(found: "ObjectMeta | PutResult") -> str:
    """Return the etag of an object, without its quotes; empty if the server shows none, or one of another content."""
    etag = found["e_tag"] or ""
    return "" if etag.startswith("W/") else etag.strip('"')


def no_object(path: str) -> FileNotFoundError:
    """Return the error that says that nothing is at a path."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

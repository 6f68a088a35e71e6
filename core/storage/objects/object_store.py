"""Object stores: buckets of objects, whose keys' prefixes are their directories.

obstore does all requests, beside Python's threads. It takes neither keys with empty parts, `.` or `..`, nor control
characters, and it drops the slash at the end of a key, which the empty objects have that consoles create in place of
directories.
"""

import builtins
import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.objects.answers import IMPOSSIBLE_NAMES, has_status, is_missing_key, reason_of_answer
from reshard.core.storage.objects.reader import NoVersionError, ObjectReader, etag_of, no_object
from reshard.core.storage.objects.service import NO_RETRIES, SENDING_SECONDS, Service, part_retries
from reshard.core.storage.objects.upload import ObjectUpload
from reshard.core.storage.store import DIRECTORY, AbandonedUpload, Entry, Output, Reader, Reason, Store
from reshard.core.storage.system_errors import reason_of_system

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

_PAGE_OBJECTS = 1000
_AZURE_DIRECTORY = "hdi_isfolder"
"""Metadata of empty blobs that mark directories, where an account has a hierarchical namespace."""
_IMPOSSIBLE_KEY = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")
_REFUSALS = (400, 404, 412, 501)
"""HTTP statuses: the object has changed or is gone, or the server does not support conditions."""


class ForkedProcessError(OSError):
    """This process was forked from one that used obstore, whose threads it lacks: requests would never end."""

    def __init__(self) -> None:
        super().__init__(
            "this process was forked from one that had used an object store, and would wait for ever: start processes "
            "by `spawn`, or open no object store before"
        )


class ImpossibleKeyError(ValueError):
    """The client takes no such key, or another one for it: it drops a slash at the beginning."""

    def __init__(self) -> None:
        super().__init__(IMPOSSIBLE_NAMES)


class _Clients:
    """The clients of a process, by bucket."""

    _first_process: ClassVar[int] = 0

    def __init__(self, make: Callable[[str], "Client"]) -> None:
        self._make = make
        self._made: dict[str, Client] = {}

    def of(self, bucket: str) -> "Client":
        _Clients._first_process = _Clients._first_process or os.getpid()
        if os.getpid() != _Clients._first_process:
            raise ForkedProcessError
        if bucket not in self._made:
            self._made[bucket] = self._make(bucket)
        return self._made[bucket]


class ObjectStore(Store):
    """The buckets of a service. A path is a bucket's name, a slash and a key."""

    puts_conditionally: ClassVar[bool] = True

    def __init__(self, service: Service) -> None:
        self.service = service
        self.keeps_parts = service.keeps_parts
        self._clients = _Clients(lambda bucket: service.client(bucket, NO_RETRIES))
        self._uploading = _Clients(lambda bucket: service.client(bucket, part_retries(), SENDING_SECONDS))

    def url(self, path: str) -> str:
        """Format a path as a URL."""
        return f"{self.service.protocol}://{path}"

    def stat(self, path: str) -> Entry:
        """Describe an object, or a prefix of objects; a bucket is there if it can be listed."""
        import obstore

        bucket, key = _split(path)
        if key:
            with suppress(FileNotFoundError):
                return self._head(bucket, key)
        below = next(iter(obstore.list(self._clients.of(bucket), key or None, chunk_size=1)), None)
        if key and not below:
            raise no_object(path)
        return Entry(path, DIRECTORY)

    def list(self, path: str) -> Sequence[Entry]:
        """Describe what is right below a prefix, by one request where markers have a slash; of an object, itself."""
        import obstore

        bucket, key = _split(path)
        level = obstore.list_with_delimiter(self._clients.of(bucket), key or None)
        objects = [_entry(bucket, each) for each in level["objects"]]
        found = [entry for entry in objects if entry.path != path]
        if self.service.has_slashless_markers:
            found = self._without_markers(found)
        found += [Entry(f"{bucket}/{each}", DIRECTORY) for each in level["common_prefixes"]]
        if not found and key and not objects:
            return [self._head(bucket, key)]
        return found

    def find(self, path: str) -> Sequence[Entry]:
        """Describe all objects below a prefix; of empty ones, those that are no markers of directories."""
        import obstore

        bucket, key = _split(path)
        pages: Iterator[Sequence[Any]] = iter(
            obstore.list(self._clients.of(bucket), key or None, chunk_size=_PAGE_OBJECTS)
        )
        found = (_entry(bucket, each) for page in pages for each in page)
        return self._without_markers([entry for entry in found if entry.path != path])  # its own marker

    def _without_markers(self, entries: builtins.list[Entry]) -> builtins.list[Entry]:
        listed = pairwise([*entries, Entry("")])
        return [entry for entry, after in listed if entry.size_bytes or not self._is_marker(entry, after)]

    def _is_marker(self, entry: Entry, after: Entry) -> bool:
        """True if an empty object marks a directory, or was listed without the slash at the end of its key.

        One with something in it, which is listed right `after` it, needs no look.
        """
        if after.path.startswith(f"{entry.path}/"):
            return True
        try:
            return self._head(*_split(entry.path)).size_bytes > 0  # that of another object
        except FileNotFoundError:
            return True

    def open(self, path: str, version: str = "") -> Reader:
        """Open an object for reading; with an expected version no request is made."""
        bucket, key = _split(path)
        client = partial(self._clients.of, bucket)
        if version and (reader := ObjectReader.expecting(client, key, version)):
            return reader
        found = self.stat(path)
        if found.kind == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not found.version:
            raise NoVersionError
        return ObjectReader(client, key, found.size_bytes, found.version)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of an object, by one request: an empty object has no ranges, which others would do."""
        import obstore

        bucket, key = _split(path)
        answer = obstore.get(self._clients.of(bucket), key)
        found = bytearray()
        for piece in answer.stream():
            found += memoryview(piece)[: max_bytes - len(found)]
            if len(found) == max_bytes:
                break
        if len(found) < min(max_bytes, answer.meta["size"]):
            raise ConnectionError(f"wrong length: got {len(found)} of {answer.meta['size']} bytes")
        return bytes(found)

    def put(self, path: str, data: bytes) -> str:
        """Write a small object."""
        import obstore

        bucket, key = _split(path)
        return etag_of(obstore.put(self._clients.of(bucket), key, data, use_multipart=False))

    def put_if(self, path: str, data: bytes, version: str) -> str | None:
        """Replace a small object if it has this etag."""
        import obstore

        bucket, key = _split(path)
        client = self._clients.of(bucket)
        condition: Any = {"e_tag": f'"{version}"'}
        try:
            if self.service.puts_by_generation:
                found = obstore.head(client, key)
                if etag_of(found) != version:
                    return None
                condition["version"] = found["version"]
            return etag_of(obstore.put(client, key, data, mode=condition, use_multipart=False))
        except Exception as error:
            if has_status(error, *_REFUSALS):
                return None
            raise

    def create(self, path: str, buffers: UploadBuffers) -> Output:
        """Begin to send an object."""
        bucket, key = _split(path)
        return ObjectUpload(partial(self._uploading.of, bucket), key, buffers, lambda: self._abort_uploads(path))

    def _abort_uploads(self, path: str) -> None:
        for upload in self.abandoned(path):
            if upload.path == path:
                self.abort(upload)

    def copy(self, source: str, target: str) -> None:
        """Let the service copy an object; through this process what it cannot copy by one request, and at once."""
        import obstore

        (from_bucket, from_key), (bucket, key) = _split(source), _split(target)
        size_bytes = self._head(from_bucket, from_key).size_bytes
        if self.service.copies_whole and size_bytes <= self.service.max_copied_bytes and from_bucket == bucket:
            obstore.copy(self._clients.of(bucket), from_key, key)
        elif not self.service.copy_large((from_bucket, from_key), (bucket, key)):
            super().copy(source, target)

    def remove(self, path: str) -> None:
        """Remove an object."""
        import obstore

        bucket, key = _split(path)
        obstore.delete(self._clients.of(bucket), key)

    def abandoned(self, path: str) -> Sequence[AbandonedUpload]:
        """List abandoned uploads of an object, or of all below a prefix."""
        bucket, key = _split(path)
        found = self.service.abandoned(bucket, key)
        return [each for each in found if not key or f"{each.path}/".startswith(f"{path}/")]

    def abort(self, upload: AbandonedUpload) -> None:
        """Abort an abandoned upload."""
        self.service.abort(*_split(upload.path), upload.upload_id)

    def is_same(self, other: Store) -> bool:
        """True if both reach the same server."""
        return isinstance(other, ObjectStore) and self.service.server() == other.service.server()

    def reason_of(self, error: Exception, path: str) -> Reason | None:
        """Explain an error of the client, or of an answer."""
        if isinstance(error, ForkedProcessError):
            return Reason(str(error), unusable=True)
        if isinstance(error, ImpossibleKeyError):
            return Reason(str(error))
        return reason_of_answer(error, self.service, _split(path)[0]) or reason_of_system(error)

    def _head(self, bucket: str, key: str) -> Entry:
        import obstore

        try:
            found = obstore.get(self._clients.of(bucket), key, options={"head": True})
        except FileNotFoundError as error:
            # an answer to HEAD does not say if the bucket is there
            if is_missing_key(error):
                raise no_object(f"{bucket}/{key}") from error
            raise
        if found.attributes.get(_AZURE_DIRECTORY) == "true":
            raise no_object(f"{bucket}/{key}")
        return _entry(bucket, found.meta)


def _split(path: str) -> tuple[str, str]:
    """Split a path into bucket and key."""
    bucket, _, key = path.partition("/")
    if key and _IMPOSSIBLE_KEY.search(key):
        raise ImpossibleKeyError
    return bucket, key


def _entry(bucket: str, found: "ObjectMeta") -> Entry:
    path = f"{bucket}/{found['path']}"
    return Entry(path, size_bytes=found["size"], version=etag_of(found), changed=found["last_modified"].timestamp())

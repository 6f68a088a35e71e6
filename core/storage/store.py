"""The one interface of storages: what is asked of local disks, object stores and all that fsspec knows.

A storage says what it can do, and nobody asks what it is. Its methods are single attempts, and raise what the operating
system, the client or the package behind them raises; `reason_of` explains that. Repetitions, messages with URLs, and
everything that holds for all storages are in the modules that take a `Location`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import ClassVar, Protocol

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.records import Record

Buffer = bytes | bytearray | memoryview

FILE, DIRECTORY, OTHER = "file", "directory", "other"
"""Kinds of entries; others are pipes, devices and the like."""


class Entry(Record):
    """A file or a directory, as a storage describes it.

    Attributes:
        path: its path in the storage, without a trailing slash.
        version: differs whenever the content does (an etag, the time of the last change); empty if none is known.
        changed: time of the last change in seconds since the epoch, by the storage's clock; None if unknown.
        is_link: a link, described as what it leads to unless it was listed.
        touched: time of the last change of contents, mode, name or links, which no program can set; None if unknown.
    """

    path: str
    kind: str = FILE
    size_bytes: int = 0
    version: str = ""
    changed: float | None = None
    is_link: bool = False
    touched: float | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def file_version(self) -> str:
        """The version of the file, as plans and records have it; see `reshard.core.storage.file_versions`."""
        return f"{self.size_bytes}-{self.version}" if self.version else str(self.size_bytes)


class Reason(Record):
    """The reason why a request failed.

    Attributes:
        transient: True if the request may succeed when repeated.
        unusable: True if no request can succeed with this bucket and these credentials.
    """

    text: str
    transient: bool = False
    unusable: bool = False


NO_FILE = Reason("no such file or directory")


_COPIED_BYTES = 8 * 2**20
"""Read and written at a time by copies through this process."""


class ChangedFileError(Exception):
    """A file is no longer of the expected version."""


class Reader(Protocol):
    """A file open for reading at any offset; safe for use by many threads.

    Attributes:
        is_proven: each answer so far showed that the file had its version, so that none need be looked for.
    """

    size_bytes: int
    version: str
    is_proven: bool

    def read_into(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts`, one after another, from the bytes at `offset`; return their number, fewer at the file's end.

        Raises:
            ChangedFileError: the file is no longer of this version.
        """

    def close(self) -> None:
        """Close the file."""


class Output(Protocol):
    """A file being written front to back, which appears when it is finished, or never."""

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`, which may be reused afterwards."""

    def finish(self) -> None:
        """Complete the file, which then has its name."""

    def discard(self) -> None:
        """Remove what was written."""


@contextmanager
def completed(output: Output) -> Iterator[Output]:
    """Finish a file after the block, or discard it if that fails."""
    try:
        yield output
        output.finish()
    except BaseException:
        output.discard()
        raise


def write_all_of(reader: Reader, output: Output) -> None:
    """Write the content of an open file.

    Raises:
        ChangedFileError: the file is no longer of its version, or shorter than it was.
    """
    block = memoryview(bytearray(min(_COPIED_BYTES, reader.size_bytes)))
    for offset in range(0, reader.size_bytes, _COPIED_BYTES):
        part = block[: reader.size_bytes - offset]
        if reader.read_into(offset, [part]) < len(part):
            raise ChangedFileError
        output.write(part)


class AbandonedUpload(Record):
    """An upload that was begun, and neither completed nor aborted.

    Attributes:
        path: the file that it would become.
        begun: when it was begun, if the storage says so.
        size_bytes: of the parts that are stored, 0 if that may not be asked for.
    """

    path: str
    upload_id: str
    begun: datetime | None
    size_bytes: int


class Store(ABC):
    """A storage; safe for use by many threads. Paths have no protocol, and no slash at their end.

    Attributes:
        has_paths: its paths are the operating system's, with empty directories, links, modes, locks, temporary names.
        renames: files, and directories with all their contents, are renamed at once.
        is_near: a look costs no request, so that nothing is won by asking for many things at once.
        puts_conditionally: `put_if` is known; a server may still refuse it.
        keeps_parts: parts of uploads that are never completed stay, unseen.
    """

    has_paths: ClassVar[bool] = False
    renames: ClassVar[bool] = False
    is_near: ClassVar[bool] = False
    puts_conditionally: ClassVar[bool] = False
    keeps_parts: bool = False

    @abstractmethod
    def url(self, path: str) -> str:
        """Format a path as a URL that leads to it again; local paths stay as they are."""

    @abstractmethod
    def stat(self, path: str) -> Entry:
        """Describe a file or directory, following links.

        Raises:
            FileNotFoundError: nothing is there.
        """

    @abstractmethod
    def list(self, path: str) -> Sequence[Entry]:
        """Describe everything right in a directory, in no particular order; of a file, the file itself.

        Empty objects that mark directories count as directories, and the directory's own marker is left out.

        Raises:
            FileNotFoundError: nothing is there.
        """

    def find(self, path: str) -> Sequence[Entry]:
        """Describe all files below a directory, in the order of their paths; none if it does not exist."""
        found: dict[str, Entry] = {}
        left = [path]
        while left:
            with suppress(FileNotFoundError, NotADirectoryError):  # removed meanwhile
                for entry in self.list(left.pop()):
                    if entry.kind == DIRECTORY:
                        left.append(entry.path)
                    else:
                        found[entry.path] = entry
        return [found[each] for each in sorted(found)]

    @abstractmethod
    def open(self, path: str, version: str = "") -> Reader:
        """Open a file for reading; where answers show versions, one of an expected `version` is not looked for first.

        Raises:
            FileNotFoundError: nothing is there.
            IsADirectoryError: a directory is there.
        """

    @abstractmethod
    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a file; all of them, if there are no more than `max_bytes`."""

    def put(self, path: str, data: bytes) -> str:
        """Write a small file whole; return the version of its `Entry`, empty if the storage does not say."""
        with completed(self.create(path, UploadBuffers())) as output:
            output.write(data)
        return ""

    def put_if(self, path: str, data: bytes, version: str) -> str | None:
        """Replace a small file if it has this version, and return the new one; None if the storage refuses.

        A refusal proves nothing: some servers refuse each request with a condition. Others ignore conditions.
        """
        raise NotImplementedError

    @abstractmethod
    def create(self, path: str, buffers: UploadBuffers) -> Output:
        """Begin to write a file."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the storage, here through this process; the copy appears only when it is whole."""
        with closing(self.open(source)) as reader, completed(self.create(target, UploadBuffers())) as output:
            write_all_of(reader, output)

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; a link itself, or an empty directory in a file's place.

        Raises:
            FileNotFoundError: nothing is there (some storages do not say).
        """

    def restrict(self, path: str, mode: int) -> None:  # noqa: B027 (most storages have no modes)
        """Give a file this mode, where files have modes."""

    def abandoned(self, path: str) -> Sequence[AbandonedUpload]:
        """List the abandoned uploads of a file, or of all files below a directory, where a storage `keeps_parts`."""
        return ()

    def abort(self, upload: AbandonedUpload) -> None:
        """Abort an abandoned upload, if it is still there."""
        raise NotImplementedError

    def origin(self, path: str) -> tuple["Store", str]:
        """Return where a file is stored: of one in an archive, the place of the archive."""
        return self, path

    def is_same(self, other: "Store") -> bool:
        """True if equal paths of two storages are the same place, as far as can be known."""
        return self == other

    @abstractmethod
    def reason_of(self, error: Exception, path: str) -> Reason | None:
        """Explain an error that a method raised; None if it is none of this storage's."""

"""An object store that fails: `flaky://`, in memory, whose requests go wrong when its `faults` say so.

Uploads are like S3's: what is written becomes visible when the file is closed, whole, and not before. A request may
fail before anything happened or after it was carried out, when only the answer is lost.
"""

import errno
import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

_FINAL_NAME = r"/\1"
_TEMPORARY = re.compile(r"/\.([^/]+)\.[0-9a-f]{8}\.tmp$")
UPLOAD_PART_BYTES = 16 * 2**10
"""Small, for files of some 100 KiB to be uploaded in several parts."""

TRANSIENT: tuple[Callable[[], OSError], ...] = (
    lambda: OSError(errno.EBUSY, "Please reduce your request rate"),
    lambda: ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    lambda: TimeoutError("timed out"),
)
PERMANENT: tuple[Callable[[], OSError], ...] = (lambda: PermissionError(errno.EACCES, "Access Denied"),)


@dataclass
class Faults:
    """Which requests fail. The same seed gives the same faults, whatever the threads do.

    Attributes:
        seed: of all that is random.
        probability: of a fault, for each request.
        errors: what is raised.
        short_reads: probability that a read gives fewer bytes than asked for.
        most: no more faults than this.
        applies: says of a request (its name, the path) whether it may fail.
    """

    seed: int
    probability: float = 0.0
    errors: tuple[Callable[[], OSError], ...] = TRANSIENT
    short_reads: float = 0.0
    most: int = 10**9
    applies: Callable[[str, str], bool] = lambda request, path: True
    struck: list[str] = field(default_factory=list)
    _requests: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def chance(self, request: str, path: str) -> random.Random:
        """What is random about a request: it depends on how often it was made, not on what else was."""
        with self._lock:
            # leases and temporary files have random names
            key = f"{request} {'lease' if '/leases/' in path else _TEMPORARY.sub(_FINAL_NAME, path)}"
            self._requests[key] += 1
            return random.Random(f"{self.seed} {key} {self._requests[key]}")

    def strikes(self, chance: random.Random, probability: float, what: str, path: str) -> bool:
        """Whether a request goes wrong."""
        with self._lock:
            hit = chance.random() < probability and len(self.struck) < self.most and self.applies(what, path)
            if hit:
                self.struck.append(f"{what} {path}")
            return hit


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory, behind requests that fail."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults = Faults(seed=0)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("flaky://")))

    @contextmanager
    def request(self, name: str, path: str) -> Iterator[random.Random]:
        """One request: fails before its block is run, or after, or not at all."""
        faults = type(self).faults
        chance = faults.chance(name, path)
        strikes = faults.strikes(chance, faults.probability, name, path)
        error = chance.choice(faults.errors)
        after = chance.random() < 0.3
        if strikes and not after:
            raise error()
        yield chance
        if strikes:
            raise error()

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        with self.request("info", path):
            found: dict[str, Any] = super().info(path, **kwargs)
        if found["type"] == "file":
            found["ETag"] = hashlib.md5(self.store[found["name"]].getvalue()).hexdigest()
        return found

    def isfile(self, path: str) -> bool:
        return bool(AbstractFileSystem.isfile(self, path))  # one more request, whose failure is a no

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        with self.request("ls", path):
            return list(super().ls(path, detail=detail, **kwargs))

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        with self.request("find", path):
            return super().find(path, *args, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with self.request("read", path) as chance:
            data: bytes = super().cat_file(path, start=start, end=end, **kwargs)
        faults = type(self).faults
        if data and faults.strikes(chance, faults.short_reads, "short read", path):
            return data[: chance.randrange(len(data))]
        return data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.request("write", path):
            self.show(path, bytes(value))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        with self.request("copy", path2):
            self.show(path2, bytes(self.store[self._strip_protocol(path1)].getvalue()))

    def _rm(self, path: str) -> None:
        with self.request("remove", path):
            super()._rm(path)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> "FlakyUpload":
        assert mode == "wb", "the rest of reshard reads ranges"
        with self.request("open", path):
            return FlakyUpload(self, path, mode, block_size=UPLOAD_PART_BYTES)

    def show(self, path: str, data: bytes) -> None:
        """Makes an object visible, whole."""
        path = self._strip_protocol(path)
        self.store[path] = MemoryFile(self, path, data)


class FlakyUpload(AbstractBufferedFile):  # type: ignore[misc]
    """A multipart upload."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        with self.fs.request("close" if final else "upload", self.path):
            self.parts.append(self.buffer.getvalue())
            if final:
                self.fs.show(self.path, b"".join(self.parts))
        return True

    def discard(self) -> None:
        with self.fs.request("discard", self.path):
            self.parts = []

"""SHA-256 of files as they are stored, taken while they are written or read.

A thread hashes each block while another one writes or checks it: hashlib lets go of the interpreter's lock meanwhile.
Both are done before the block's memory is used again.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from reshard.core.storage.store import Buffer
from reshard.core.storage.writing import OutputFile

HASHED_BYTES_PER_SECOND = 1.5e9
"""By one core, beside others that are busy: 1.8e9 measured alone, and 0.6e9 without instructions for SHA-256."""
_WORTH_A_THREAD_BYTES = 64 * 2**10
"""Hashed in 40 microseconds, which is what handing a block to another thread may take."""


class RunningSha256:
    """The SHA-256 of one file, whose blocks come front to back; a thread of `pool` hashes the large ones."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._sha256 = hashlib.sha256()

    def around(self, file: OutputFile) -> OutputFile:
        """Return a file whose blocks are hashed while they are written to `file`."""
        return _HashedOutput(file, self)

    def add(self, block: Buffer) -> None:
        """Add the next block."""
        self._sha256.update(block)

    @contextmanager
    def adding(self, block: Buffer) -> Iterator[None]:
        """Add the next block while what is inside uses it as well; then its memory may be used for another one."""
        if len(block) < _WORTH_A_THREAD_BYTES:
            self.add(block)
            yield
            return
        added = self._pool.submit(self.add, block)
        try:
            yield
        finally:
            added.result()

    def hexdigest(self) -> str:
        """Return the SHA-256 of all blocks added, in hexadecimal digits."""
        return self._sha256.hexdigest()


@contextmanager
def running_sha256(needed: bool) -> Iterator[RunningSha256 | None]:
    """Provide the SHA-256 of one file, with a thread for it, inside the block; None if it is not needed."""
    if not needed:
        yield None
        return
    with ThreadPoolExecutor(1, thread_name_prefix="reshard-hash") as pool:
        yield RunningSha256(pool)


class _HashedOutput:
    def __init__(self, file: OutputFile, sha256: RunningSha256) -> None:
        self._file = file
        self._sha256 = sha256

    def write(self, buffer: Buffer) -> None:
        with self._sha256.adding(buffer):
            self._file.write(buffer)

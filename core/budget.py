"""How memory and file descriptors are shared out among workers.

Every worker has blocks that it fills, and a scratch buffer that it reads into; it holds open the files that it writes
and some of those that it reads. Buffers beyond a few MiB gain nothing: they no longer fit the processor's caches
between being read, digested and written.
"""

import resource
from dataclasses import dataclass

LARGEST_BUFFER_BYTES = 4 * 2**20
LARGEST_BLOCKS_TOGETHER_BYTES = 32 * 2**20
MOST_BLOCKS_TOGETHER = 32
"""With more of them each would be too short to be worth a write call."""

_SMALLEST_BUFFER_BYTES = 64 * 2**10
_UPLOAD_BYTES = 50 * 2**20
"""s3fs sends a file in parts of this size."""
_MOST_SOURCES_OPEN = 64
_PLENTY_OF_FILES = 2**20
_FILES_OF_OTHERS = 128
"""Descriptors left for the rest of the process: logs, a server's connections, what libraries open."""


@dataclass(frozen=True)
class Budget:
    """Buffers of a conversion.

    Attributes:
        workers: how many work at once.
        worker_bytes: memory for the buffers of each.
        worker_files: file descriptors for each.
        upload_bytes: what the target's storage holds of each file that is being written, until there is enough of it to
            be sent; 0 on local disks.
    """

    workers: int
    worker_bytes: int
    worker_files: int
    upload_bytes: int = 0

    @property
    def scratch_bytes(self) -> int:
        """Size of a worker's scratch buffer."""
        return _buffer_bytes(self.worker_bytes // 2)

    def block_bytes(self, count: int) -> int:
        """Size of each of a worker's blocks, when it fills `count` of them together."""
        together = min(self.worker_bytes - self.scratch_bytes, LARGEST_BLOCKS_TOGETHER_BYTES)
        return _buffer_bytes(together // count)

    @property
    def most_blocks(self) -> int:
        """How many blocks a worker can fill together."""
        room = (self.worker_bytes - self.scratch_bytes) // (_SMALLEST_BUFFER_BYTES + self.upload_bytes)
        return max(1, min(MOST_BLOCKS_TOGETHER, room, self.worker_files // 2))

    def sources_open(self, count: int) -> int:
        """How many source files a worker holds open while it writes `count` files."""
        return max(1, min(_MOST_SOURCES_OPEN, self.worker_files - count))

    def peak_bytes(self, count: int) -> int:
        """Memory for all buffers of all workers, when each fills `count` blocks together."""
        return self.workers * (self.scratch_bytes + count * self.block_bytes(count))


def share_out(limit_bytes: int, open_files: int, workers: int, *, uploads: bool = False) -> Budget:
    """The shares of workers, fewer than asked for if even the smallest would not fit the limits.

    `open_files` is how many descriptors the process may have, `uploads` whether files are written to an object store.
    """
    files = open_files - _FILES_OF_OTHERS
    workers = max(1, min(workers, limit_bytes // (2 * _SMALLEST_BUFFER_BYTES), files // 2))
    return Budget(
        workers,
        worker_bytes=max(limit_bytes // workers, 2 * _SMALLEST_BUFFER_BYTES),
        worker_files=max(2, files // workers),
        upload_bytes=_UPLOAD_BYTES if uploads else 0,
    )


def open_files_limit() -> int:
    """How many file descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _PLENTY_OF_FILES if soft == resource.RLIM_INFINITY else min(soft, _PLENTY_OF_FILES)


def _buffer_bytes(room_bytes: int) -> int:
    # whole pages, so that contents at the start of a block stay aligned
    return max(_SMALLEST_BUFFER_BYTES, min(LARGEST_BUFFER_BYTES, room_bytes // 4096 * 4096))

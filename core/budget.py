"""How a memory limit is shared out: every worker has blocks that it fills, and a scratch buffer that it reads into.

Buffers beyond a few MiB gain nothing: they no longer fit the processor's caches between being read, digested and
written.
"""

from dataclasses import dataclass

LARGEST_BUFFER_BYTES = 4 * 2**20
LARGEST_BLOCKS_TOGETHER_BYTES = 32 * 2**20
MOST_BLOCKS_TOGETHER = 32
"""With more of them each would be too short to be worth a write call."""

_SMALLEST_BUFFER_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Budget:
    """Buffers of a conversion.

    Attributes:
        workers: how many work at once.
        worker_bytes: memory for the buffers of each.
    """

    workers: int
    worker_bytes: int

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
        room = (self.worker_bytes - self.scratch_bytes) // _SMALLEST_BUFFER_BYTES
        return max(1, min(MOST_BLOCKS_TOGETHER, room))

    def peak_bytes(self, count: int) -> int:
        """Memory for all buffers of all workers, when each fills `count` blocks together."""
        return self.workers * (self.scratch_bytes + count * self.block_bytes(count))


def share_memory(limit_bytes: int, workers: int) -> Budget:
    """The buffers that fit a limit: fewer workers if even the smallest buffers would not fit."""
    workers = max(1, min(workers, limit_bytes // (2 * _SMALLEST_BUFFER_BYTES)))
    return Budget(workers, max(limit_bytes // workers, 2 * _SMALLEST_BUFFER_BYTES))


def _buffer_bytes(room_bytes: int) -> int:
    # whole pages, so that contents at the start of a block stay aligned
    return max(_SMALLEST_BUFFER_BYTES, min(LARGEST_BUFFER_BYTES, room_bytes // 4096 * 4096))

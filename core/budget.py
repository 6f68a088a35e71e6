"""How a memory limit is shared out: every worker has a block that it fills and a scratch buffer that it reads into.

Blocks beyond a few MiB gain nothing: they no longer fit the processor's caches between being read, digested and
written.
"""

from dataclasses import dataclass

LARGEST_BLOCK_BYTES = 4 * 2**20
_SMALLEST_BLOCK_BYTES = 64 * 2**10
_BUFFERS_PER_WORKER = 2


@dataclass(frozen=True)
class Budget:
    """Buffers of a conversion.

    Attributes:
        workers: ranks worked on at once.
        block_bytes: size of a worker's block, and of its scratch buffer.
    """

    workers: int
    block_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Memory for all buffers of all workers."""
        return self.workers * _BUFFERS_PER_WORKER * self.block_bytes


def share_memory(limit_bytes: int, workers: int) -> Budget:
    """The buffers that fit a limit: fewer workers if even the smallest blocks would not fit."""
    workers = max(1, min(workers, limit_bytes // (_BUFFERS_PER_WORKER * _SMALLEST_BLOCK_BYTES)))
    block_bytes = limit_bytes // (workers * _BUFFERS_PER_WORKER)
    # whole pages, so that contents at the start of a block stay aligned
    return Budget(workers, max(_SMALLEST_BLOCK_BYTES, min(LARGEST_BLOCK_BYTES, block_bytes // 4096 * 4096)))

"""Budgets of buffers far smaller than real ones."""

from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.runtime.budget import Budget, GroupBuffers

BUFFER_SIZES = st.sampled_from([64, 200, 4096, 2**20])


class Buffers(Budget):
    """Buffers far smaller than a budget gives, so that small tensors meet their borders."""

    workers: int = 1
    worker_bytes: int = 0
    worker_files: int = 0
    scratch_bytes: int = 0
    a_block_bytes: int = 0
    wide_bytes: int = 0
    sources: int = 1

    def group_buffers(
        self, count: int, prefetch: int = 1, *, wide: bool = False, quantizes: bool = False
    ) -> GroupBuffers:
        size = self.a_block_bytes
        buffers = GroupBuffers(size, size, self.scratch_bytes, self.sources, None, 0, readers=prefetch)
        if not wide:
            return buffers
        return replace(buffers, wide_block_bytes=self.wide_bytes, wide_in_flight_bytes=self.scratch_bytes)

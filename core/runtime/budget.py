"""The memory and file descriptors of a process, divided among its workers.

Each worker fills blocks. From local files it reads through a scratch buffer and keeps some of them open; answers of a
remote storage arrive in buffers of their own. Of each file sent to an object store one part is filled while others are
sent; of each encrypted file some bytes are kept until its tag is known. Buffers beyond a few MiB gain nothing: local
ones no longer fit the processor's caches between being read, digested and written, and larger requests are no faster.
"""

import resource

from msgspec.structs import replace

from reshard.core.runtime.records import Record

MAX_BUFFER_BYTES = 4 * 2**20
MAX_LONE_BLOCK_BYTES = 8 * 2**20
"""Limit for a rank that is written alone, from many source files."""
_BLOCK_BYTES_PER_SOURCE = 128 * 2**10
"""By columns, a block takes a read of each source file; the work around a read of 64 KiB takes as long as the read."""
MAX_GROUP_BLOCKS_BYTES = 32 * 2**20
MAX_GROUP_RANKS = 32
"""More blocks would each be too short to be worth a write call."""
MAX_REMOTE_GROUP_RANKS = 256
"""With more ranks too much would be done again after a crash."""
MAX_REMOTE_BLOCK_BYTES = 8 * 2**20
REMOTE_GROUP_BLOCKS_BYTES = 16 * 2**20
"""Eight workers then have 128 MiB in flight: 30 ms of transfer at 4 GiB/s."""
PART_BYTES = 8 * 2**20
MIN_PART_BYTES = 5 * 2**20
"""S3 refuses smaller parts, except for the last."""

CIPHER_BLOCK_BYTES = 4 * 2**20
"""Bytes encrypted together and kept until their length and tag, which precede them in the file, are known.

Shorter blocks mean more requests for readers on an object store.
"""

MAX_PREFETCH_THREADS = 8
"""Beyond these a file's writer, which digests and writes some 3 GB/s, cannot follow."""
_MIN_BUFFER_BYTES = 64 * 2**10
_MIN_REMOTE_BLOCK_BYTES = 2**20
_ANSWERS_PER_BLOCK = 2
"""Answers arrive in pieces, which are put together before they are copied into blocks."""
_MAX_PARTS = 9_000
"""S3 takes 10,000 parts of a file, whose size is known except for the headers."""
_MIN_PARTS = 2
"""Of a file in memory: one is filled while another is sent."""
_MAX_PARTS_AHEAD = 4
_SMALL_LIMIT_BYTES = 64 * 2**20
_MAX_SOURCES_OPEN = 64
_UNLIMITED_FILES = 2**20
_RESERVED_FILES = 128
"""Descriptors left for the rest of the process: logs, a server's connections, libraries."""


class UploadBuffers(Record):
    """Parts of `part_bytes` in which a file is sent, at most `ahead` in flight while the next is filled."""

    part_bytes: int = PART_BYTES
    ahead: int = 1


class GroupBuffers(Record):
    """Buffers for writing one group of ranks side by side.

    Attributes:
        block_bytes: size of each block; every prefetch thread has one for each rank.
        in_flight_bytes: bytes that a thread may request from a remote storage at a time; answers take twice as much
            memory, because their pieces are put together.
        scratch_bytes: size of each thread's scratch buffer; 0 where none is needed.
        sources_open: number of local source files that a thread keeps open.
        upload: buffers of each file sent to an object store; None on local disks.
        total_bytes: all buffers together.
        wide_block_bytes: size of a rank's block that uses the memory of all prefetch threads; 0 without such blocks.
        wide_in_flight_bytes: bytes requested at a time while a wide block is filled; 0 without such blocks.
        readers: number of prefetch threads.
    """

    block_bytes: int
    in_flight_bytes: int
    scratch_bytes: int
    sources_open: int
    upload: UploadBuffers | None
    total_bytes: int
    wide_block_bytes: int = 0
    wide_in_flight_bytes: int = 0
    readers: int = 1


class WorkerPool(Record):
    """Processes that convert a run's ranks, in addition to its own; each converts `threads` groups of ranks at once."""

    processes: int
    threads: int


class Budget(Record):
    """Resources of a conversion: of each of its `processes`, and of each worker in them.

    Attributes:
        part_bytes: size of the parts in which files are sent to the target's storage; 0 on local disks.
        cipher_bytes: bytes of each file that are encrypted together; 0 without encryption.
        source_files: number of source files.
    """

    workers: int
    worker_bytes: int
    worker_files: int
    part_bytes: int = 0
    remote_source: bool = False
    processes: int = 1
    cipher_bytes: int = 0
    source_files: int = 1

    @property
    def max_prefetch(self) -> int:
        """The most prefetch threads that may fill blocks of one group."""
        return min(self.workers, MAX_PREFETCH_THREADS)

    @property
    def max_group_ranks(self) -> int:
        """The most ranks that can be written side by side."""
        file_bytes = _MIN_PARTS * self.part_bytes + self.cipher_bytes
        if self.remote_source:
            rank_bytes = file_bytes + self.max_prefetch * (1 + _ANSWERS_PER_BLOCK) * _MIN_BUFFER_BYTES
            affordable = self.max_prefetch * self.worker_bytes // rank_bytes
            return max(1, min(MAX_REMOTE_GROUP_RANKS, affordable, self.max_prefetch * self.worker_files // 2))
        blocks_bytes = self.worker_bytes - _buffer_bytes(self.worker_bytes // 2, MAX_BUFFER_BYTES)
        return max(1, min(MAX_GROUP_RANKS, blocks_bytes // (file_bytes + _MIN_BUFFER_BYTES), self.worker_files // 2))

    def group_buffers(
        self, count: int, prefetch: int = 1, *, wide: bool = False, quantizes: bool = False
    ) -> GroupBuffers:
        """Size the buffers of a group of `count` ranks that `prefetch` workers read for.

        `wide`: some blocks should be as large as memory allows, because filling each may take reading a whole
        parameter. `quantizes`: each block needs as much memory again while it is filled, and one
        thread as much as a wide block.
        """
        if quantizes:
            third = replace(self, worker_bytes=self.worker_bytes // 3)
            buffers = third.group_buffers(count, prefetch, wide=wide)
            return replace(buffers, total_bytes=3 * buffers.total_bytes)
        upload, files_bytes = self._upload_buffers(count, prefetch, wide)
        thread_bytes = max(0, self.worker_bytes - files_bytes // prefetch)
        if self.remote_source:
            readers = prefetch if wide else self._readers(count, prefetch, thread_bytes)
            threads = _remote_threads(count, readers, thread_bytes * prefetch // readers)
        else:
            threads = _local_threads(count, prefetch, thread_bytes, self.source_files)
        wide_blocks = self._wide_blocks(count, threads) if wide else _NO_WIDE_BLOCKS
        return GroupBuffers(
            block_bytes=threads.block_bytes,
            in_flight_bytes=count * threads.block_bytes,
            scratch_bytes=threads.scratch_bytes,
            sources_open=max(1, min(_MAX_SOURCES_OPEN, self.worker_files - count)),
            upload=upload,
            # blocks and wide blocks share their memory
            total_bytes=files_bytes + max(threads.count * threads.used_bytes, wide_blocks.used_bytes),
            wide_block_bytes=wide_blocks.block_bytes,
            wide_in_flight_bytes=wide_blocks.in_flight_bytes,
            readers=threads.count,
        )

    def _wide_blocks(self, count: int, threads: "_Threads") -> "_WideBlocks":
        """Size the blocks of `count` ranks that use the memory of all threads."""
        all_bytes = threads.count * threads.max_bytes
        if self.remote_source:
            in_flight_bytes = _buffer_bytes(all_bytes // 8, REMOTE_GROUP_BLOCKS_BYTES)
            beside_bytes = _ANSWERS_PER_BLOCK * in_flight_bytes
        else:
            in_flight_bytes = 0
            beside_bytes = threads.count * threads.scratch_bytes
        affordable_bytes = (all_bytes - beside_bytes) // count // 4096 * 4096
        block_bytes = max(threads.count * threads.block_bytes, affordable_bytes)
        return _WideBlocks(block_bytes, in_flight_bytes, beside_bytes + count * block_bytes)

    def _readers(self, count: int, prefetch: int, worker_bytes: int) -> int:
        """Number of prefetch threads that read for a group of `count` ranks from a remote storage.

        Half as many again as workers, if their largest blocks fit: some wait for answers while a block is written. A
        group has enough in flight without them, and a file that is sent has its parts in memory.
        """
        readers = prefetch * 3 // 2
        needed_bytes = readers * (1 + _ANSWERS_PER_BLOCK) * MAX_REMOTE_BLOCK_BYTES
        return readers if count == 1 and not self.part_bytes and needed_bytes <= prefetch * worker_bytes else prefetch

    def _upload_buffers(self, count: int, prefetch: int, wide: bool) -> tuple[UploadBuffers | None, int]:
        """Buffers of each file being sent, and the bytes that `count` open target files take."""
        cipher_bytes = count * self.cipher_bytes
        if not self.part_bytes:
            return None, cipher_bytes
        # beside those in flight: the part being filled
        affordable = self.worker_bytes * prefetch // 2 // (count * self.part_bytes) - 1
        ahead = 1 if wide else max(1, min(_MAX_PARTS_AHEAD, affordable))
        upload = UploadBuffers(self.part_bytes, ahead)
        return upload, cipher_bytes + count * (1 + ahead) * self.part_bytes


class _Threads(Record):
    """The `count` threads that read for a group, and what each of them has.

    Attributes:
        max_bytes: memory that it may use.
        block_bytes: size of the block that it has for each rank.
        scratch_bytes: size of its scratch buffer; 0 without one.
        used_bytes: memory of its buffers, and of answers on their way.
    """

    count: int
    max_bytes: int
    block_bytes: int
    scratch_bytes: int
    used_bytes: int


class _WideBlocks(Record):
    """A rank's block that uses the memory of all threads; `used_bytes` with what is needed to fill those of a group."""

    block_bytes: int
    in_flight_bytes: int
    used_bytes: int


_NO_WIDE_BLOCKS = _WideBlocks(0, 0, 0)


def _remote_threads(ranks: int, readers: int, thread_bytes: int) -> _Threads:
    """Size the buffers of threads that read for a number of ranks from a remote storage: answers have their own."""
    together = max(REMOTE_GROUP_BLOCKS_BYTES, ranks * _MIN_REMOTE_BLOCK_BYTES)
    blocks_bytes = min(thread_bytes // (1 + _ANSWERS_PER_BLOCK), together)
    block_bytes = _buffer_bytes(blocks_bytes // ranks, MAX_REMOTE_BLOCK_BYTES)
    return _Threads(readers, thread_bytes, block_bytes, 0, (1 + _ANSWERS_PER_BLOCK) * ranks * block_bytes)


def _local_threads(ranks: int, readers: int, thread_bytes: int, source_files: int) -> _Threads:
    """Size the buffers of threads that read for a number of ranks from local files, through scratch buffers."""
    scratch_bytes = _buffer_bytes(thread_bytes // 2, MAX_BUFFER_BYTES)
    blocks_bytes = min(thread_bytes - scratch_bytes, MAX_GROUP_BLOCKS_BYTES)
    most_bytes = MAX_BUFFER_BYTES
    if ranks == 1:
        most_bytes = min(MAX_LONE_BLOCK_BYTES, max(most_bytes, source_files * _BLOCK_BYTES_PER_SOURCE))
    block_bytes = _buffer_bytes(blocks_bytes // ranks, most_bytes)
    return _Threads(readers, thread_bytes, block_bytes, scratch_bytes, scratch_bytes + ranks * block_bytes)


def build_budget(
    limit_bytes: int,
    open_files: int,
    workers: int,
    *,
    part_bytes: int = 0,
    remote_source: bool = False,
    processes: int = 1,
    cipher_bytes: int = 0,
    source_files: int = 1,
) -> Budget:
    """Divide a process's memory and descriptors among `workers`, or fewer if even the smallest buffers would not fit.

    `open_files` is the number of descriptors the process may have; the rest is as in `Budget`.
    """
    files = open_files - _RESERVED_FILES
    min_bytes = (3 if remote_source else 2) * _MIN_BUFFER_BYTES
    min_bytes += _MIN_PARTS * part_bytes + cipher_bytes
    workers = max(1, min(workers, limit_bytes // min_bytes, files // 2))
    return Budget(
        workers,
        worker_bytes=max(limit_bytes // workers, min_bytes),
        worker_files=max(2, files // workers),
        part_bytes=part_bytes,
        remote_source=remote_source,
        processes=processes,
        cipher_bytes=cipher_bytes,
        source_files=source_files,
    )


def upload_part_bytes(limit_bytes: int, file_bytes: int) -> int:
    """Size of the parts in which a file of about `file_bytes` is sent, under a memory limit of `limit_bytes`."""
    smallest = PART_BYTES if limit_bytes >= _SMALL_LIMIT_BYTES else MIN_PART_BYTES
    needed = -(-file_bytes // _MAX_PARTS)
    return max(smallest, -(-needed // 2**20) * 2**20)


def open_files_limit() -> int:
    """Number of file descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED_FILES if soft == resource.RLIM_INFINITY else min(soft, _UNLIMITED_FILES)


def _buffer_bytes(affordable_bytes: int, max_bytes: int) -> int:
    # whole pages, so that contents at the start of a block stay aligned
    return max(_MIN_BUFFER_BYTES, min(max_bytes, affordable_bytes // 4096 * 4096))

"""How the memory and the file descriptors of a process are shared out among its workers.

Every worker has blocks that it fills. From local files it reads by way of a scratch buffer, and holds some of them
open; what it asks a remote storage for comes in buffers of its own. Of each file that goes to an object store one part
is filled while others are being sent; of each that is encrypted, some is held back until its tag is known.
Buffers beyond a few MiB gain nothing: locally they no longer fit the processor's caches between being read, digested
and written, and larger requests are no faster.
"""

import resource
from dataclasses import dataclass

MAX_BUFFER_BYTES = 4 * 2**20
MAX_GROUP_BLOCKS_BYTES = 32 * 2**20
MAX_GROUP_RANKS = 32
"""With more of them each would be too short to be worth a write call."""
MAX_REMOTE_GROUP_RANKS = 256
"""With more of them too much would be done again after a crash."""
MAX_REMOTE_BLOCK_BYTES = 8 * 2**20
REMOTE_GROUP_BLOCKS_BYTES = 16 * 2**20
"""Eight workers have 128 MiB under way then: at 4 GiB/s what comes in 30 ms."""
PART_BYTES = 8 * 2**20
MIN_PART_BYTES = 5 * 2**20
"""S3 refuses smaller ones, but for the last."""

CIPHER_BLOCK_BYTES = 4 * 2**20
"""Of an encrypted file: what is encrypted together, and held until its length and its tag are known, which stand first.
Shorter ones mean more requests for who opens such a file on an object store."""

MAX_PREFETCH_THREADS = 8
"""Beyond these a file's writer, which digests and writes some 3 GB/s, cannot follow."""
_SMALLEST_BUFFER_BYTES = 64 * 2**10
_REMOTE_BLOCK_WORTH_ASKING_FOR_BYTES = 2**20
_ANSWERS_OF_A_BLOCK = 2
"""What is asked for comes in pieces, which are put together before they are copied into blocks."""
_MAX_PARTS = 9_000
"""S3 takes 10,000 of a file; sizes are known but for the headers."""
_MAX_PARTS_AHEAD = 4
_SMALL_LIMIT_BYTES = 64 * 2**20
_MAX_SOURCES_OPEN = 64
_PLENTY_OF_FILES = 2**20
_FILES_OF_OTHERS = 128
"""Descriptors left for the rest of the process: logs, a server's connections, what libraries open."""


@dataclass(frozen=True)
class UploadBuffers:
    """A file is sent in parts of `part_bytes`, of which at most `ahead` are under way while the next is filled.

    With `keeps_first` the first part is held back, and sent last: until then it may be changed.
    """

    part_bytes: int = PART_BYTES
    ahead: int = 1
    keeps_first: bool = False


@dataclass(frozen=True)
class GroupBuffers:
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
    """

    block_bytes: int
    in_flight_bytes: int
    scratch_bytes: int
    sources_open: int
    upload: UploadBuffers | None
    total_bytes: int
    wide_block_bytes: int = 0
    wide_in_flight_bytes: int = 0


@dataclass(frozen=True)
class WorkerPool:
    """Processes beside the run's own that its ranks are shared out to.

    Attributes:
        processes: how many there are.
        threads: how many ranks, or groups of them, each takes at once.
    """

    processes: int
    threads: int


@dataclass(frozen=True)
class Budget:
    """What a conversion has.

    Attributes:
        workers: how many work at once in a process.
        worker_bytes: memory for the buffers of each.
        worker_files: file descriptors for each.
        part_bytes: size of the parts in which files are sent to the target's storage; 0 on local disks.
        remote_source: whether source files are on a remote storage.
        processes: how many processes have as much.
        keeps_first: whether the first part of each file is held back until all others are sent.
        cipher_bytes: what of each file is encrypted together; 0 where nothing is.
    """

    workers: int
    worker_bytes: int
    worker_files: int
    part_bytes: int = 0
    remote_source: bool = False
    processes: int = 1
    keeps_first: bool = False
    cipher_bytes: int = 0

    @property
    def max_prefetch(self) -> int:
        """How many workers may gather for one group."""
        return min(self.workers, MAX_PREFETCH_THREADS)

    @property
    def max_group_ranks(self) -> int:
        """How many ranks can be written side by side."""
        if self.remote_source:
            each = _fewest_parts(self.keeps_first) * self.part_bytes + self.cipher_bytes
            each += self.max_prefetch * (1 + _ANSWERS_OF_A_BLOCK) * _SMALLEST_BUFFER_BYTES
            room = self.max_prefetch * self.worker_bytes // each
            return max(1, min(MAX_REMOTE_GROUP_RANKS, room, self.max_prefetch * self.worker_files // 2))
        room = self.worker_bytes - _buffer_bytes(self.worker_bytes // 2, MAX_BUFFER_BYTES)
        each = _SMALLEST_BUFFER_BYTES + _fewest_parts(self.keeps_first) * self.part_bytes + self.cipher_bytes
        return max(1, min(MAX_GROUP_RANKS, room // each, self.worker_files // 2))

    def group_buffers(self, count: int, prefetch: int = 1, *, wide: bool = False) -> GroupBuffers:
        """What a group of `count` ranks has for which as many workers as `prefetch` gather.

        `wide`: some blocks are to be as large as memory allows, for each may take reading all of a parameter.
        """
        upload = None
        upload_bytes = 0
        if self.part_bytes:
            # beside those under way: the one being filled, and the one held back
            others = _fewest_parts(self.keeps_first) - 1
            ahead = self.worker_bytes * prefetch // 2 // (count * self.part_bytes) - others
            ahead = 1 if wide else max(1, min(_MAX_PARTS_AHEAD, ahead))
            upload = UploadBuffers(self.part_bytes, ahead, self.keeps_first)
            upload_bytes = count * (others + upload.ahead) * upload.part_bytes
        files_bytes = upload_bytes + count * self.cipher_bytes
        lane_bytes = max(0, self.worker_bytes - files_bytes // prefetch)
        if self.remote_source:
            scratch_bytes = 0
            together = max(REMOTE_GROUP_BLOCKS_BYTES, count * _REMOTE_BLOCK_WORTH_ASKING_FOR_BYTES)
            room = min(lane_bytes // (1 + _ANSWERS_OF_A_BLOCK), together)
            block_bytes = _buffer_bytes(room // count, MAX_REMOTE_BLOCK_BYTES)
            held_bytes = (1 + _ANSWERS_OF_A_BLOCK) * count * block_bytes
        else:
            scratch_bytes = _buffer_bytes(lane_bytes // 2, MAX_BUFFER_BYTES)
            room = min(lane_bytes - scratch_bytes, MAX_GROUP_BLOCKS_BYTES)
            block_bytes = _buffer_bytes(room // count, MAX_BUFFER_BYTES)
            held_bytes = scratch_bytes + count * block_bytes
        all_bytes = prefetch * held_bytes
        wide_block_bytes = wide_in_flight_bytes = 0
        if wide:
            beside_bytes = prefetch * scratch_bytes
            if self.remote_source:
                wide_in_flight_bytes = _buffer_bytes(prefetch * lane_bytes // 8, REMOTE_GROUP_BLOCKS_BYTES)
                beside_bytes = _ANSWERS_OF_A_BLOCK * wide_in_flight_bytes
            room = (prefetch * lane_bytes - beside_bytes) // count // 4096 * 4096
            wide_block_bytes = max(prefetch * block_bytes, room)
            all_bytes = max(all_bytes, beside_bytes + count * wide_block_bytes)
        return GroupBuffers(
            block_bytes=block_bytes,
            in_flight_bytes=count * block_bytes,
            scratch_bytes=scratch_bytes,
            sources_open=max(1, min(_MAX_SOURCES_OPEN, self.worker_files - count)),
            upload=upload,
            total_bytes=files_bytes + all_bytes,
            wide_block_bytes=wide_block_bytes,
            wide_in_flight_bytes=wide_in_flight_bytes,
        )


def build_budget(
    limit_bytes: int,
    open_files: int,
    workers: int,
    *,
    part_bytes: int = 0,
    remote_source: bool = False,
    processes: int = 1,
    keeps_first: bool = False,
    cipher_bytes: int = 0,
) -> Budget:
    """The buffers of a process's workers, fewer than asked for if even the smallest would not fit the limits.

    `open_files` is how many descriptors the process may have; the rest is as in `Budget`.
    """
    files = open_files - _FILES_OF_OTHERS
    smallest_bytes = 3 * _SMALLEST_BUFFER_BYTES if remote_source else 2 * _SMALLEST_BUFFER_BYTES
    smallest_bytes += _fewest_parts(keeps_first) * part_bytes + cipher_bytes
    workers = max(1, min(workers, limit_bytes // smallest_bytes, files // 2))
    return Budget(
        workers,
        worker_bytes=max(limit_bytes // workers, smallest_bytes),
        worker_files=max(2, files // workers),
        part_bytes=part_bytes,
        remote_source=remote_source,
        processes=processes,
        keeps_first=keeps_first,
        cipher_bytes=cipher_bytes,
    )


def _fewest_parts(keeps_first: bool) -> int:
    """How many parts of a file are in memory at least: one is filled while another is sent."""
    return 3 if keeps_first else 2


def upload_part_bytes(limit_bytes: int, file_bytes: int) -> int:
    """The size of the parts in which a file of about `file_bytes` is sent, if memory is limited to `limit_bytes`."""
    smallest = PART_BYTES if limit_bytes >= _SMALL_LIMIT_BYTES else MIN_PART_BYTES
    needed = -(-file_bytes // _MAX_PARTS)
    return max(smallest, -(-needed // 2**20) * 2**20)


def open_files_limit() -> int:
    """How many file descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _PLENTY_OF_FILES if soft == resource.RLIM_INFINITY else min(soft, _PLENTY_OF_FILES)


def _buffer_bytes(room_bytes: int, max_bytes: int) -> int:
    # whole pages, so that contents at the start of a block stay aligned
    return max(_SMALLEST_BUFFER_BYTES, min(max_bytes, room_bytes // 4096 * 4096))

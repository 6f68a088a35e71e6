"""Reads parameters of a plan into arrays.

block_reader       a reader of blocks, with buffers within a limit of memory
parts_of           a parameter's array as blocks to fill, large ones in parts
value_of           the value that a parameter's bytes are
ParameterReader    reads any parameters from any thread, and keeps files open in between
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock

import numpy as np

from reshard.core.errors import InputError
from reshard.core.files.map_parameters import parse_map_parameter
from reshard.core.files.model import OutputEntry
from reshard.core.files.numpy_values import Value, numpy_dtype
from reshard.core.plan.model import ParameterPlan, ReadItem
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.tensor.dtypes import MAP_TENSOR
from reshard.core.tensor.slices import contiguous_axis, contiguous_boxes
from reshard.core.transfer.fetches import ChangeOf, FactorsOf, RankBlock
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import source_shard
from reshard.core.transfer.reader import BlockReader, LocalBlockReader, RemoteBlockReader
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles, are_remote

PART_BYTES = 256 * 2**20
"""Larger parameters are read in parts of this size."""
MAX_SCRATCH_BYTES = 4 * 2**20
_MAX_REQUESTED_BYTES = 128 * 2**20
_REQUESTS_AT_ONCE = 8
_MAX_OPEN_FILES = 32
_MAX_RUNS = 2**12
"""Of elements that lie side by side in a source file: planning their reads takes a few MB."""


def open_sources(plan: ConversionPlan, ranks: Iterable[int]) -> LocalFiles | RemoteFiles:
    """Open the files of some source ranks; near ones as they are read."""
    return RemoteFiles(plan, ranks) if are_remote(plan) else LocalFiles(plan, _MAX_OPEN_FILES)


def block_reader(
    plan: ConversionPlan,
    parameters: Mapping[str, ParameterPlan],
    sources: LocalFiles | RemoteFiles,
    limit_bytes: int,
    factors_of: FactorsOf | None = None,
    change_of: ChangeOf | None = None,
) -> BlockReader:
    """Return a reader of blocks of `parameters`, whose own buffers stay well within `limit_bytes`; for one thread."""
    if isinstance(sources, LocalFiles):
        scratch_bytes = min(MAX_SCRATCH_BYTES, limit_bytes // 4)
        return LocalBlockReader(plan, [parameters], sources, scratch_bytes, factors_of, change_of)
    # requested bytes take twice as much memory while responses are assembled
    in_flight_bytes = min(_MAX_REQUESTED_BYTES, limit_bytes * 3 // 8)
    return RemoteBlockReader(plan, [parameters], sources, in_flight_bytes, _REQUESTS_AT_ONCE, factors_of, change_of)


def parts_of(
    parameters: Mapping[str, ParameterPlan], name: str, buffer: np.ndarray, most: int | None = None
) -> Iterator[RankBlock]:
    """Yield the blocks that fill the bytes of one of the parameters.

    Each has at most `most` elements; None: as many as have `PART_BYTES`.
    """
    shape, itemsize = parameters[name].box.shape, parameters[name].dtype.itemsize
    start = 0
    for box in contiguous_boxes(shape, 0, math.prod(shape), PART_BYTES // itemsize if most is None else most):
        stop = start + box.size * itemsize
        yield RankBlock(parameters, buffer[start:stop], [Chunk(name, box, 0, stop - start)])
        start = stop


def value_of(entry: OutputEntry, buffer: np.ndarray) -> Value:
    """Return the value of a parameter of a target rank from its bytes; those of a text do not matter."""
    if entry.text is not None:
        return entry.text
    if entry.dtype is MAP_TENSOR:
        stops = list(accumulate(entry.piece_bytes))
        messages = [bytes(buffer[stop - size : stop]) for size, stop in zip(entry.piece_bytes, stops, strict=True)]
        return parse_map_parameter(messages, entry.name)
    return buffer.view(numpy_dtype(entry.dtype)).reshape(entry.shape)


class ParameterReader:
    """Reads parameters of a plan as the source has them; thread-safe.

    Each read uses files of its own, which then wait for the next one.
    """

    def __init__(self, plan: ConversionPlan, limit_bytes: int) -> None:
        self._plan = plan
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._is_closed = False
        self._idle: list[LocalFiles] = []
        self._remote = RemoteFiles(plan, ()) if are_remote(plan) else None

    def read(self, parameter: ParameterPlan) -> np.ndarray:
        """Return the bytes of a parameter, in C order.

        Raises:
            CatalogError: a source file changed.
            CheckpointError: a source file ends too early.
            InputError: the reader is closed.
            StorageError: a source file cannot be read.
        """
        self._check_open()
        buffer = np.empty(parameter.size_bytes, np.uint8)
        if not buffer.size:
            return buffer
        note = current_progress().note
        ranks = frozenset(read.source_rank for read in parameter.reads)
        parameters = {parameter.name: parameter}
        with self._sources(ranks) as sources:
            reader = block_reader(self._plan, parameters, sources, self._limit_bytes)
            for block in parts_of(parameters, parameter.name, buffer, self._most_at_once(parameter)):
                with_retries(lambda block=block: reader.fill([block]), note)  # type: ignore[misc]
            with_retries(lambda: sources.check_unchanged(ranks), note)
        return buffer

    def _most_at_once(self, parameter: ParameterPlan) -> int:
        """The elements whose reads are planned at once; where each is a read, these take more memory than values."""
        runs = (self._run_of(parameter, read) for read in parameter.reads)
        return min(PART_BYTES // parameter.dtype.itemsize, _MAX_RUNS * min(runs))

    def _run_of(self, parameter: ParameterPlan, read: ReadItem) -> int:
        """The elements of a read that lie side by side in the source's file."""
        shard = source_shard(self._plan, parameter, read)
        return math.prod(read.source_box.shape[contiguous_axis(read.source_box, shard.shape) :])

    def close(self) -> None:
        """Close the files; those of reads that are under way at their ends."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for files in idle:
            files.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InputError(f"{self._plan.inputs.catalog.url}: was closed; open it again to read from it")

    @contextmanager
    def _sources(self, ranks: frozenset[int]) -> Iterator[LocalFiles | RemoteFiles]:
        """The files of some source ranks."""
        remote = self._remote
        if remote is not None:
            with_retries(lambda: remote.include(ranks), current_progress().note)
            yield remote
            return
        with self._lock:
            files = self._idle.pop() if self._idle else LocalFiles(self._plan, _MAX_OPEN_FILES)
        is_kept = False
        try:
            yield files
            with self._lock:
                is_kept = not self._is_closed
                if is_kept:
                    self._idle.append(files)
        finally:
            if not is_kept:
                files.close()

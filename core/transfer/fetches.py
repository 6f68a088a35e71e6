"""The bytes of source files that blocks need: one fetch for each read range of each chunk, or of many small ones."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from reshard.core.files.model import TensorEntry
from reshard.core.plan.model import ParameterPlan, ReadItem, SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.frozen import frozen
from reshard.core.tensor.casting import Overflow
from reshard.core.tensor.segments import NEW_AXIS
from reshard.core.tensor.slices import Extent
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import (
    ReadLimits,
    ReadRange,
    ScaledBox,
    SourceShard,
    chunk_read_ranges,
    source_shard,
)
from reshard.core.transfer.scatter import scatter_values

# by attrgetter: a block may have thousands of chunks
_NAME, _DTYPE, _SHAPE, _BOX = map(attrgetter, ("name", "dtype", "shape", "box"))
_READS, _SOURCES, _APPENDED = map(attrgetter, ("reads", "sources", "appended"))
_EXTENTS, _POSITION = map(attrgetter, ("extents", "position"))

FactorsOf = Callable[[SourceTensor], np.ndarray]
"""Returns the factors of a source parameter, float32 in its shape."""
_MAX_CACHED_RANGES = 2**14
"""A few MB of them."""
_SMALL_BYTES = 32 * 2**10
"""Of a range that takes longer to plan than to copy."""
_FEWEST_ALIKE = 8
_RUNS_PER_RANGE = 4
"""Runs are this much shorter than the longest read, so that several which overlap can be read together."""


@frozen
class RankBlock:
    """A block of one target rank's file, being filled.

    Attributes:
        parameters: the rank's parameters by name.
        chunks: the contents to read from source files.
        overflows: overflows of casts in this block, by parameter name, indexed in the whole parameter.
    """

    parameters: Mapping[str, ParameterPlan]
    buffer: np.ndarray
    chunks: Sequence[Chunk]
    overflows: list[tuple[str, Overflow]] = field(default_factory=list)

    @cached_property
    def memory(self) -> memoryview:
        """The bytes of the buffer; of a few hundred, copying takes half the time that it takes between arrays."""
        return self.buffer.data


class Fetch(NamedTuple):
    """A read range for one chunk of one block, located in its file; several extents if it crosses a border."""

    block: RankBlock
    chunk: Chunk
    read_range: ReadRange
    extents: tuple[Extent, ...]
    offset: int
    length: int
    factors: np.ndarray | None = None
    """Of values that are scaled: float32, one for each block."""

    @property
    def source_rank(self) -> int:
        """The rank whose file is read."""
        return self.read_range.source_rank

    @property
    def source_names(self) -> Sequence[str]:
        """Name of the source parameter."""
        return (self.block.parameters[self.chunk.name].sources[self.read_range.source].name,)

    @property
    def destination(self) -> memoryview | None:
        """The bytes of the block that are those of the read range; None if it is not verbatim."""
        if not self.read_range.is_verbatim:
            return None
        start = self.chunk.position + self.read_range.target_offset
        return self.block.memory[start : start + self.length]

    def deliver(self, run: memoryview) -> None:
        """Copy the wanted elements of the fetched bytes into the block."""
        if (destination := self.destination) is not None:
            destination[:] = run
            return
        name = self.chunk.name
        parameter = self.block.parameters[name]
        overflow = scatter_values(run, self.read_range, self.chunk, parameter, self.block.buffer, self.factors)
        if overflow is not None:
            self.block.overflows.append((name, overflow))


class FetchRun(NamedTuple):
    """Small verbatim ranges of one length that lie close together in a source file, and what lies between them.

    Each is what a chunk takes from its own parameter; the chunks are cut alike.
    """

    block: RankBlock
    chunks: Sequence[Chunk]
    read_range: ReadRange
    """What each chunk takes from its parameter."""
    sources: np.ndarray
    """Int64 array of shape (chunks,): first bytes in the file, ascending."""
    targets: np.ndarray
    """Int64 array of shape (chunks,): first bytes in the block."""
    offset: int
    length: int

    @property
    def source_rank(self) -> int:
        """The rank whose file is read."""
        return self.read_range.source_rank

    @property
    def source_names(self) -> Sequence[str]:
        """Names of the source parameters."""
        parameters, source = self.block.parameters, self.read_range.source
        return [parameters[chunk.name].sources[source].name for chunk in self.chunks]

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Where the run is in the file."""
        return (Extent(self.offset, self.length),)

    @property
    def destination(self) -> memoryview | None:
        """None: the ranges go to several places."""
        return None

    def deliver(self, run: memoryview) -> None:
        """Copy all ranges from the fetched bytes into the block."""
        range_bytes = self.read_range.length
        wanted = _windows(run, range_bytes)[self.sources - self.offset]
        _windows(self.block.memory, range_bytes)[self.targets] = wanted


class FetchPlanner:
    """Plans the fetches of blocks; read ranges of chunks that are cut alike are computed once.

    `ranks` are the parameters, by name, of each target rank whose blocks are filled together; `factors_of` reads the
    factors of scaled values.
    """

    def __init__(
        self,
        plan: ConversionPlan,
        ranks: Sequence[Mapping[str, ParameterPlan]],
        limits: ReadLimits,
        factors_of: FactorsOf | None = None,
    ) -> None:
        self._plan = plan
        self._factors_of = factors_of
        self._ranks = ranks
        self._limits = limits
        self._cache: dict[tuple[object, ...], tuple[ReadRange, ...]] = {}
        self._cached_count = 0

    def fetches(self, blocks: Sequence[RankBlock]) -> list[Fetch | FetchRun]:
        """Return everything that the chunks of the blocks need."""
        found: list[Fetch | FetchRun] = []
        for block in blocks:
            for alike in _alike(block):
                for read_range in self._read_ranges(alike.parameters[0], alike.chunks[0]):
                    found += self._fetches(block, alike, read_range)
        return found

    def _fetches(self, block: RankBlock, alike: "_Alike", read_range: ReadRange) -> Iterator[Fetch | FetchRun]:
        """What chunks that are cut alike need of a read range, each from its own parameter."""
        if read_range.is_verbatim and read_range.length <= _SMALL_BYTES and len(alike.chunks) >= _FEWEST_ALIKE:
            entries = self._plan.inputs.catalog.records[read_range.source_rank].index.entries
            offsets = alike.offsets(entries, read_range.source)
            if offsets is not None:
                yield from self._runs(block, alike, read_range, offsets + read_range.offset)
                return
        for chunk, parameter in zip(alike.chunks, alike.parameters, strict=True):
            extents = self._extents(parameter, read_range)
            factors = None if read_range.scaled is None else self._factors(parameter, read_range.scaled)
            yield Fetch(block, chunk, read_range, extents, extents[0].offset, read_range.length, factors)

    def _runs(
        self, block: RankBlock, alike: "_Alike", read_range: ReadRange, offsets: np.ndarray
    ) -> Iterator[FetchRun]:
        """Join the small ranges at `offsets` that lie close together."""
        order = np.argsort(offsets, kind="stable")
        sources = offsets[order]
        targets = alike.positions[order] + read_range.target_offset
        range_bytes = read_range.length
        longest_bytes = max(range_bytes, self._limits.range_bytes // _RUNS_PER_RANGE)
        borders = np.flatnonzero(np.diff(sources) > range_bytes + self._limits.gap_bytes) + 1
        for start, stop in pairwise([0, *borders.tolist(), len(sources)]):
            while start < stop:
                first = int(sources[start])
                end = start + int(np.searchsorted(sources[start:stop], first + longest_bytes - range_bytes, "right"))
                chunks = list(map(alike.chunks.__getitem__, order[start:end].tolist()))
                length = int(sources[end - 1]) + range_bytes - first
                yield FetchRun(block, chunks, read_range, sources[start:end], targets[start:end], first, length)
                start = end

    def _factors(self, parameter: ParameterPlan, scaled: ScaledBox) -> np.ndarray:
        assert self._factors_of is not None, "this reader reads parameters as the source has them"
        return self._factors_of(parameter.sources[scaled.scale.source])

    def _extents(self, parameter: ParameterPlan, read_range: ReadRange) -> tuple[Extent, ...]:
        entry = self._plan.source_entry(read_range.source_rank, parameter.sources[read_range.source].name)
        return entry.extents_of(read_range.offset, read_range.length)

    def _read_ranges(self, parameter: ParameterPlan, chunk: Chunk) -> tuple[ReadRange, ...]:
        if parameter.appended:
            return ()

        def shard_of(read: ReadItem) -> SourceShard:
            return source_shard(self._plan, parameter, read)

        # parameters that are cut alike share their reads: layers repeat, so most of the arithmetic was done before
        kinds = tuple([(source.dtype.name, source.shape) for source in parameter.sources])
        key = (id(parameter.reads), parameter.dtype.name, kinds, chunk.box)
        ranges = self._cache.get(key)
        if ranges is None:
            if self._cached_count > _MAX_CACHED_RANGES:
                self._cache.clear()
                self._cached_count = 0
            limits = ReadLimits(self._limits.range_bytes, self._limits.gap_bytes * self._row_sharers(parameter))
            ranges = chunk_read_ranges(chunk, parameter.reads, shard_of, parameter.dtype, limits)
            self._cache[key] = ranges
            self._cached_count += len(ranges)
        return ranges

    def _row_sharers(self, parameter: ParameterPlan) -> int:
        """Count the distinct boxes that the ranks have in the same source rows.

        The gap between two rows of one rank's columns is wide, but the others want its bytes.
        """
        axes = parameter.reads[0].axes if parameter.reads else None
        # the target's axis along the source's first axis that it keeps
        axis = axes.index(min(kept)) if axes and (kept := [each for each in axes if each != NEW_AXIS]) else 0
        rows = parameter.box.start[axis : axis + 1], parameter.box.stop[axis : axis + 1]
        boxes = {rank[parameter.name].box for rank in self._ranks if parameter.name in rank}
        return sum((box.start[axis : axis + 1], box.stop[axis : axis + 1]) == rows for box in boxes)


class _Alike:
    """Chunks of a block that are cut alike, each of its own parameter."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.parameters: list[ParameterPlan] = []
        self._offsets: dict[tuple[int, int], np.ndarray | None] = {}

    @cached_property
    def positions(self) -> np.ndarray:
        """Int64 array of shape (chunks,): their first bytes in the block."""
        return np.fromiter(map(_POSITION, self.chunks), np.int64, len(self.chunks))

    def offsets(self, entries: Mapping[str, TensorEntry], source: int) -> np.ndarray | None:
        """Return where the contents of a source of each parameter begin in a file; None if one has many extents.

        Int64 array of shape (chunks,). Ranks whose files are alike share their `entries`.
        """
        key = id(entries), source
        if key not in self._offsets:
            sources = map(itemgetter(source), map(_SOURCES, self.parameters))
            extents = list(map(_EXTENTS, map(entries.__getitem__, map(_NAME, sources))))
            single = all(len(each) == 1 for each in extents)
            self._offsets[key] = np.array([each[0].offset for each in extents], np.int64) if single else None
        return self._offsets[key]


def _alike(block: RankBlock) -> Iterable[_Alike]:
    """Group a block's chunks that have the same read ranges.

    By id, while the block holds all of them: hashes of boxes are computed in Python, and parameters of one layout class
    and shape have the very same.
    """
    chunks = block.chunks
    parameters = list(map(block.parameters.__getitem__, map(_NAME, chunks)))
    sources = list(map(_SOURCES, parameters))
    kinds: Iterable[object] = (tuple([(id(each.dtype), each.shape) for each in those]) for those in sources)
    if all(len(those) == 1 for those in sources):
        first = list(map(itemgetter(0), sources))
        kinds = zip(map(id, map(_DTYPE, first)), map(_SHAPE, first), strict=True)
    found: defaultdict[object, _Alike] = defaultdict(_Alike)
    of_parameters = [map(id, map(field, parameters)) for field in (_READS, _DTYPE, _APPENDED)]
    keys = zip(*of_parameters, map(id, map(_BOX, chunks)), kinds, strict=True)
    for key, chunk, parameter in zip(keys, chunks, parameters, strict=True):
        alike = found[key]
        alike.chunks.append(chunk)
        alike.parameters.append(parameter)
    return found.values()


def _windows(memory: memoryview, size_bytes: int) -> np.ndarray:
    """Uint8 array of shape (places, size_bytes): the bytes from each place on."""
    return np.ndarray((len(memory) - size_bytes + 1, size_bytes), np.uint8, memory, strides=(1, 1))

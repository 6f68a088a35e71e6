"""The bytes of source files that blocks need: one fetch for each read range of each chunk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import field

from reshard.core.plan.model import ParameterPlan, ReadItem, SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.tensor.overflow import Overflow
from reshard.core.tensor.segments import NEW_AXIS
from reshard.core.tensor.slices import Extent
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.read_ranges import (
    AdaptedBox,
    ReadLimits,
    ReadRange,
    ScaledBox,
    SourceShard,
    ValueChange,
    chunk_read_ranges,
    source_shard,
)
from reshard.core.transfer.scatter import scatter_values

FactorsOf = Callable[[SourceTensor, range], np.ndarray]
"""Returns the factors of a source parameter; if they are of MXFP4, those of a range of experts."""
ChangeOf = Callable[[str], ValueChange]
"""Returns what becomes of the values of a source parameter."""
_MAX_CACHED_RANGES = 2**14
"""A few MB of them."""


def change_of(plan: ConversionPlan) -> ChangeOf | None:
    """Return what tells what a plan's adapter makes of values; None without one."""
    if plan.inputs.adapter is None:
        return None
    from reshard.core.transfer.adapter_values import AdapterReader  # most conversions have no use for it

    return AdapterReader(plan.inputs.adapter).change_of


class RankBlock(Record, dict=True):
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


class Fetch(Record):
    """A read range for one chunk of one block, located in its file; several extents if it crosses a border.

    `factors` are those of values that are scaled: one for each block; `change` is what becomes of values that an
    adapter changes.
    """

    block: RankBlock
    chunk: Chunk
    read_range: ReadRange
    extents: tuple[Extent, ...]
    factors: np.ndarray | None = None
    change: ValueChange | None = None

    @property
    def source_rank(self) -> int:
        """The rank whose file is read."""
        return self.read_range.source_rank

    @property
    def source_name(self) -> str:
        """Name of the source parameter."""
        return self.block.parameters[self.chunk.name].sources[self.read_range.source].name

    @property
    def offset(self) -> int:
        """First byte in the file."""
        return self.extents[0].offset

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.read_range.length

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
        overflow = scatter_values(
            run, self.read_range, self.chunk, parameter, self.block.buffer, self.factors, self.change
        )
        if overflow is not None:
            self.block.overflows.append((name, overflow))


class FetchPlanner:
    """Plans the fetches of blocks; read ranges of chunks that are cut alike are computed once.

    `ranks` are the parameters, by name, of each target rank whose blocks are filled together; `factors_of` reads the
    factors of scaled values, `change_of` tells what becomes of values that an adapter changes.
    """

    def __init__(
        self,
        plan: ConversionPlan,
        ranks: Sequence[Mapping[str, ParameterPlan]],
        limits: ReadLimits,
        factors_of: FactorsOf | None = None,
        change_of: ChangeOf | None = None,
    ) -> None:
        self._plan = plan
        self._factors_of = factors_of
        self._change_of = change_of
        self._ranks = ranks
        self._limits = limits
        self._known: dict[object, tuple[ReadRange, ...]] = {}
        self._known_count = 0

    def fetches(self, blocks: Sequence[RankBlock]) -> Iterator[Fetch]:
        """Yield everything that the chunks of the blocks need."""
        for block in blocks:
            for chunk in block.chunks:
                parameter = block.parameters[chunk.name]
                for read_range in self._read_ranges(parameter, chunk):
                    extents, factors = self._extents(parameter, read_range), self._factors(parameter, read_range)
                    yield Fetch(block, chunk, read_range, extents, factors, self._change(parameter, read_range))

    def _extents(self, parameter: ParameterPlan, read_range: ReadRange) -> tuple[Extent, ...]:
        entry = self._plan.source_entry(read_range.source_rank, parameter.sources[read_range.source].name)
        return entry.extents_of(read_range.offset, read_range.length)

    def _factors(self, parameter: ParameterPlan, read_range: ReadRange) -> np.ndarray | None:
        box = read_range.source_box
        if not isinstance(box, ScaledBox):
            return None
        assert self._factors_of is not None, "this reader reads parameters as the source has them"
        first, count = box.start[0], box.shape[0]
        return self._factors_of(parameter.sources[box.scale.source], range(first, first + count))

    def _change(self, parameter: ParameterPlan, read_range: ReadRange) -> ValueChange | None:
        if not isinstance(read_range.source_box, AdaptedBox):
            return None
        assert self._change_of is not None, "this reader reads parameters as the source has them"
        return self._change_of(parameter.sources[read_range.source].name)

    def _read_ranges(self, parameter: ParameterPlan, chunk: Chunk) -> tuple[ReadRange, ...]:
        if parameter.appended:
            return ()
        # layers repeat, so most of the arithmetic was done before; equal reads may be of shards with other layouts
        shards = tuple(source_shard(self._plan, parameter, read) for read in parameter.reads)
        kind = parameter.reads, parameter.dtype, parameter.box, shards, chunk.box
        ranges = self._known.get(kind)
        if ranges is None:
            ranges = self._new_read_ranges(parameter, chunk)
            if self._known_count > _MAX_CACHED_RANGES:
                self._known.clear()
                self._known_count = 0
            self._known[kind] = ranges
            self._known_count += len(ranges)
        return ranges

    def _new_read_ranges(self, parameter: ParameterPlan, chunk: Chunk) -> tuple[ReadRange, ...]:
        def shard_of(read: ReadItem) -> SourceShard:
            return source_shard(self._plan, parameter, read)

        limits = ReadLimits(self._limits.range_bytes, self._limits.gap_bytes * self._row_sharers(parameter))
        return chunk_read_ranges(chunk, parameter.reads, shard_of, parameter.dtype, limits)

    def _row_sharers(self, parameter: ParameterPlan) -> int:
        """Count the distinct boxes that the ranks have in the same source rows.

        The gap between two rows of one rank's columns is wide, but the others want its bytes.
        """
        axis = _row_axis(parameter)
        rows = parameter.box.start[axis : axis + 1], parameter.box.stop[axis : axis + 1]
        boxes = {rank[parameter.name].box for rank in self._ranks if parameter.name in rank}
        return sum((box.start[axis : axis + 1], box.stop[axis : axis + 1]) == rows for box in boxes)


def _row_axis(parameter: ParameterPlan) -> int:
    """The target's axis along the first source axis that it keeps."""
    axes = (parameter.reads[0].axes if parameter.reads else None) or ()
    kept = [axis for axis in axes if axis != NEW_AXIS]
    return axes.index(min(kept)) if kept else 0

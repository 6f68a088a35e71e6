"""The content of a target rank's file, and its division into blocks. Pure: nothing is read here.

A *block* is a run of the file, as long as the memory budget allows: literal bytes (headers) and chunks. A *chunk* is a
box that is contiguous in a target shard.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct, field

from reshard.core.files.model import Content, FilePlan, OutputEntry
from reshard.core.plan.model import ParameterPlan, RankPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.quantized import Quantized
from reshard.core.tensor.segments import reorders
from reshard.core.tensor.slices import TensorSlice, contiguous_boxes

NOTHING_QUANTIZED: Mapping[str, Quantized] = {}
_OPAQUE = frozenset((TEXT, MAP_TENSOR))


class Chunk(Record):
    """A contiguous box of a target shard, and its first byte in the block."""

    name: str
    box: TensorSlice
    position: int
    size_bytes: int


class Block(Struct):
    """A run of a file: literal bytes by their position in the block, and chunks.

    Contents known beforehand are both a literal and a chunk.
    """

    size_bytes: int = 0
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def add_literal(self, literal: bytes) -> None:
        """Append literal bytes."""
        self.literals.append((self.size_bytes, literal))
        self.size_bytes += len(literal)

    def add_chunk(self, entry: OutputEntry, box: TensorSlice, size_bytes: int) -> None:
        """Append a chunk of an entry."""
        if entry.literal:
            self.literals.append((self.size_bytes, entry.literal))
        self.chunks.append(Chunk(entry.name, box, self.size_bytes, size_bytes))
        self.size_bytes += size_bytes


def expected_entries(plan: ConversionPlan, rank_plan: RankPlan) -> tuple[OutputEntry, ...]:
    """Return the entries that a target rank's file must hold."""
    return tuple([_output_entry(plan, parameter) for parameter in rank_plan.parameters])


def planned_file(plan: ConversionPlan, rank: int, entries: tuple[OutputEntry, ...]) -> FilePlan:
    """Lay out the file of a target rank, which holds `entries`.

    Raises:
        CheckpointError: the target's format cannot hold an entry.
    """
    return plan.inputs.layout.plan_file(rank, plan.inputs, plan.match, entries)


def transposed_parameters(parameters: Iterable[ParameterPlan]) -> frozenset[str]:
    """Names of the parameters read with their axes in another order: each of their blocks needs every source row."""
    return frozenset(each.name for each in parameters if any(reorders(read.axes) for read in each.reads))


def file_blocks(
    file_plan: FilePlan,
    entries: tuple[OutputEntry, ...],
    block_bytes: int,
    *,
    wide: frozenset[str] = frozenset(),
    wide_bytes: int = 0,
    quantized: Mapping[str, Quantized] = NOTHING_QUANTIZED,
) -> Iterator[Block]:
    """Divide a file into blocks of at most `block_bytes`, in order; chunks of `wide` parameters may have `wide_bytes`.

    A wide chunk longer than `block_bytes` is a block of its own. Chunks of `quantized` parameters had as many bytes
    before, and are whole rows of blocks if these fit.
    """
    by_name = {entry.name: entry for entry in entries}
    block = Block()
    for segment in file_plan.segments:
        if isinstance(segment, bytes):
            for literal in _literals(segment, block_bytes - block.size_bytes, block_bytes):
                if block.size_bytes + len(literal) > block_bytes:
                    yield block
                    block = Block()
                block.add_literal(literal)
            continue
        entry = by_name[segment.name]
        max_bytes = max(block_bytes, wide_bytes) if segment.name in wide else block_bytes
        if segment.name in quantized:
            max_bytes = _bytes_quantized(quantized[segment.name], max_bytes)
        for box, size_bytes in _chunk_boxes(entry, segment, max_bytes):
            if block.size_bytes and block.size_bytes + size_bytes > block_bytes:
                yield block
                block = Block()
            block.add_chunk(entry, box, size_bytes)
    yield block


def _bytes_quantized(quantized: Quantized, max_bytes: int) -> int:
    """Bytes of values in 8 bits that `max_bytes` have room for before, in whole rows of blocks if these fit."""
    if quantized.makes_scales:
        return max_bytes
    most = max(1, max_bytes // quantized.dtype.itemsize)
    row_bytes = quantized.block[0] * quantized.shape[1]
    return most - most % row_bytes if most >= row_bytes > 0 else most


def _literals(segment: bytes, room_bytes: int, block_bytes: int) -> Iterable[bytes]:
    """Literal bytes, in pieces for blocks of their own unless there is room for all of them."""
    if len(segment) <= room_bytes:
        return (segment,)
    return (segment[start : start + block_bytes] for start in range(0, len(segment), block_bytes))


def _output_entry(plan: ConversionPlan, parameter: ParameterPlan) -> OutputEntry:
    text = None
    piece_bytes: tuple[int, ...] = ()
    if parameter.reads and parameter.dtype in _OPAQUE:
        first = parameter.reads[0]
        entry = plan.source_entry(first.source_rank, parameter.sources[first.source].name)
        text = entry.text
        if entry.dtype is MAP_TENSOR:
            piece_bytes = tuple(extent.length for extent in entry.extents)
    literal = b""
    if parameter.appended:
        text, literal = parameter.appended.text, parameter.appended.content
    return OutputEntry(parameter.name, parameter.dtype, parameter.box.shape, text, piece_bytes, literal)


def _chunk_boxes(entry: OutputEntry, content: Content, max_bytes: int) -> Iterable[tuple[TensorSlice, int]]:
    """The boxes of a content's chunks, each with its bytes."""
    size_bytes = content.stop - content.start
    if size_bytes == entry.size_bytes <= max_bytes:
        return ((_whole(entry.shape), size_bytes),)
    itemsize = entry.dtype.itemsize
    start, stop = content.start // itemsize, content.stop // itemsize
    boxes = contiguous_boxes(entry.shape, start, stop, max_bytes // itemsize)
    return ((box, box.size * itemsize) for box in boxes)


# parameters of one shape, in thousands, have the same box
_whole = lru_cache(maxsize=1024)(TensorSlice.whole)

"""The content of a target rank's file, and its division into blocks. Pure: nothing is read here.

A *block* is a run of the file, as long as the memory budget allows: literal bytes (headers) and chunks. A *chunk* is a
box that is contiguous in a target shard.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from typing import NamedTuple

from reshard.core.files.any_format import plan_file
from reshard.core.files.model import MINDSPORE, PYTORCH, CheckpointFormat, Content, FilePlan, OutputEntry
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.plan.model import ParameterPlan, RankPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.named_tuples import named_tuples
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.segments import reorders
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes

_OPAQUE = frozenset((TEXT, MAP_TENSOR))
# by attrgetter: a file may have thousands of parameters
_NAME, _DTYPE, _BOX, _APPENDED = map(attrgetter, ("name", "dtype", "box", "appended"))

_SMALL_BYTES = 64 * 2**10
"""Of a parameter, on average: dividing a file of larger ones into blocks takes little beside their bytes."""
_MOST_SHARED_BYTES = _SMALL_BYTES * 2**16


class Chunk(NamedTuple):
    """A contiguous box of a target shard, and its first byte in the block."""

    name: str
    box: TensorSlice
    position: int
    size_bytes: int


@dataclass
class Block:
    """A run of a file: literal bytes by their position in the block, and chunks.

    Contents known beforehand are both a literal and a chunk.
    """

    size_bytes: int = 0
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)


def expected_entries(plan: ConversionPlan, rank_plan: RankPlan) -> tuple[OutputEntry, ...]:
    """Return the entries that a target rank's file must hold."""
    parameters = rank_plan.parameters
    boxes, dtypes = list(map(_BOX, parameters)), list(map(_DTYPE, parameters))
    # parameters of one shape in one layout class have the very same box
    shape_of = {number: box.shape for number, box in dict(zip(map(id, boxes), boxes, strict=True)).items()}
    shapes = map(shape_of.__getitem__, map(id, boxes))
    if any(map(_APPENDED, parameters)) or not _OPAQUE.isdisjoint(dtypes):
        return tuple(map(partial(_output_entry, plan), parameters, shapes))
    return tuple(named_tuples(OutputEntry, name=map(_NAME, parameters), dtype=dtypes, shape=shapes))


def planned_file(plan: ConversionPlan, entries: tuple[OutputEntry, ...]) -> FilePlan:
    """Lay out the target file that holds `entries`.

    Raises:
        CheckpointError: the target's format cannot hold an entry.
    """
    inputs = plan.inputs
    unified = inputs.unified
    framework = PYTORCH if unified and unified.naming == UnifiedNaming.HUGGINGFACE else MINDSPORE
    # nor does a Checkpoint 2.0 say in its files that redundancy was removed
    removed = None if inputs.counts_files else inputs.replicas > 0
    return _planned_file(inputs.format, entries, removed, inputs.write_crc, framework)


# the ranks of a stage hold the same parameters in the same shapes: their files differ in contents only
@lru_cache(maxsize=4)
def _planned_file(
    file_format: CheckpointFormat,
    entries: tuple[OutputEntry, ...],
    redundancy_removed: bool | None,
    with_crc: bool,
    framework: str,
) -> FilePlan:
    return plan_file(
        file_format, entries, redundancy_removed=redundancy_removed, with_crc=with_crc, framework=framework
    )


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
) -> Iterator[Block]:
    """Divide a file into blocks of at most `block_bytes`, in order; chunks of `wide` parameters may have `wide_bytes`.

    A wide chunk longer than `block_bytes` is a block of its own. Files that are planned alike may share their blocks.
    """
    if not wide and file_plan.size_bytes <= _SMALL_BYTES * len(entries) <= _MOST_SHARED_BYTES:
        return iter(_shared_blocks(file_plan, entries, block_bytes))
    return _file_blocks(file_plan, entries, block_bytes, wide, wide_bytes)


# of one file, for the other ranks of its stage: some 300 bytes for each parameter
@lru_cache(maxsize=1)
def _shared_blocks(file_plan: FilePlan, entries: tuple[OutputEntry, ...], block_bytes: int) -> tuple[Block, ...]:
    return tuple(_file_blocks(file_plan, entries, block_bytes, frozenset(), 0))


def _file_blocks(
    file_plan: FilePlan, entries: Iterable[OutputEntry], block_bytes: int, wide: frozenset[str], wide_bytes: int
) -> Iterator[Block]:
    by_name = {entry.name: entry for entry in entries}
    # parameters of one shape, in thousands, have the very same box: by id, for hashes of boxes are computed in Python
    wholes: dict[tuple[int, int], tuple[TensorSlice, int]] = {}
    block = Block()
    for segment in file_plan.segments:
        if isinstance(segment, bytes):
            if block.size_bytes + len(segment) <= block_bytes:
                block.literals.append((block.size_bytes, segment))
                block.size_bytes += len(segment)
                continue
            for start in range(0, len(segment), block_bytes):
                literal = segment[start : start + block_bytes]
                if block.size_bytes + len(literal) > block_bytes:
                    yield block
                    block = Block()
                block.literals.append((block.size_bytes, literal))
                block.size_bytes += len(literal)
            continue
        name, start, stop = segment
        entry = by_name[name]
        kind = id(entry.shape), id(entry.dtype)
        known = wholes.get(kind)
        if known is None:
            known = wholes[kind] = _whole(entry.shape), entry.size_bytes
        max_bytes = max(block_bytes, wide_bytes) if name in wide else block_bytes
        boxes: Iterable[tuple[TensorSlice, int]] = (known,)
        if not stop - start == known[1] <= max_bytes:
            boxes = _chunk_boxes(entry, segment, max_bytes)
        for box, size_bytes in boxes:
            if block.size_bytes and block.size_bytes + size_bytes > block_bytes:
                yield block
                block = Block()
            if entry.literal:
                block.literals.append((block.size_bytes, entry.literal))
            block.chunks.append(Chunk(name, box, block.size_bytes, size_bytes))
            block.size_bytes += size_bytes
    yield block


def _output_entry(plan: ConversionPlan, parameter: ParameterPlan, shape: Shape) -> OutputEntry:
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
    return OutputEntry(parameter.name, parameter.dtype, shape, text, piece_bytes, literal)


def _chunk_boxes(entry: OutputEntry, content: Content, block_bytes: int) -> Iterable[tuple[TensorSlice, int]]:
    """The boxes of the chunks of a content that is not a whole parameter in one, each with its bytes."""
    itemsize = entry.dtype.itemsize
    start, stop = content.start // itemsize, content.stop // itemsize
    boxes = contiguous_boxes(entry.shape, start, stop, block_bytes // itemsize)
    return ((box, box.size * itemsize) for box in boxes)


_whole = lru_cache(maxsize=1024)(TensorSlice.whole)

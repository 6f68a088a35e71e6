"""Carries out the plan of one target rank: reads what it needs, and writes its file front to back.

The file is made of *blocks*, each as large as the memory budget allows. A block holds a stretch of the file: literal
bytes (headers) and parts of shards, which are gathered from the source files. A block is digested and written when it
is full, so memory does not depend on the size of any tensor.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from core.checkpoint.formats import plan_file
from core.checkpoint.model import Content, OutputEntry
from core.dtypes import MAP_TENSOR
from core.gather import Gatherer, Part
from core.manifest import ParameterRecord, ShardRecord
from core.plan import ConversionPlan, ParameterPlan, RankPlan
from core.slices import TensorSlice, contiguous_boxes
from core.storage.files import write_file
from core.storage.urls import Location

Advance = Callable[[int], None]
"""Told of every block written, how many bytes of shards were in it; may raise to stop the work."""


def transform_rank(
    plan: ConversionPlan, rank: int, directory: Location, *, identity: str, block_bytes: int, advance: Advance
) -> ShardRecord:
    """Writes one target rank's file below `directory` and returns its record.

    Uses two buffers of `block_bytes`. The file appears only when it is whole.

    Raises:
        CatalogError: a source file is not the one that was planned with.
        CheckpointError: a source file is damaged.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    rank_plan = plan.rank_plan(rank)
    outputs = expected_entries(plan, rank_plan)
    file_plan = plan_file(plan.inputs.format, outputs)
    digests = {output.name: xxhash.xxh3_128() for output in outputs}
    buffer = np.empty(block_bytes, dtype=np.uint8)
    gatherer = Gatherer(plan, rank_plan, buffer)
    try:
        with write_file(directory.child(plan.file_name(rank))) as file:
            for block in _blocks(file_plan.segments, outputs, block_bytes):
                for position, literal in block.literals:
                    buffer[position : position + len(literal)] = np.frombuffer(literal, np.uint8)
                gatherer.fill(block.parts)
                for part in block.parts:
                    digests[part.name].update(buffer[part.position : part.position + part.size_bytes].data)
                file.write(buffer[: block.size_bytes].data)
                advance(sum(part.size_bytes for part in block.parts))
            gatherer.check_unchanged()
    finally:
        gatherer.close()
    for output in outputs:
        if output.text is not None:
            digests[output.name].update(output.text.encode("utf-8", "surrogatepass"))
    return ShardRecord(
        identity=identity,
        rank=rank,
        file=plan.file_name(rank),
        size_bytes=file_plan.size_bytes,
        copy_of=None,
        source_ranks=rank_plan.source_ranks,
        read_bytes=gatherer.read_bytes,
        seconds=round(time.monotonic() - started, 3),
        parameters=tuple(
            ParameterRecord(
                name=output.name,
                dtype=output.dtype.name,
                shape=output.shape,
                digest=digests[output.name].hexdigest(),
            )
            for output in outputs
        ),
    )


def expected_entries(plan: ConversionPlan, rank_plan: RankPlan) -> tuple[OutputEntry, ...]:
    """What a target rank's file is to hold."""
    return tuple(_output_entry(plan, parameter) for parameter in rank_plan.parameters)


def _output_entry(plan: ConversionPlan, parameter: ParameterPlan) -> OutputEntry:
    text = None
    piece_bytes: tuple[int, ...] = ()
    if parameter.reads:
        entry = plan.source_entry(parameter.reads[0].source_rank, parameter.name)
        text = entry.text
        if entry.dtype is MAP_TENSOR:
            piece_bytes = tuple(extent.length for extent in entry.extents)
    return OutputEntry(parameter.name, parameter.dtype, parameter.box.shape, text, piece_bytes)


@dataclass
class _Block:
    """A stretch of the target file being put together: literal bytes by position, and parts of shards."""

    size_bytes: int = 0
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


def _blocks(segments: Sequence[bytes | Content], outputs: Sequence[OutputEntry], block_bytes: int) -> Iterator[_Block]:
    """The file as blocks of at most `block_bytes`, in order."""
    by_name = {output.name: output for output in outputs}
    block = _Block()
    for segment in segments:
        for piece in _pieces(segment, by_name, block_bytes):
            size = len(piece) if isinstance(piece, bytes) else piece.size_bytes
            if block.size_bytes + size > block_bytes:
                yield block
                block = _Block()
            if isinstance(piece, bytes):
                block.literals.append((block.size_bytes, piece))
            else:
                block.parts.append(Part(piece.name, piece.box, block.size_bytes, piece.size_bytes))
            block.size_bytes += size
    yield block


def _pieces(segment: bytes | Content, outputs: dict[str, OutputEntry], block_bytes: int) -> Iterator["bytes | Part"]:
    if isinstance(segment, bytes):
        for start in range(0, len(segment), block_bytes):
            yield segment[start : start + block_bytes]
        return
    output = outputs[segment.name]
    for box in _part_boxes(output, segment, block_bytes):
        yield Part(segment.name, box, 0, box.size * output.dtype.itemsize)


def _part_boxes(output: OutputEntry, content: Content, block_bytes: int) -> Iterator[TensorSlice]:
    itemsize = output.dtype.itemsize
    if content.stop - content.start == output.size_bytes <= block_bytes:
        return iter((TensorSlice.whole(output.shape),))
    return contiguous_boxes(output.shape, content.start // itemsize, content.stop // itemsize, block_bytes // itemsize)

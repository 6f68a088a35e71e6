"""Carries out the plans of target ranks: reads what they need, and writes their files front to back.

A file is made of *blocks*, as large as the memory budget allows. A block holds a stretch of the file: literal bytes
(headers) and parts of shards, which are gathered from the source files. A block is digested and written when it is
full, so memory does not depend on the size of any tensor. Ranks that need parts of the same rows are worked on side by
side, block by block, so that what they share is read once.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

import numpy as np
import xxhash

from core.budget import Budget
from core.checkpoint.formats import plan_file
from core.checkpoint.model import CheckpointFormat, Content, FilePlan, OutputEntry
from core.dtypes import MAP_TENSOR
from core.gather import Gatherer, Part, RankBlock
from core.manifest import ParameterRecord, ShardRecord
from core.plan import ConversionPlan, ParameterPlan, RankPlan
from core.slices import TensorSlice, contiguous_boxes
from core.storage.files import write_file
from core.storage.urls import Location

Advance = Callable[[int], None]
"""Told of every block written, how many bytes of shards were in it; may raise to stop the work."""


def transform_ranks(
    plan: ConversionPlan, ranks: Sequence[int], directory: Location, *, identity: str, budget: Budget, advance: Advance
) -> tuple[ShardRecord, ...]:
    """Writes target ranks' files below `directory`, side by side, and returns their records.

    Uses one worker's share of the budget. The files appear only when they are whole.

    Raises:
        CatalogError: a source file is not the one that was planned with.
        CheckpointError: a source file is damaged.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    gatherer = Gatherer(plan, budget.scratch_bytes, len(ranks))
    try:
        with ExitStack() as files:
            writers = [_RankWriter(plan, rank, directory, budget.block_bytes(len(ranks)), files) for rank in ranks]
            for step in zip_longest(*(writer.blocks() for writer in writers)):
                blocks = [(writer, block) for writer, block in zip(writers, step, strict=True) if block is not None]
                gatherer.fill([block for _, block in blocks])
                for writer, block in blocks:
                    writer.write(block)
                    advance(sum(part.size_bytes for part in block.parts))
            gatherer.check_unchanged()
    finally:
        gatherer.close()
    seconds = time.monotonic() - started
    shares = _even_shares(gatherer.read_bytes, len(ranks))
    return tuple(
        writer.record(identity, read_bytes, seconds / len(ranks))
        for writer, read_bytes in zip(writers, shares, strict=True)
    )


class _RankWriter:
    """One target rank's file, being written block by block."""

    def __init__(
        self, plan: ConversionPlan, rank: int, directory: Location, block_bytes: int, files: ExitStack
    ) -> None:
        self._rank_plan = plan.rank_plan(rank)
        self._outputs = expected_entries(plan, self._rank_plan)
        self._file_plan = planned_file(plan.inputs.format, self._outputs)
        self._digests = {output.name: xxhash.xxh3_128() for output in self._outputs}
        self._buffer = np.empty(block_bytes, dtype=np.uint8)
        self._path = plan.file_name(rank)
        self._file = files.enter_context(write_file(directory.child(self._path)))

    def blocks(self) -> Iterator[RankBlock]:
        """The file's blocks, the literal bytes in them filled in; all use one buffer."""
        parameters = {parameter.name: parameter for parameter in self._rank_plan.parameters}
        for block in _blocks(self._file_plan.segments, self._outputs, len(self._buffer)):
            for position, literal in block.literals:
                self._buffer[position : position + len(literal)] = np.frombuffer(literal, np.uint8)
            yield RankBlock(parameters, self._buffer[: block.size_bytes], block.parts)

    def write(self, block: RankBlock) -> None:
        """Digests and writes a filled block."""
        for part in block.parts:
            self._digests[part.name].update(block.buffer[part.position : part.position + part.size_bytes].data)
        self._file.write(block.buffer.data)

    def record(self, identity: str, read_bytes: int, seconds: float) -> ShardRecord:
        """What was written."""
        for output in self._outputs:
            if output.text is not None:
                self._digests[output.name].update(output.text.encode("utf-8", "surrogatepass"))
        return ShardRecord(
            identity=identity,
            rank=self._rank_plan.rank,
            file=self._path,
            size_bytes=self._file_plan.size_bytes,
            copy_of=None,
            source_ranks=self._rank_plan.source_ranks,
            read_bytes=read_bytes,
            seconds=round(seconds, 3),
            parameters=tuple(
                ParameterRecord(
                    name=output.name,
                    dtype=output.dtype.name,
                    shape=output.shape,
                    digest=self._digests[output.name].hexdigest(),
                )
                for output in self._outputs
            ),
        )


def _even_shares(total: int, count: int) -> Iterator[int]:
    return ((total * (number + 1)) // count - (total * number) // count for number in range(count))


def expected_entries(plan: ConversionPlan, rank_plan: RankPlan) -> tuple[OutputEntry, ...]:
    """What a target rank's file is to hold."""
    return tuple(_output_entry(plan, parameter) for parameter in rank_plan.parameters)


# the ranks of a stage hold the same parameters in the same shapes: their files differ in contents only
@lru_cache(maxsize=4)
def planned_file(file_format: CheckpointFormat, entries: tuple[OutputEntry, ...]) -> FilePlan:
    """The file that holds `entries`; see `plan_file`."""
    return plan_file(file_format, entries)


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
        if isinstance(segment, bytes):
            for start in range(0, len(segment), block_bytes):
                literal = segment[start : start + block_bytes]
                if block.size_bytes + len(literal) > block_bytes:
                    yield block
                    block = _Block()
                block.literals.append((block.size_bytes, literal))
                block.size_bytes += len(literal)
            continue
        output = by_name[segment.name]
        for box in _part_boxes(output, segment, block_bytes):
            size = box.size * output.dtype.itemsize
            if block.size_bytes + size > block_bytes:
                yield block
                block = _Block()
            block.parts.append(Part(segment.name, box, block.size_bytes, size))
            block.size_bytes += size
    yield block


def _part_boxes(output: OutputEntry, content: Content, block_bytes: int) -> Iterable[TensorSlice]:
    itemsize = output.dtype.itemsize
    if content.stop - content.start == output.size_bytes <= block_bytes:
        return (_whole(output.shape),)
    return contiguous_boxes(output.shape, content.start // itemsize, content.stop // itemsize, block_bytes // itemsize)


_whole = lru_cache(maxsize=1024)(TensorSlice.whole)

"""Copies a file of a converted checkpoint without some of its parameters."""

from collections.abc import Iterator
from dataclasses import dataclass

from reshard.core.checkpoint.formats.any_format import read_index
from reshard.core.checkpoint.formats.running_crc import RunningCrc, is_crc_in_header, running_crc
from reshard.core.checkpoint.model import FileIndex, FilePlan
from reshard.core.checkpoint.remote_index.templates import output_entry
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import OutputFile, write_file
from reshard.core.transfer.file_blocks import planned_file
from reshard.core.transfer.writer import heads_digest

_BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class ReducedFile:
    """A written file's size, and the digest of the bytes around its contents."""

    size_bytes: int
    heads: str


def copy_without(source: Location, target: Location, plan: ConversionPlan, left_out: frozenset[str]) -> ReducedFile:
    """Copy a file that `plan` produced, without the parameters `left_out`; at least one other must remain.

    Raises:
        CheckpointError: the file is damaged.
        StorageError: reading or writing failed.
    """
    file = open_source(source)
    try:
        index = read_index(file)
        entries = tuple(output_entry(entry) for entry in index.entries.values() if entry.name not in left_out)
        file_plan = planned_file(plan, entries)
        crc = running_crc(index.format, file_plan, entries)
        upload = UploadBuffers(keeps_first=crc is not None and is_crc_in_header(index.format))
        with write_file(target, upload) as output:
            for name, block in _blocks(file, index, file_plan):
                _write(output, crc, name, block)
            if crc is not None:
                crc.put_into(output)
        return ReducedFile(file_plan.size_bytes, heads_digest(file_plan, crc))
    finally:
        file.close()


def _blocks(file: SourceFile, index: FileIndex, file_plan: FilePlan) -> Iterator[tuple[str | None, memoryview]]:
    """Yield the new file's bytes in blocks, each with the name of its parameter, or None for heads."""
    for segment in file_plan.segments:
        if isinstance(segment, bytes):
            yield None, memoryview(segment)
            continue
        for extent in index.entries[segment.name].extents_of(segment.start, segment.stop - segment.start):
            for start in range(0, extent.length, _BLOCK_BYTES):
                block = memoryview(bytearray(min(_BLOCK_BYTES, extent.length - start)))
                file.read_into(extent.offset + start, block)
                yield segment.name, block


def _write(output: OutputFile, crc: RunningCrc | None, name: str | None, block: memoryview) -> None:
    if crc is not None:
        ranges = [] if name is None else [(name, 0, len(block))]
        crc.add(block, ranges, crc.sums(block, ranges))
    output.write(block)

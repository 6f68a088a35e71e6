"""Copies a file of a converted checkpoint without some of its parameters."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from reshard.core.files.any_format import read_index
from reshard.core.files.block_writing import complete_header, write_segments
from reshard.core.files.model import Content, output_entry
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.running_crc import running_crc
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_file
from reshard.core.transfer.file_blocks import planned_file
from reshard.core.transfer.writer import heads_digest

_BLOCK_BYTES = 8 * 2**20


class ReducedFile(Record):
    """A written file's size, and the digest of the bytes around its contents."""

    size_bytes: int
    heads: str


def copy_without(
    source: Location, target: Location, plan: ConversionPlan, rank: int, left_out: frozenset[str]
) -> ReducedFile:
    """Copy the file of a rank of `plan`, without the parameters `left_out`; at least one other must remain.

    Raises:
        CatalogError: the file changed while it was copied.
        CheckpointError: the file is damaged.
        StorageError: reading or writing failed.
    """
    with closing(open_source(source)) as file:
        index = read_index(file)
        entries = tuple(output_entry(entry) for entry in index.entries.values() if entry.name not in left_out)

        def blocks(contents: Sequence[Content]) -> Iterator[memoryview]:
            ranges = (
                (extent.offset, extent.length)
                for content in contents
                for extent in index.entries[content.name].extents_of(content.start, content.stop - content.start)
            )
            return (block for _, block in read_in_blocks(file, ranges, _BLOCK_BYTES))

        file_plan = complete_header(index.format, planned_file(plan, rank, entries), entries, blocks)
        crc = running_crc(index.format, file_plan, entries)
        with write_file(target) as output:
            write_segments(output, target, file_plan, crc, blocks)
        return ReducedFile(file_plan.size_bytes, heads_digest(file_plan, crc))

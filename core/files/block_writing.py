"""Writes a checkpoint file from blocks of its contents that arrive in the file's order."""

import stat
from collections.abc import Callable, Iterator, Sequence

from reshard.core.files.any_format import plan_file
from reshard.core.files.encryption import opening
from reshard.core.files.model import CheckpointFormat, Content, FilePlan, OutputEntry
from reshard.core.files.running_crc import ContentRange, RunningCrc, running_crc, with_crc_in_header
from reshard.core.runtime.keys import Key
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import OutputFile

Blocks = Callable[[Sequence[Content]], Iterator[memoryview]]
"""Returns the bytes of contents, in their order, in blocks of one content each."""


class FileKind(Record):
    """The kind of a file to write.

    Attributes:
        redundancy_removed: the mark in a .safetensors file that only some ranks' files hold the slices that ranks
            share; None: no mark.
        key: the key to encrypt it with, if any.
    """

    format: CheckpointFormat
    with_crc: bool = False
    redundancy_removed: bool | None = None
    key: Key | None = None


def write_checkpoint(location: Location, kind: FileKind, entries: Sequence[OutputEntry], blocks: Blocks) -> None:
    """Write a checkpoint file, which appears when it is whole; like MindSpore's, only its owner may read it.

    Raises:
        CheckpointError: the format cannot hold an entry, or two have the same name.
        CatalogError: the contents changed between two readings.
        StorageError: the file cannot be written.
    """
    plan = plan_file(kind.format, entries, redundancy_removed=kind.redundancy_removed, with_crc=kind.with_crc)
    plan = complete_header(kind.format, plan, entries, blocks)
    crc = running_crc(kind.format, plan, entries)
    with opening.write_checkpoint(location, kind.key) as file:
        write_segments(file, location, plan, crc, blocks)
    location.store.restrict(location.path, stat.S_IRUSR)


def complete_header(
    format: CheckpointFormat, plan: FilePlan, entries: Sequence[OutputEntry], blocks: Blocks
) -> FilePlan:
    """Return a file's plan with the CRC in the header, if that is its place; the contents are read for that."""
    crc = running_crc(format, plan, entries)
    if crc is None or not format.has_crc_in_header:
        return plan
    for _ in _summed(plan, crc, blocks):
        pass
    return with_crc_in_header(plan, crc)


def write_segments(
    file: OutputFile, location: Location, plan: FilePlan, crc: RunningCrc | None, blocks: Blocks
) -> None:
    """Write a planned file, and its CRC if it has one.

    Raises:
        CatalogError: the contents changed since the header was completed.
        StorageError: the file cannot be written.
    """
    for block in _summed(plan, crc, blocks):
        file.write(block)
    if crc is not None:
        crc.complete(file, str(location))


def _summed(plan: FilePlan, crc: RunningCrc | None, blocks: Blocks) -> Iterator[memoryview]:
    """Yield a planned file in blocks, each of which was added to the CRC."""
    contents = blocks([segment for segment in plan.segments if isinstance(segment, Content)])
    for segment in plan.segments:
        if isinstance(segment, bytes):
            yield _added(crc, memoryview(segment), None)
            continue
        left = segment.stop - segment.start
        while left:
            block = next(contents)
            yield _added(crc, block, segment.name)
            left -= len(block)


def _added(crc: RunningCrc | None, block: memoryview, name: str | None) -> memoryview:
    if crc is not None:
        ranges = [] if name is None else [ContentRange(name, 0, len(block))]
        crc.add(block, ranges, crc.sums(block, ranges))
    return block

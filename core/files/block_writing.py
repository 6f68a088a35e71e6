"""Writes a checkpoint file from blocks of its contents that arrive in the file's order."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence

from reshard.core.errors import InputError
from reshard.core.files.any_format import plan_file
from reshard.core.files.encryption import opening
from reshard.core.files.model import CheckpointFormat, Content, FilePlan, OutputEntry
from reshard.core.files.running_crc import ContentRange, RunningCrc, is_crc_in_header, running_crc
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.keys import Key
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import OutputFile, takes_rewriting

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
        InputError: the storage cannot take a CRC at the beginning of the file.
        StorageError: the file cannot be written.
    """
    changes_beginning = kind.with_crc and is_crc_in_header(kind.format)
    if changes_beginning and not takes_rewriting(location):
        raise InputError(f"{location}: a .safetensors file with a CRC cannot be written to this storage")
    plan = plan_file(kind.format, entries, redundancy_removed=kind.redundancy_removed, with_crc=kind.with_crc)
    crc = running_crc(kind.format, plan, entries)
    contents = [segment for segment in plan.segments if isinstance(segment, Content)]
    with opening.write_checkpoint(location, kind.key, UploadBuffers(keeps_first=changes_beginning)) as file:
        write_segments(file, plan, crc, blocks(contents))
    if location.is_local:
        os.chmod(location.path, stat.S_IRUSR)


def write_segments(file: OutputFile, plan: FilePlan, crc: RunningCrc | None, blocks: Iterator[memoryview]) -> None:
    """Write a planned file, and its CRC if it has one; `blocks` are those of its contents, in order.

    Raises:
        StorageError: the file cannot be written.
    """
    for segment in plan.segments:
        if isinstance(segment, bytes):
            _write(file, crc, memoryview(segment), None)
            continue
        left = segment.stop - segment.start
        while left:
            block = next(blocks)
            _write(file, crc, block, segment.name)
            left -= len(block)
    if crc is not None:
        crc.put_into(file)


def _write(file: OutputFile, crc: RunningCrc | None, block: memoryview, name: str | None) -> None:
    if crc is not None:
        ranges = [] if name is None else [ContentRange(name, 0, len(block))]
        crc.add(block, ranges, crc.sums(block, ranges))
    file.write(block)

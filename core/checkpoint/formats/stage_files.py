"""Parts of a checkpoint file: what each pipeline stage gave to a rank, `net_0_part0.ckpt`, `net_0_part1.ckpt`, as one.

What MindSpore's `load_segmented_checkpoints` reads. Every part has the parameters of its stage, and all have those that
no strategy knows, such as the step: these have to be alike.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from reshard.core.checkpoint.catalog.file_names import CheckpointName
from reshard.core.checkpoint.model import FileIndex, TensorEntry
from reshard.core.errors import CheckpointError
from reshard.core.storage.joined import JoinedFile, joined_name
from reshard.core.storage.patterns import NUMBER
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.slices import Extent

_PART = re.compile(rf"(?P<prefix>.+)_part(?P<number>{NUMBER})", re.DOTALL)
_LARGEST_COMPARED_BYTES = 1 << 20
"""Larger ones are parameters of a model, which two stages share: nobody says whose copy is meant."""


def parse_stage_file(name: CheckpointName) -> tuple[str, int] | None:
    """The prefix of all parts and this one's number; None if a file is no part."""
    match = _PART.fullmatch(name.prefix) if name.step is None else None
    return (match["prefix"], int(match["number"])) if match else None


def group_stage_files(names: Iterable[CheckpointName]) -> list[CheckpointName]:
    """Names of a rank's files, parts of one file under a name that stands for all of them."""
    result = []
    parts: dict[tuple[str, str], dict[int, CheckpointName]] = {}
    for name in names:
        found = parse_stage_file(name)
        if found is None:
            result.append(name)
        else:
            parts.setdefault((found[0], name.format.value), {})[found[1]] = name
    for (prefix, _), members in parts.items():
        numbers = tuple(sorted(members))
        file_format = members[numbers[0]].format
        single = members[numbers[0]].name if len(numbers) == 1 else ""
        together = single or joined_name(f"{prefix}_part", numbers, f".{file_format}")
        result.append(CheckpointName(together, prefix, None, file_format, numbers))
    return sorted(result, key=lambda name: name.name)


def merge_indexes(file: JoinedFile, indexes: Sequence[FileIndex]) -> FileIndex:
    """What parts hold together, at the offsets of the file that they are read as."""
    entries: dict[str, TensorEntry] = {}
    holders: dict[str, int] = {}
    for number, (offset, index) in enumerate(zip(file.offsets, indexes, strict=True)):
        for name, entry in index.entries.items():
            placed = replace(entry, extents=tuple(Extent(offset + e.offset, e.length) for e in entry.extents))
            if name in entries:
                _check_alike(file, entries[name], placed, (holders[name], number))
            else:
                entries[name], holders[name] = placed, number
    return FileIndex(
        indexes[0].format,
        file.size_bytes,
        entries,
        has_crc=any(index.has_crc for index in indexes),
        redundancy_removed=any(index.redundancy_removed for index in indexes),
    )


def _check_alike(file: JoinedFile, entry: TensorEntry, other: TensorEntry, parts: tuple[int, int]) -> None:
    first, second = (file.parts[number].location for number in parts)
    what = f"{first} and {second.name}: both have parameter {entry.name!r}"
    if (entry.dtype, entry.shape, entry.text) != (other.dtype, other.shape, other.text):
        raise CheckpointError(f"{what}, but not alike: they are not parts of one checkpoint")
    if entry.size_bytes > _LARGEST_COMPARED_BYTES:
        raise CheckpointError(
            f"{what}: stages share it, and it cannot be known whose copy is meant. Convert all stages at once, naming "
            "the directory of all strategies"
        )
    if entry.text is None and _content(file, entry) != _content(file, other):
        raise CheckpointError(f"{what}, with different contents: they are not parts of one checkpoint")


def _content(file: SourceFile, entry: TensorEntry) -> bytes:
    return b"".join(read_bytes(file, extent.offset, extent.length) for extent in entry.extents)

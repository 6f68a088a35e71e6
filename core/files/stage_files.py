"""Reads a rank's files of several pipeline stages, `net_0_part0.ckpt`, `net_0_part1.ckpt`, as one checkpoint file.

MindSpore reads them with `load_segmented_checkpoints`. Each file has the parameters of its stage, and all have those
that no strategy covers, such as the step: these must be equal.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from reshard.core.errors import CheckpointError
from reshard.core.files.file_names import CheckpointName
from reshard.core.files.model import FileIndex, TensorEntry
from reshard.core.storage.joined import JoinedFile, joined_name
from reshard.core.storage.patterns import NUMBER
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.slices import Extent

_PART = re.compile(rf"(?P<prefix>.+)_part(?P<number>{NUMBER})", re.DOTALL)
_MAX_COMPARED_BYTES = 1 << 20
"""Larger ones are parameters of a model, shared by two stages, of which neither replica takes precedence."""


def group_stage_files(names: Iterable[CheckpointName]) -> list[CheckpointName]:
    """Group the names of a rank's files: stage files under a common name."""
    result = []
    parts: dict[tuple[str, str], dict[int, CheckpointName]] = {}
    for name in names:
        match = _PART.fullmatch(name.prefix) if name.step is None else None
        if match is None:
            result.append(name)
        else:
            parts.setdefault((match["prefix"], name.format.value), {})[int(match["number"])] = name
    for (prefix, _), members in parts.items():
        numbers = tuple(sorted(members))
        file_format = members[numbers[0]].format
        single = members[numbers[0]].name if len(numbers) == 1 else ""
        together = single or joined_name(f"{prefix}_part", numbers, f".{file_format}")
        result.append(CheckpointName(together, prefix, None, file_format, numbers))
    return sorted(result, key=lambda name: name.name)


def merge_indexes(file: JoinedFile, indexes: Sequence[FileIndex]) -> FileIndex:
    """Merge the indexes of stage files, at the offsets of the joined file."""
    entries: dict[str, TensorEntry] = {}
    owners: dict[str, int] = {}
    for number, (offset, index) in enumerate(zip(file.offsets, indexes, strict=True)):
        for name, entry in index.entries.items():
            placed = replace(entry, extents=tuple(Extent(offset + e.offset, e.length) for e in entry.extents))
            if name in entries:
                _check_alike(file, entries[name], placed, (owners[name], number))
            else:
                entries[name], owners[name] = placed, number
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
        raise CheckpointError(f"{what}, but differ: they are not stages of one checkpoint")
    if entry.size_bytes > _MAX_COMPARED_BYTES:
        raise CheckpointError(
            f"{what}: stages share it, and neither replica takes precedence. Convert all stages at once, naming "
            "the directory of all strategies"
        )
    if entry.text is None and _content(file, entry) != _content(file, other):
        raise CheckpointError(f"{what}, with different contents: they are not stages of one checkpoint")


def _content(file: SourceFile, entry: TensorEntry) -> bytes:
    return b"".join(read_bytes(file, extent.offset, extent.length) for extent in entry.extents)

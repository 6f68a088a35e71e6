"""Lays out `.distcp` files of PyTorch's Distributed Checkpoint (DCP), and finds the tensors in such a file.

A file is an archive for each tensor, one after another, as `torch.save` writes them: a zip whose records are stored as
they are, the tensor's bytes at a multiple of 64 from its beginning. `.metadata` names the archives' places; the files
themselves do not name their tensors. An archive's length follows from its tensor's dtype and shape, so the places
follow from the tensors of a file, in their order. They are not part of records: this layout cannot change.

A zip has the CRC-32 of each record, which is known when its bytes are written: behind them, and in the directory.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from reshard.core.errors import CheckpointError
from reshard.core.files.model import (
    CheckpointFormat,
    Content,
    FileIndex,
    FilePlan,
    OutputEntry,
    SumPlace,
    TensorEntry,
)
from reshard.core.files.torch_records import VERSION, add_format, tensor_record, writable_name
from reshard.core.files.torch_zip import read_stored_tensors
from reshard.core.files.zip_layout import END, END_START
from reshard.core.files.zip_writing import ArchiveLayout
from reshard.core.runtime.pickle_writing import build_pickle
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Extent, Shape

EMPTY_FILE = END_START + bytes(END.size - len(END_START))
"""A zip without records: the file of a rank that has no tensors."""
_PREFIX = "archive/"


def plan_file(entries: Sequence[OutputEntry]) -> FilePlan:
    """Lay out the file with `entries` in their order.

    Raises:
        CheckpointError: torch has no such dtype.
    """
    segments: list[bytes | Content] = []
    places: list[SumPlace] = []
    literal = b"" if entries else EMPTY_FILE
    offset = 0
    for entry in entries:
        archive = _archive_of(entry)
        for segment in archive.segments:
            if isinstance(segment, bytes):
                literal += segment
            else:
                segments += [literal, Content(entry.name, segment.start, segment.stop)]
                literal = b""
        places += [SumPlace(offset + place.offset, entry.name) for place in archive.sum_places]
        offset += archive.size_bytes
    segments.append(literal)
    return FilePlan(tuple(segments), offset or len(EMPTY_FILE), sum_places=tuple(places))


def archive_extents(entries: Sequence[OutputEntry]) -> list[Extent]:
    """Return where the archive of each entry is in the file that holds them.

    Raises:
        CheckpointError: torch has no such dtype.
    """
    sizes = [_archive_of(entry).size_bytes for entry in entries]
    return [Extent(stop - size, size) for stop, size in zip(accumulate(sizes), sizes, strict=True)]


def read_index(file: SourceFile, entries: Sequence[OutputEntry]) -> FileIndex:
    """Index a file that holds archives of `entries`, in their order, by the headers of all.

    Raises:
        CheckpointError: the file is of another size, an archive is damaged, or of another tensor.
        StorageError: the file cannot be read.
    """
    extents = archive_extents(entries)
    size_bytes = extents[-1].offset + extents[-1].length if extents else len(EMPTY_FILE)
    if file.size_bytes != size_bytes:
        raise CheckpointError(f"{file.location}: has {file.size_bytes} bytes, its tensors take {size_bytes}")
    if not extents and read_bytes(file, 0, size_bytes) != EMPTY_FILE:
        raise CheckpointError(f"{file.location}: is not the empty file that it should be")
    found: dict[str, TensorEntry] = {}
    for entry, stored in zip(entries, read_stored_tensors(file, extents), strict=True):
        if stored.extent is None or stored.is_lazy:
            raise CheckpointError(f"{file.location}: parameter {entry.name!r} is not stored as it was written")
        found[entry.name] = TensorEntry(entry.name, stored.dtype, stored.shape, (stored.extent,))
    return FileIndex(CheckpointFormat.DISTCP, file.size_bytes, found)


def _archive_of(entry: OutputEntry) -> FilePlan:
    return _archive(entry.dtype, writable_name(entry), entry.shape)


# tensors of one dtype and shape have the same archive: layers repeat, and so do ranks
@lru_cache(maxsize=4096)
def _archive(dtype: DType, torch_dtype: str, shape: Shape) -> FilePlan:
    """The archive of any one tensor, whose name is left out."""
    archive = ArchiveLayout(_PREFIX)
    archive.add("data.pkl", build_pickle(tensor_record(dtype, torch_dtype, shape, "0")))
    add_format(archive)
    archive.add("version", VERSION)
    archive.add_data("data/0", Content("", 0, math.prod(shape) * dtype.itemsize))
    return archive.finish()

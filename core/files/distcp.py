"""Lays out `.distcp` files of PyTorch's Distributed Checkpoint (DCP), and finds the tensors in such a file.

A file is an archive for each tensor, one after another, as `torch.save` writes them: a zip whose records are stored as
they are, the tensor's bytes at a multiple of 64 from its beginning. `.metadata` names the archives' places; the files
themselves do not name their tensors. An archive's length follows from its tensor's dtype and shape, so the places
follow from the tensors of a file, in their order. They are not part of records: this layout cannot change.

A zip has the CRC-32 of each record, which is known when its bytes are written: behind them, and in the directory.
"""

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from reshard.core.errors import CheckpointError
from reshard.core.files.crc32 import crc32
from reshard.core.files.model import (
    CheckpointFormat,
    Content,
    FileIndex,
    FilePlan,
    OutputEntry,
    SumPlace,
    TensorEntry,
)
from reshard.core.files.torch_zip import read_stored_tensors
from reshard.core.files.zip_layout import (
    DESCRIPTOR_START,
    END,
    END_64,
    END_64_START,
    END_START,
    ENTRY,
    ENTRY_START,
    FULL_32,
    LOCAL,
    LOCAL_START,
    LOCATOR,
    LOCATOR_START,
    STORAGES,
    WIDE_FIELD,
)
from reshard.core.runtime.pickle_writing import build_pickle
from reshard.core.runtime.pickled import Global, PersistentId, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.dtypes import DType, dtype_from_torch, torch_name
from reshard.core.tensor.slices import Extent, Shape, row_major_strides
from reshard.core.text.options import option

EMPTY_FILE = END_START + bytes(END.size - len(END_START))
"""A zip without records: the file of a rank that has no tensors."""
_ALIGNMENT = 64
_PREFIX = "archive/"
_DATA = "data/0"
_UTF8, _SUM_FOLLOWS = 1 << 11, 1 << 3
_NEW_YEAR_1980 = 0x21
_VERSION, _VERSION_64 = 20, 45
_SUM_IN_ENTRY = 16
"""Place of a record's CRC in its entry of the directory."""
_PADDING_FIELD = 0x4246
"""Kind of torch's own extra field: `FB`."""
_STORAGES = {dtype_from_torch(dtype).name: storage for storage, dtype in STORAGES.items()}
"""dtype -> torch's class of its storages; others are untyped."""


class _Archive(Record):
    """An archive but for its tensor's bytes; `sum_places` are where their CRC-32 belongs in `tail`."""

    head: bytes
    data_bytes: int
    tail: bytes
    sum_places: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        return len(self.head) + self.data_bytes + len(self.tail)


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
        literal += archive.head
        if archive.data_bytes:
            segments += [literal, Content(entry.name, 0, archive.data_bytes)]
            literal = b""
        tail_offset = offset + len(archive.head) + archive.data_bytes
        places += [SumPlace(tail_offset + place, entry.name) for place in archive.sum_places]
        literal += archive.tail
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


def _archive_of(entry: OutputEntry) -> _Archive:
    name = None if entry.text is not None else torch_name(entry.dtype)
    if name is None:
        kind = "text" if entry.text is not None else str(entry.dtype)
        raise CheckpointError(
            f"parameter {entry.name!r} is a {kind}, for which PyTorch has no dtype; if the model does without it, "
            f"leave it out: {option('exclude', [entry.name])}"
        )
    return _archive(entry.dtype, name, entry.shape)


# tensors of one dtype and shape have the same archive: layers repeat, and so do ranks
@lru_cache(maxsize=4096)
def _archive(dtype: DType, torch_dtype: str, shape: Shape) -> _Archive:
    head, directory = b"", b""
    records = (
        ("data.pkl", build_pickle(_tensor_record(dtype, torch_dtype, shape))),
        (".format_version", b"1"),
        (".storage_alignment", str(_ALIGNMENT).encode()),
        ("byteorder", b"little"),
        ("version", b"3\n"),
    )
    for name, content in records:
        directory += _entry(name, len(content), len(head), crc32(content))
        head += _local(name, len(content), crc32(content)) + content
    data_bytes = math.prod(shape) * dtype.itemsize
    data_offset = len(head)
    head += _data_local(data_bytes, data_offset)
    descriptor = DESCRIPTOR_START + struct.pack("<L2Q" if data_bytes >= FULL_32 else "<3L", 0, data_bytes, data_bytes)
    sum_places = (4, len(descriptor) + len(directory) + _SUM_IN_ENTRY)
    directory += _entry(_DATA, data_bytes, data_offset)
    directory_offset = len(head) + data_bytes + len(descriptor)
    end = _end(directory_offset, len(directory), len(records) + 1)
    return _Archive(head, data_bytes, descriptor + directory + end, sum_places)


def _local(name: str, size: int, crc: int | None, extra: bytes = b"") -> bytes:
    """The header of a record, whose sizes and CRC follow it if that is not known yet."""
    full_name = (_PREFIX + name).encode()
    version, flags = _VERSION, _UTF8
    if crc is None:
        # the field of 64 bits, if there is one, says how long the sizes are that follow
        version, flags, size, crc = _version(size), _UTF8 | _SUM_FOLLOWS, FULL_32 if size >= FULL_32 else 0, 0
    fields = (version, flags, 0, 0, _NEW_YEAR_1980, crc, size, size, len(full_name), len(extra))
    return LOCAL.pack(LOCAL_START, *fields) + full_name + extra


def _data_local(size: int, offset: int) -> bytes:
    """The header of the tensor's bytes, padded so that these are aligned."""
    wide = struct.pack("<2H2Q", WIDE_FIELD, 16, size, size) if size >= FULL_32 else b""
    unpadded = offset + len(_local(_DATA, size, None, wide)) + 4
    padding = -unpadded % _ALIGNMENT
    return _local(_DATA, size, None, wide + struct.pack("<2H", _PADDING_FIELD, padding) + b"Z" * padding)


def _entry(name: str, size: int, offset: int, crc: int | None = None) -> bytes:
    """The entry of a record in the directory; without a CRC, there is a place for it."""
    full_name = (_PREFIX + name).encode()
    extra, shown = b"", size
    if size >= FULL_32:
        extra, shown = struct.pack("<2H2Q", WIDE_FIELD, 16, size, size), FULL_32
    flags = _UTF8 | (_SUM_FOLLOWS if crc is None else 0)
    version = _version(size)
    times_and_sum = (0, _NEW_YEAR_1980, crc or 0)
    sizes = (shown, shown, len(full_name), len(extra), 0)
    entry = ENTRY.pack(ENTRY_START, version, version, flags, 0, *times_and_sum, *sizes, 0, 0, 0, offset)
    return entry + full_name + extra


def _version(size: int) -> int:
    return _VERSION_64 if size >= FULL_32 else _VERSION


def _end(offset: int, size: int, count: int) -> bytes:
    """The end of an archive, with the long form that torch always writes."""
    long = END_64.pack(END_64_START, END_64.size - 12, _VERSION_64, _VERSION_64, 0, 0, count, count, size, offset)
    locator = LOCATOR.pack(LOCATOR_START, 0, offset + size, 1)
    return long + locator + END.pack(END_START, 0, 0, count, count, size, min(offset, FULL_32), 0)


def _tensor_record(dtype: DType, torch_dtype: str, shape: Shape) -> PickledObject:
    """What a tensor's pickle would call: torch's own function, with the storage that is stored beside it."""
    elements = math.prod(shape)
    storage = _STORAGES.get(dtype.name)
    kind = Global("torch", storage) if storage else Global("torch.storage", "UntypedStorage")
    length = elements if storage else elements * dtype.itemsize
    stored = PersistentId(("storage", kind, "0", "cpu", length))
    strides = row_major_strides(tuple(max(1, each) for each in shape))
    arguments: tuple[object, ...] = (
        stored,
        0,
        shape,
        strides,
        False,
        PickledObject(Global("collections", "OrderedDict"), ()),
    )
    if storage:
        return PickledObject(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    return PickledObject(Global("torch._utils", "_rebuild_tensor_v3"), (*arguments, Global("torch", torch_dtype)))

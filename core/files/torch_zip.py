"""Tensors that torch.save wrote, found by their headers: each a zip archive of its own in a part of a file.

    {prefix}/data.pkl     _rebuild_tensor_v2(storage, storage_offset, size, stride, …): a pickle, read as data
    {prefix}/data/0       the storage's bytes, uncompressed
    {prefix}/byteorder    little
    {prefix}/version, .format_version, .storage_alignment, .data/serialization_id

Offsets in an archive count from its first byte. Its directory is at its end; the headers before the records may lack
their sizes, which then follow the record. A tensor is a view of its storage, with strides of its own: a transposed one
is stored as it was before. Every record has a CRC-32 in the directory; it is 0 if torch's
`set_crc32_options` turned the computation off.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from reshard.core.errors import CheckpointError
from reshard.core.files.crc32 import crc32
from reshard.core.files.model import StoredCrc, StridedContent
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.zip_layout import (
    DESCRIPTOR_START,
    END,
    END_64,
    END_64_START,
    END_START,
    ENTRY,
    ENTRY_START,
    FULL_16,
    FULL_32,
    LOCAL,
    LOCAL_START,
    LOCATOR,
    LOCATOR_START,
    STORAGES,
    WIDE_FIELD,
)
from reshard.core.runtime.pickled import Global, PersistentId, PickledObject, PickleError, read_pickle
from reshard.core.runtime.records import Record
from reshard.core.storage.coalescing import coalesced, covering_range
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.dtypes import TORCH_DTYPES, DType, dtype_from_torch
from reshard.core.tensor.slices import Extent, Shape, is_countable, row_major_strides

_HEAD_BYTES, _TAIL_BYTES = 2048, 1024
"""Room around the data in a tensor's archive: 700 bytes precede it, 800 follow."""
_GAP_BYTES, _READ_BYTES = 4096, 4 << 20
_MAX_DIRECTORY_BYTES = 1 << 16
_MAX_PICKLE_BYTES = 1 << 16
_MAX_RECORDS = 64
_STORED, _ENCRYPTED = 0, 1
_MAX_DESCRIPTOR_BYTES = 24
_BLOCK_BYTES = 4 << 20
_DESCRIPTORS = (("<3L", FULL_32), ("<L2Q", 2**64 - 1))
_UNTYPED = Global("torch.storage", "UntypedStorage")
_V2, _V3 = Global("torch._utils", "_rebuild_tensor_v2"), Global("torch._utils", "_rebuild_tensor_v3")
_PARAMETER = Global("torch._utils", "_rebuild_parameter")
_ALLOWED = frozenset(
    [
        *((each.module, each.name) for each in (_V2, _V3, _PARAMETER, _UNTYPED)),
        *(("torch", name) for name in STORAGES),
        *(("torch", name) for name in TORCH_DTYPES),
        ("collections", "OrderedDict"),
    ]
)


class StoredTensor(Record):
    """A tensor in a file.

    Attributes:
        extent: its bytes, if they are in C order without gaps.
        strided: where its elements are, otherwise.
        is_lazy: its values are the conjugates or negatives of the stored ones.
        crc: of all bytes of its storage; None if the file has none.
    """

    dtype: DType
    shape: Shape
    extent: Extent | None
    strided: StridedContent | None
    is_lazy: bool = False
    crc: StoredCrc | None = None


def read_stored_tensors(file: SourceFile, archives: Sequence[Extent]) -> list[StoredTensor]:
    """Find the tensors in archives of a file, from their headers alone.

    Raises:
        CheckpointError: one is damaged, compressed, or no tensor; names the file and the byte where it begins.
        StorageError: the file cannot be read.
    """
    found = []
    window = _Window(file, archives)
    for archive in archives:
        try:
            found.append(_Archive(window, archive).tensor())
        except (CheckpointError, PickleError) as error:
            raise CheckpointError(f"{file.location}: the archive at byte {archive.offset}: {error}") from None
    return found


def check_crcs(file: SourceFile, crcs: Mapping[str, StoredCrc], advance: Callable[[int], None]) -> None:
    """Read the storages of tensors, by name, and compare their CRC-32; `advance` is given the bytes of each block.

    Raises:
        CheckpointError: one is damaged; names the file, the tensor and its first byte.
        StorageError: the file cannot be read.
    """
    wanted = sorted(crcs.items(), key=lambda item: item[1].extent.offset)
    actual = [0] * len(wanted)
    for number, block in read_in_blocks(
        file, [(stored.extent.offset, stored.extent.length) for _, stored in wanted], _BLOCK_BYTES
    ):
        actual[number] = crc32(block, actual[number])
        advance(len(block))
    for (name, stored), found in zip(wanted, actual, strict=True):
        if found != stored.crc:
            raise CheckpointError(crc_problem(str(file.location), name, stored, found))


def crc_problem(origin: str, name: str, stored: StoredCrc, actual: int) -> str:
    """Return what is wrong with a tensor whose bytes have another CRC-32."""
    return (
        f"{origin}: parameter {name!r}: its {stored.extent.length} bytes at {stored.extent.offset} have the CRC-32 "
        f"{actual:#010x}, the file says {stored.crc:#010x}: damaged"
    )


class _Window:
    """The heads and tails of archives, read together where they are neighbors; anything else is read when asked for."""

    def __init__(self, file: SourceFile, archives: Sequence[Extent]) -> None:
        self._file = file
        ends = {
            end
            for each in archives
            for end in (
                Extent(each.offset, min(_HEAD_BYTES, each.length)),
                Extent(each.offset + max(0, each.length - _TAIL_BYTES), min(_TAIL_BYTES, each.length)),
            )
        }
        groups = [covering_range(group) for group in coalesced([*ends], gap_bytes=_GAP_BYTES, max_bytes=_READ_BYTES)]
        self._known = dict(zip(groups, file.read_many(groups), strict=True)) if groups else {}
        self._starts = sorted(groups)
        self._next = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file."""
        # archives come in order, mostly: begin where the last one was found
        for step in range(len(self._starts)):
            place = (self._next + step) % len(self._starts)
            start, size = self._starts[place]
            if start <= offset and offset + length <= start + size:
                self._next = place
                return self._known[start, size][offset - start : offset - start + length]
            if step > 2:
                break
        return read_bytes(self._file, offset, length)


class _Entry(Record):
    """A record in an archive's directory; `offset` is that of its header, in the archive. `crc` 0: none."""

    offset: int
    size: int
    crc: int

    def may_be_followed_by(self, data: bytes) -> bool:
        """True if bytes may be all that is between the record and the next: nothing, or its CRC and sizes again."""
        fields = (struct.pack(layout, self.crc, self.size & mask, self.size & mask) for layout, mask in _DESCRIPTORS)
        return not data or data.removeprefix(DESCRIPTOR_START) in fields


class _Archive:
    def __init__(self, window: _Window, extent: Extent) -> None:
        self._window = window
        self._extent = extent
        self._directory_offset = 0
        self._entries = self._read_directory()

    def tensor(self) -> StoredTensor:
        """Find the tensor in the archive."""
        pickle = self._only("data.pkl")
        prefix = pickle.removesuffix("data.pkl")
        if f"{prefix}byteorder" in self._entries:
            order = self._content(f"{prefix}byteorder", 16)
            if order != b"little":
                raise CheckpointError(f"is of byte order {order.decode(errors='replace')!r}, reshard reads little")
        view = _parse_view(self._content(pickle, _MAX_PICKLE_BYTES))
        name = f"{prefix}data/{view.key}"
        data = self._data(name)
        if view.storage_bytes != data.length:
            raise CheckpointError(f"its storage is said to have {view.storage_bytes} bytes, it has {data.length}")
        placed = view.placed(self._extent.offset + data.offset)
        crc = self._entries[name].crc
        if not crc:
            return placed
        return replace(placed, crc=StoredCrc(Extent(self._extent.offset + data.offset, data.length), crc))

    def _only(self, name: str) -> str:
        names = [each for each in self._entries if each == name or each.endswith(f"/{name}")]
        if len(names) != 1:
            raise CheckpointError(f"has {len(names)} records {name!r}: it is not a tensor that torch saved")
        return names[0]

    def _content(self, name: str, most_bytes: int) -> bytes:
        data = self._data(name)
        if data.length > most_bytes:
            raise CheckpointError(f"its record {name!r} has {data.length} bytes, of a tensor it has less")
        content = self._read(data.offset, data.length)
        crc = self._entries[name].crc
        if crc and crc32(content) != crc:
            raise CheckpointError(f"its record {name!r} does not have its CRC-32: damaged")
        return content

    def _data(self, name: str) -> Extent:
        """Where a record's bytes are in the archive."""
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"has no record {name!r}: damaged")
        signature, *_, name_bytes, extra_bytes = LOCAL.unpack(self._read(entry.offset, LOCAL.size))
        start = entry.offset + LOCAL.size + name_bytes + extra_bytes
        stop = start + entry.size
        named = self._read(entry.offset + LOCAL.size, name_bytes)
        if signature != LOCAL_START or named != name.encode() or stop > self._directory_offset:
            raise CheckpointError(f"its directory names {name!r} at byte {entry.offset}, where it is not: damaged")
        # a wrong length of the header's extra field moves the record: it must end where the next one begins
        later = (each.offset for each in self._entries.values() if each.offset > entry.offset)
        rest = min(later, default=self._directory_offset) - stop
        if not 0 <= rest <= _MAX_DESCRIPTOR_BYTES or not entry.may_be_followed_by(self._read(stop, rest)):
            raise CheckpointError(f"its record {name!r} does not end where the next one begins: damaged")
        return Extent(start, entry.size)

    def _read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self._extent.length:
            raise CheckpointError(f"names bytes {offset} to {offset + length}, it has {self._extent.length}: truncated")
        return self._window.read(self._extent.offset + offset, length)

    def _read_directory(self) -> dict[str, _Entry]:
        size = self._extent.length
        if size < END.size or self._read(0, len(LOCAL_START)) != LOCAL_START:
            raise CheckpointError("is not a zip archive: damaged, or not what torch.save writes")
        end = size - END.size
        signature, *_, count, length, offset, comment = END.unpack(self._read(end, END.size))
        if signature != END_START or comment:
            raise CheckpointError("has no directory at its end: truncated")
        locator = self._read(end - LOCATOR.size, LOCATOR.size) if end >= LOCATOR.size else b""
        if locator.startswith(LOCATOR_START):
            end = LOCATOR.unpack(locator)[2]
            signature, *_, count, length, offset = END_64.unpack(self._read(end, END_64.size))
            if signature != END_64_START:
                raise CheckpointError("has no directory where its end says: damaged")
        elif FULL_32 in (length, offset) or count == FULL_16:
            raise CheckpointError("has no directory where its end says: damaged")
        if count > _MAX_RECORDS or length > _MAX_DIRECTORY_BYTES or offset + length > end:
            raise CheckpointError(f"has a directory of {count} records in {length} bytes at {offset}: damaged")
        self._directory_offset = offset
        return _parse_directory(self._read(offset, length), count)


def _parse_directory(data: bytes, count: int) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    position = 0
    try:
        for _ in range(count):
            fields = ENTRY.unpack_from(data, position)
            signature, flags, method = fields[0], fields[3], fields[4]
            crc, packed, size, name_bytes, extra_bytes, comment_bytes = fields[7:13]
            offset = fields[-1]
            position += ENTRY.size
            name = data[position : position + name_bytes].decode()
            extra = data[position + name_bytes : position + name_bytes + extra_bytes]
            position += name_bytes + extra_bytes + comment_bytes
            if signature != ENTRY_START or position > len(data) or name in entries:
                raise CheckpointError("has a damaged directory")
            if method != _STORED or flags & _ENCRYPTED:
                raise CheckpointError(
                    f"its record {name[:200]!r} is compressed or encrypted, which torch.save never does"
                )
            size, packed, offset = _wide(extra, size, packed, offset)
            if size != packed:
                raise CheckpointError(f"its record {name[:200]!r} has two sizes, {size} and {packed}: damaged")
            entries[name] = _Entry(offset, size, crc)
    except (struct.error, UnicodeDecodeError):
        raise CheckpointError("has a damaged directory") from None
    if position != len(data):
        raise CheckpointError("has a damaged directory")
    return entries


def _wide(extra: bytes, *numbers: int) -> list[int]:
    """Numbers of 32 bits, those that are full replaced by the ones of 64 bits in an entry's extra field."""
    wide = b""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == WIDE_FIELD:
            wide = extra[4 : 4 + length]
        extra = extra[4 + length :]
    result = []
    for number in numbers:
        if number == FULL_32:
            (number,) = struct.unpack_from("<Q", wide)
            wide = wide[8:]
        result.append(number)
    return result


class _View(Record):
    """A tensor as its pickle describes it; `start` and `strides` count elements of the storage."""

    dtype: DType
    shape: Shape
    key: str
    storage_bytes: int
    start: int
    strides: Shape
    is_lazy: bool

    def placed(self, data_offset: int) -> StoredTensor:
        """The tensor in a file whose byte `data_offset` is the storage's first."""
        item = self.dtype.itemsize
        is_empty = 0 in self.shape
        last = self.start + sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        if not is_empty and (last + 1) * item > self.storage_bytes:
            raise CheckpointError(f"its tensor ends after its storage of {self.storage_bytes} bytes: damaged")
        offset = data_offset + self.start * item
        dense = row_major_strides(self.shape)
        is_dense = all(
            length == 1 or stride == expected
            for length, stride, expected in zip(self.shape, self.strides, dense, strict=True)
        )
        extent, strided = None, None
        if is_empty:
            extent = Extent(data_offset, 0)
        elif is_dense:
            extent = Extent(offset, (last - self.start + 1) * item)
        else:
            # the stride of a single element means nothing, and may be any number
            steps = zip(self.shape, self.strides, strict=True)
            strided = StridedContent(offset, tuple(stride * item if length > 1 else 0 for length, stride in steps))
        return StoredTensor(self.dtype, self.shape, extent, strided, self.is_lazy)


@lru_cache(maxsize=4096)
def _parse_view(data: bytes) -> _View:
    # tensors of one shape have the same pickle: layers repeat, and so do ranks
    record = read_pickle(data, _ALLOWED)
    if isinstance(record, PickledObject) and record.made_by == _PARAMETER and record.arguments:
        record = record.arguments[0]
    if not isinstance(record, PickledObject) or record.made_by not in (_V2, _V3) or len(record.arguments) < 6:
        raise CheckpointError("its pickle describes no tensor")
    storage, start, shape, strides, _, _, *rest = record.arguments
    key, storage_dtype, elements = _parse_storage(storage)
    if record.made_by == _V3:
        if not rest or not isinstance(rest[0], Global) or rest[0].module != "torch" or storage_dtype is not None:
            raise CheckpointError("its pickle describes a tensor without a dtype")
        dtype = dtype_from_torch(rest[0].name)
        storage_bytes, rest = elements, rest[1:]
    elif storage_dtype is None:
        raise CheckpointError("its pickle describes a tensor without a dtype")
    else:
        dtype, storage_bytes = storage_dtype, elements * storage_dtype.itemsize
    sizes, steps = _numbers(shape), _numbers(strides)
    if len(sizes) != len(steps) or type(start) is not int or not 0 <= start < 2**63:
        raise CheckpointError("its pickle gives no place in the storage: damaged")
    if not is_countable(sizes, dtype.itemsize):
        raise CheckpointError("its pickle gives a shape that no file can hold: damaged")
    return _View(dtype, sizes, key, storage_bytes, start, steps, is_lazy=any(rest))


def _parse_storage(value: object) -> tuple[str, DType | None, int]:
    """Key, dtype and number of elements of a storage; an untyped one has no dtype, and its elements are bytes."""
    match value.value if isinstance(value, PersistentId) else None:
        case ("storage", Global() as kind, str(key), str(), int(elements)) if key.isdigit() and 0 <= elements < 2**60:
            if kind == _UNTYPED:
                return key, None, elements
            if kind.module == "torch" and kind.name in STORAGES:
                return key, dtype_from_torch(STORAGES[kind.name]), elements
    raise CheckpointError("its pickle describes a tensor without a storage")


def _numbers(value: object) -> Shape:
    if type(value) is not tuple or not all(type(each) is int and 0 <= each < 2**63 for each in value):
        raise CheckpointError("its pickle gives a shape or strides that are none: damaged")
    return value

"""Records of the archives that torch.save writes: zips whose records are stored as they are, found by the directory.

Offsets count from an archive's first byte. Its directory is at its end; the headers before the records may lack their
sizes, which then follow the record. Where a record's bytes begin depends on the length of its header's extra field, so
the header is read, and must fit: the record ends where the next one begins.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from reshard.core.errors import CheckpointError
from reshard.core.files.crc32 import crc32
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
    WIDE_FIELD,
)
from reshard.core.runtime.records import Record
from reshard.core.storage.coalescing import coalesced, covering_range
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.slices import Extent

_GAP_BYTES, _READ_BYTES = 4096, 4 << 20
_STORED, _ENCRYPTED, _SUM_FOLLOWS = 0, 1, 1 << 3
_ALIGNMENT, _MOST_EXTRA_BYTES = 64, 96
"""Of torch's data, and of the extra field that makes it so."""
_DESCRIPTOR_BYTES, _MAX_DESCRIPTOR_BYTES = 16, 24
_HEADER_BYTES = 256
"""A record's header with its name and the padding before its bytes."""
_DESCRIPTORS = (("<3L", FULL_32), ("<L2Q", 2**64 - 1))


class Window:
    """Parts of a file, read together where they are neighbors; anything else is read when asked for."""

    def __init__(self, file: SourceFile, parts: Iterable[Extent]) -> None:
        self._file = file
        groups = [covering_range(group) for group in coalesced([*parts], gap_bytes=_GAP_BYTES, max_bytes=_READ_BYTES)]
        self._starts = [start for start, _ in groups]
        self._known = file.read_many(groups) if groups else []

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file."""
        # groups may overlap where their parts do
        for place in range(bisect_right(self._starts, offset) - 1, -1, -1)[:2]:
            start, known = self._starts[place], self._known[place]
            if offset + length <= start + len(known):
                return known[offset - start : offset - start + length]
        return read_bytes(self._file, offset, length)


class ZipRecord(Record):
    """A record in an archive's directory.

    Attributes:
        offset: its header, in the archive.
        crc: its CRC-32; 0: none.
        is_plain: it is neither compressed nor encrypted.
        sum_follows: its CRC and sizes follow it.
    """

    offset: int
    size: int
    crc: int
    is_plain: bool
    sum_follows: bool

    def may_be_followed_by(self, data: bytes) -> bool:
        """True if bytes may be all that is between the record and the next: nothing, or its CRC and sizes again."""
        fields = (struct.pack(layout, self.crc, self.size & mask, self.size & mask) for layout, mask in _DESCRIPTORS)
        return not data or data.removeprefix(DESCRIPTOR_START) in fields


class Archive:
    """An archive in a file.

    Attributes:
        extent: its place in the file.
        records: all records by name, in the directory's order.
    """

    def __init__(self, window: Window, extent: Extent, *, max_records: int, max_directory_bytes: int) -> None:
        """Read the directory.

        Raises:
            CheckpointError: it is damaged, larger than allowed, or has a record that is compressed.
        """
        self.window = window
        self.extent = extent
        self._max_records, self._max_directory_bytes = max_records, max_directory_bytes
        self.records, self._directory_offset = self._read_directory()
        self._next_offsets = _next_offsets(self.records.values(), self._directory_offset)

    def only(self, name: str) -> str:
        """Return the full name of the one record `name`, of any prefix."""
        names = [each for each in self.records if each == name or each.endswith(f"/{name}")]
        if len(names) != 1:
            raise CheckpointError(f"has {len(names)} records {name!r}: it is not what torch.save writes")
        return names[0]

    def check_byteorder(self, prefix: str) -> None:
        """Refuse an archive of a machine whose numbers begin with the high byte."""
        if f"{prefix}byteorder" in self.records:
            order = self.content(f"{prefix}byteorder", 16)
            if order != b"little":
                raise CheckpointError(f"is of byte order {order.decode(errors='replace')!r}, reshard reads little")

    def content(self, name: str, most_bytes: int) -> bytes:
        """Return a small record, compared with its CRC."""
        data = self.data(name)
        if data.length > most_bytes:
            raise CheckpointError(f"its record {name!r} has {data.length} bytes, more than {most_bytes}")
        content = self._read(data.offset, data.length)
        crc = self.records[name].crc
        if crc and crc32(content) != crc:
            raise CheckpointError(f"its record {name!r} does not have its CRC-32: damaged")
        return content

    def data(self, name: str) -> Extent:
        """Return where a record's bytes are in the archive."""
        record = self.records.get(name)
        if record is None:
            raise CheckpointError(f"has no record {name!r}: damaged")
        if not record.is_plain:
            raise CheckpointError(f"its record {name[:200]!r} is compressed or encrypted, which torch.save never does")
        signature, *_, name_bytes, extra_bytes = LOCAL.unpack(self._read(record.offset, LOCAL.size))
        start = record.offset + LOCAL.size + name_bytes + extra_bytes
        stop = start + record.size
        named = self._read(record.offset + LOCAL.size, name_bytes)
        if signature != LOCAL_START or named != name.encode() or stop > self._directory_offset:
            raise CheckpointError(f"its directory names {name!r} at byte {record.offset}, where it is not: damaged")
        # a wrong length of the header's extra field moves the record: it must end where the next one begins
        rest = self._next_offsets[record.offset] - stop
        if not 0 <= rest <= _MAX_DESCRIPTOR_BYTES or not record.may_be_followed_by(self._read(stop, rest)):
            raise CheckpointError(f"its record {name!r} does not end where the next one begins: damaged")
        return Extent(start, record.size)

    def aligned(self, name: str) -> Extent | None:
        """Return where a record's bytes are in the file if torch wrote it, from the directory alone.

        None if they do not then begin at a multiple of 64, shortly after the header; and without a CRC, which tells
        when they are read that they were elsewhere.
        """
        record = self.records[name]
        trailer = 0
        if record.sum_follows:
            trailer = _MAX_DESCRIPTOR_BYTES if record.size >= FULL_32 else _DESCRIPTOR_BYTES
        start = self._next_offsets[record.offset] - trailer - record.size
        extra_bytes = start - record.offset - LOCAL.size - len(name.encode())
        if not (record.crc and record.is_plain) or start % _ALIGNMENT or not 0 <= extra_bytes <= _MOST_EXTRA_BYTES:
            return None
        return Extent(self.extent.offset + start, record.size)

    def headers(self, names: Iterable[str]) -> list[Extent]:
        """Return what is read to find records: the header of each, and what precedes the next one's."""
        parts = []
        for record in (self.records[name] for name in names):
            parts.append(self._part(record.offset, _HEADER_BYTES))
            parts.append(self._part(self._next_offsets[record.offset] - _MAX_DESCRIPTOR_BYTES, _MAX_DESCRIPTOR_BYTES))
        return parts

    def _part(self, offset: int, length: int) -> Extent:
        """As much of the archive as there is from an offset on."""
        start = min(max(0, offset), self.extent.length)
        return Extent(self.extent.offset + start, min(length, self.extent.length - start))

    def in_file(self, name: str) -> Extent:
        """Return where a record's bytes are in the file."""
        data = self.data(name)
        return Extent(self.extent.offset + data.offset, data.length)

    def _read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.extent.length:
            raise CheckpointError(f"names bytes {offset} to {offset + length}, it has {self.extent.length}: truncated")
        return self.window.read(self.extent.offset + offset, length)

    def _read_directory(self) -> tuple[dict[str, ZipRecord], int]:
        """The records, and where the directory begins."""
        size = self.extent.length
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
        if count > self._max_records or length > self._max_directory_bytes or offset + length > end:
            raise CheckpointError(f"has a directory of {count} records in {length} bytes at {offset}: damaged")
        return _parse_directory(self._read(offset, length), count), offset


def _parse_directory(data: bytes, count: int) -> dict[str, ZipRecord]:
    found: dict[str, ZipRecord] = {}
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
            if signature != ENTRY_START or position > len(data) or name in found:
                raise CheckpointError("has a damaged directory")
            size, packed, offset = _wide(extra, size, packed, offset)
            is_plain = method == _STORED and not flags & _ENCRYPTED
            if is_plain and size != packed:
                raise CheckpointError(f"its record {name[:200]!r} has two sizes, {size} and {packed}: damaged")
            found[name] = ZipRecord(offset, size, crc, is_plain, sum_follows=bool(flags & _SUM_FOLLOWS))
    except (struct.error, UnicodeDecodeError):
        raise CheckpointError("has a damaged directory") from None
    if position != len(data):
        raise CheckpointError("has a damaged directory")
    return found


def _next_offsets(records: Iterable[ZipRecord], stop: int) -> dict[int, int]:
    """The offset that follows each in ascending order; equal ones have one, which then fits at most one record."""
    return dict(pairwise([*sorted({record.offset for record in records}), stop]))


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

"""Lays out archives as torch.save writes them: zips whose records are stored as they are, data at multiples of 64.

A record's CRC-32 is known when its bytes are written: it follows them, and is in the directory. Fields of 64 bits stand
only where one of 32 bits is too small, but for the archive's end, which torch always writes in both forms.
"""

import struct
from collections.abc import Iterable

from reshard.core.files.crc32 import crc32
from reshard.core.files.model import Content, FilePlan, SumPlace
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

ALIGNMENT = 64
_UTF8, _SUM_FOLLOWS = 1 << 11, 1 << 3
_NEW_YEAR_1980 = 0x21
_VERSION, _VERSION_64 = 20, 45
_SUM_IN_ENTRY = 16
"""Place of a record's CRC in its entry of the directory."""
_PADDING_FIELD = 0x4246
"""Kind of torch's own extra field: `FB`."""


class ArchiveLayout:
    """An archive that grows record by record; names of records get its prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._segments: list[bytes | Content] = []
        self._literal = bytearray()
        self._offset = 0
        self._directory = bytearray()
        self._count = 0
        self._places: list[SumPlace] = []
        self._places_in_directory: list[SumPlace] = []

    def add(self, name: str, content: bytes, *, aligned: bool = False) -> None:
        """Add a record whose content is known."""
        crc = crc32(content)
        self._list(self._entry(name, len(content), crc))
        local = self._aligned_local if aligned else self._local
        self._write(local(name, len(content), crc) + content)

    def add_data(self, name: str, data: Content) -> None:
        """Add an aligned record for bytes that come later."""
        size = data.stop - data.start
        entry = self._entry(name, size)
        self._places_in_directory.append(SumPlace(len(self._directory) + _SUM_IN_ENTRY, data.name))
        self._list(entry)
        self._write(self._aligned_local(name, size, None))
        if size:
            self._segments += [bytes(self._literal), data]
            self._literal.clear()
            self._offset += size
        self._places.append(SumPlace(self._offset + len(DESCRIPTOR_START), data.name))
        self._write(DESCRIPTOR_START + struct.pack("<L2Q" if size >= FULL_32 else "<3L", 0, size, size))

    def finish(self) -> FilePlan:
        """Add the directory, and return the plan of the whole."""
        directory_offset = self._offset
        self._write(bytes(self._directory))
        self._write(_end(directory_offset, len(self._directory), self._count))
        places = (*self._places, *_moved(self._places_in_directory, directory_offset))
        return FilePlan((*self._segments, bytes(self._literal)), self._offset, sum_places=places)

    def _write(self, data: bytes) -> None:
        self._literal += data
        self._offset += len(data)

    def _list(self, entry: bytes) -> None:
        self._directory += entry
        self._count += 1

    def _local(self, name: str, size: int, crc: int | None, extra: bytes = b"") -> bytes:
        """The header of a record, whose sizes and CRC follow it if that is not known yet."""
        full_name = (self._prefix + name).encode()
        version, flags = _VERSION, _UTF8
        if crc is None:
            # the field of 64 bits, if there is one, says how long the sizes are that follow
            version, flags, size, crc = _version(size), _UTF8 | _SUM_FOLLOWS, FULL_32 if size >= FULL_32 else 0, 0
        fields = (version, flags, 0, 0, _NEW_YEAR_1980, crc, size, size, len(full_name), len(extra))
        return LOCAL.pack(LOCAL_START, *fields) + full_name + extra

    def _aligned_local(self, name: str, size: int, crc: int | None) -> bytes:
        """The header of a record, padded so that its content is aligned."""
        wide = struct.pack("<2H2Q", WIDE_FIELD, 16, size, size) if size >= FULL_32 else b""
        unpadded = self._offset + len(self._local(name, size, crc, wide)) + 4
        padding = -unpadded % ALIGNMENT
        return self._local(name, size, crc, wide + struct.pack("<2H", _PADDING_FIELD, padding) + b"Z" * padding)

    def _entry(self, name: str, size: int, crc: int | None = None) -> bytes:
        """The entry of the next record in the directory; without a CRC, there is a place for it."""
        full_name = (self._prefix + name).encode()
        wide = [size, size] if size >= FULL_32 else []
        wide += [self._offset] if self._offset >= FULL_32 else []
        extra = struct.pack(f"<2H{len(wide)}Q", WIDE_FIELD, 8 * len(wide), *wide) if wide else b""
        size, offset = min(size, FULL_32), min(self._offset, FULL_32)
        version = _VERSION_64 if wide else _VERSION
        flags = _UTF8 | (_SUM_FOLLOWS if crc is None else 0)
        times_and_sum = (0, _NEW_YEAR_1980, crc or 0)
        sizes = (size, size, len(full_name), len(extra), 0)
        entry = ENTRY.pack(ENTRY_START, version, version, flags, 0, *times_and_sum, *sizes, 0, 0, 0, offset)
        return entry + full_name + extra


def _moved(places: Iterable[SumPlace], offset: int) -> list[SumPlace]:
    return [SumPlace(place.offset + offset, place.name) for place in places]


def _version(size: int) -> int:
    return _VERSION_64 if size >= FULL_32 else _VERSION


def _end(offset: int, size: int, count: int) -> bytes:
    """The end of an archive, in both forms."""
    long = END_64.pack(END_64_START, END_64.size - 12, _VERSION_64, _VERSION_64, 0, 0, count, count, size, offset)
    locator = LOCATOR.pack(LOCATOR_START, 0, offset + size, 1)
    shown = min(count, FULL_16)
    end = END.pack(END_START, 0, 0, shown, shown, min(size, FULL_32), min(offset, FULL_32), 0)
    return long + locator + end

"""The protobuf wire format: walked in a file without reading contents, and built field by field.

protobuf's own classes need a whole message in memory, of less than 2 GiB; a checkpoint file is one message.
A *key* is a field's number and wire type, as encoded before each field.
"""

from collections.abc import Iterator

from reshard.core.errors import CheckpointError
from reshard.core.files.lookahead import Lookahead
from reshard.core.storage.reading import SourceFile, read_bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_MAX_VALUE = (1 << 64) - 1
_MAX_KEY = (1 << 32) - 1

_ONE_BYTE = [bytes([value]) for value in range(256)]

_SMALL_READ_BYTES = 4 << 10
# About as much as is read in the time of another call.
_READ_AHEAD_BYTES = 64 << 10


def varint_key(number: int) -> int:
    """Return the key of field `number` with an integer."""
    return number << 3 | _VARINT


def bytes_key(number: int) -> int:
    """Return the key of field `number` with bytes, text, a message or packed numbers."""
    return number << 3 | _BYTES


def build_varint(value: int) -> bytes:
    """Encode `value` >= 0 in groups of seven bits, lowest first; a set top bit means that more follow."""
    if value < 0x80:
        return _ONE_BYTE[value]
    return _ONE_BYTE[value & 0x7F | 0x80] + build_varint(value >> 7)


def build_head(key: int, length: int) -> bytes:
    """Return the bytes before the `length` bytes of a field of bytes."""
    return build_varint(key) + build_varint(length)


class WireReader:
    """A forward walk over the fields of a file's bytes from 0 to `stop`; `offset` is the current position.

    Reads ahead a little where fields are close together, and skips contents that are not requested. With `lookahead`,
    that does the reading. Never allocates memory for an unverified length: each is first compared with the bytes left.
    """

    def __init__(self, file: SourceFile, stop: int, lookahead: Lookahead | None = None) -> None:
        self.offset = 0
        self._file = file
        self._stop = stop
        self._lookahead = lookahead
        self._window = b""
        self._window_offset = 0

    def error(self, offset: int, what: str) -> CheckpointError:
        """Return an error that names a place in the file."""
        return CheckpointError(f"{self._file.location}: at byte {offset}: {what}")

    def fields(self, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the fields of the message that ends at `stop`: key, and an integer's value or else the field's length.

        While a field of bytes is current, `offset` is its beginning; the caller may read it or not. Skips fixed-width
        fields, which no checkpoint message has.
        """
        while (start := self.offset) < stop:
            key = self.varint()
            if not 8 <= key <= _MAX_KEY:
                raise self.error(start, f"field key {key}, which protobuf does not know: not a checkpoint, or damaged")
            wire_type = key & 7
            if wire_type == _VARINT:
                value = self.varint()
                if self.offset > stop:
                    raise self._overrun(start, self.offset - start, stop)
                yield key, value
                continue
            if wire_type == _BYTES:
                length = self.varint()
            elif wire_type in _FIXED_BYTES:
                length = _FIXED_BYTES[wire_type]
            else:
                raise self.error(start, f"a field of wire type {wire_type}: not a checkpoint, or damaged")
            end = self.offset + length
            if end > stop:
                raise self._overrun(start, length, stop)
            if wire_type == _BYTES:
                yield key, length
            self.offset = end

    def varint(self) -> int:
        """Read the integer at `offset`, as an unsigned one of 64 bits."""
        position, window = self.offset - self._window_offset, self._window
        if position + 1 < len(window):
            byte, second = window[position], window[position + 1]
            if byte < 0x80:
                self.offset += 1
                return byte
            if second < 0x80:
                self.offset += 2
                return byte & 0x7F | second << 7
        return self._long_varint(position)

    def peek(self, length: int) -> bytes:
        """Return the next `length` bytes, fewer at the end, without advancing."""
        position = self.offset - self._window_offset
        if position + length > len(self._window):
            position = self._load(length)
        return self._window[position : position + length]

    def take(self, length: int) -> bytes:
        """Read the `length` bytes at `offset`, which the caller has checked to be few and within the file."""
        position = self.offset - self._window_offset
        if position + length > len(self._window):
            position = self._load(length)
        self.offset += length
        return self._window[position : position + length]

    def contents(self, offset: int, length: int) -> bytes:
        """Read bytes of a field that was passed, without advancing."""
        if self._lookahead is not None:
            return self._lookahead.contents(offset, length)
        return read_bytes(self._file, offset, length)

    def _long_varint(self, position: int) -> int:
        if position + _MAX_VARINT_BYTES > len(self._window):
            position = self._load(_MAX_VARINT_BYTES)
        value = shift = 0
        for byte in self._window[position : position + _MAX_VARINT_BYTES]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self.offset += shift // 7
                return value & _MAX_VALUE
        if shift < 7 * _MAX_VARINT_BYTES:
            raise self.error(self.offset, "the file ends inside a number: truncated")
        raise self.error(self.offset, f"a number of more than {_MAX_VARINT_BYTES} bytes: not a checkpoint, or damaged")

    def _load(self, length: int) -> int:
        if self._lookahead is not None:
            self._window_offset, self._window = self._lookahead.window(self.offset, length)
            return self.offset - self._window_offset
        # a head far behind the last window follows large contents, where reading ahead finds nothing
        near = self.offset - self._window_offset - len(self._window) < _READ_AHEAD_BYTES // 4
        length = min(max(length, _READ_AHEAD_BYTES if near else _SMALL_READ_BYTES), self._stop - self.offset)
        self._window = read_bytes(self._file, self.offset, length) if length else b""
        self._window_offset = self.offset
        return 0

    def _overrun(self, offset: int, length: int, stop: int) -> CheckpointError:
        if stop == self._stop:
            return self.error(offset, f"the file ends in the middle of a {length:,}-byte field: truncated or damaged")
        return self.error(offset, f"a {length:,}-byte field runs past byte {stop:,}, the end of its message: damaged")

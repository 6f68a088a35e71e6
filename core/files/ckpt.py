"""Reads `.ckpt` files: a protobuf `Checkpoint` message, which is the concatenation of its `value` entries.

    Checkpoint      1: value, repeated Value
    Value           1: tag, the parameter's name; then either 2: tensor, a TensorProto, or 3: maptensor, opaque here
    TensorProto     1: dims, repeated int64; 2: tensor_type, text; 3: tensor_content, raw little-endian in C order

A *piece* is one Value. Consecutive pieces of one name form a parameter, their contents concatenated; a name that occurs
again later replaces the earlier one. The file may end in `crc_num` and a CRC-32 of all bytes before it.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from msgspec import Struct, field

from reshard.core.errors import CheckpointError
from reshard.core.files.lookahead import Lookahead
from reshard.core.files.model import MAX_TEXT_BYTES, CheckpointFormat, FileIndex, TensorEntry, text_entry
from reshard.core.files.wire import WireReader, build_head, bytes_key, varint_key
from reshard.core.runtime.metadata import PARAMETER_BYTES, Parse, parsing
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType, dtype_from_ckpt
from reshard.core.tensor.slices import TOO_LARGE, Extent, Shape, is_countable

VALUE = bytes_key(1)
VALUE_TAG, VALUE_TENSOR, VALUE_MAP_TENSOR = bytes_key(1), bytes_key(2), bytes_key(3)
TENSOR_DIM, _TENSOR_PACKED_DIMS = varint_key(1), bytes_key(1)
TENSOR_TYPE, TENSOR_CONTENT = bytes_key(2), bytes_key(3)

CRC_MARK = b"crc_num"
CRC_TRAILER_BYTES = len(CRC_MARK) + 10

_NAME_START = 2
"""A short name is preceded by one byte of key and one of length."""
_MAX_HEAD_BYTES = 11
"""A key of one byte and a length of up to ten."""
_HEAD_BYTES = 256
"""Usually covers an entry's name and everything else before its contents."""

MAX_NAME_BYTES = 64 << 10
_PIECES_PER_RESERVATION = 1024
_MAX_AXES = 64
TEXT_CODE = "utf-32-le"  # numpy's, which allows lone surrogates


class _TensorFields(Struct):
    dims: list[int] = field(default_factory=list)
    type_name: str | None = None
    content: Extent | None = None


class Head(Record):
    """The bytes before a piece's contents, from the end of the piece before, and their offset in the file."""

    offset: int
    data: bytes


class _Piece(Record):
    """One Value: `offset` is its beginning, `extent` its contents."""

    offset: int
    name: str
    dtype: DType
    dims: Shape
    extent: Extent


_Shapes = dict[tuple[Shape, int, str], Shape]
"""Dims, length and dtype of plain tensors in one piece that were found to agree -> the shape."""


def read_index(file: SourceFile, heads: list[Head] | None = None) -> FileIndex:
    """Index a file from its entries' headers alone; contents are skipped, except those of texts.

    A tensor without dims, or with dims [0] and the content of one element (older files), is a scalar. Per piece, the
    end of the piece before it and the bytes that lead to its contents are added to `heads`. Long ones are cut short,
    and the entry's length is encoded as briefly as possible: if the file encodes it otherwise, or has other bytes in
    between, the added bytes do not reach from there to the contents.
    """
    if file.size_bytes == 0:
        raise CheckpointError(f"{file.location}: the file is empty")
    with_crc = has_crc(file)
    stop = file.size_bytes - CRC_TRAILER_BYTES if with_crc else file.size_bytes
    lookahead = None if file.location.store.is_near else Lookahead(file, stop)
    reader = WireReader(file, stop, lookahead)
    entries: dict[str, TensorEntry] = {}
    with parsing(file.location) as parse:
        pieces = _reserving(parse, _pieces(reader, stop, lookahead, heads))
        shapes: _Shapes = {}
        for of_one in _by_name(pieces):
            entry = _joined(reader, of_one, shapes)
            if entry.text is not None:
                parse.take(entry.size_bytes)
            entries[entry.name] = entry
    if not entries:
        raise CheckpointError(f"{file.location}: holds no parameters: not a checkpoint")
    return FileIndex(CheckpointFormat.CKPT, file.size_bytes, entries, with_crc)


def stored_crc(file: SourceFile) -> int:
    """Read the CRC-32 that a file ends in."""
    return int.from_bytes(read_bytes(file, file.size_bytes - CRC_TRAILER_BYTES, CRC_TRAILER_BYTES)[len(CRC_MARK) :])


def _by_name(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Group consecutive pieces of one name, in half the time that `groupby` takes for lists of one."""
    together: list[_Piece] = []
    for piece in pieces:
        if together and piece.name != together[0].name:
            yield together
            together = []
        together.append(piece)
    if together:
        yield together


def first_name(start: bytes) -> bytes:
    """Return the first parameter's name from a file's first bytes; empty if they are not those of a `.ckpt` file."""
    after_head = next((place + 1 for place in range(1, len(start)) if start[place] < 0x80), 0)
    value = start[after_head:]
    return value[_NAME_START : _name_stop(value)] if start[:1] == bytes([VALUE]) else b""


def _reserving(parse: Parse, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """Yield the pieces, reserving memory for some at a time: their number is known only at the end."""
    names_bytes = 0
    for number, piece in enumerate(pieces):
        if number % _PIECES_PER_RESERVATION == 0:
            parse.take(_PIECES_PER_RESERVATION * PARAMETER_BYTES + names_bytes)
            names_bytes = 0
        names_bytes += len(piece.name)
        yield piece


def has_crc(file: SourceFile) -> bool:
    """True if a file ends in a CRC-32."""
    offset = file.size_bytes - CRC_TRAILER_BYTES
    return offset >= 0 and read_bytes(file, offset, len(CRC_MARK)) == CRC_MARK


def _pieces(reader: WireReader, stop: int, lookahead: Lookahead | None, heads: list[Head] | None) -> Iterator[_Piece]:
    known = _KnownHeads()
    value_head = lru_cache(partial(build_head, VALUE))  # many entries are of one length
    end = 0  # of the entry before
    for key, length in reader.fields(stop):
        if key == VALUE:
            start, data = reader.offset, reader.peek(_HEAD_BYTES)
            piece = known.match(start, length, data)
            if piece is None:
                piece = _read_value(reader, length)
                known.learn(piece, length, data)
            if heads is not None:
                heads.append(Head(end, value_head(length) + data[: piece.extent.offset - start]))
            end = start + length
            if lookahead is not None:
                lookahead.passed(piece.extent.length, end)
            yield piece


class _KnownHeads:
    """Recognizes entries that differ from an earlier one in their names only, as most parameters' do.

    The bytes between name and contents are then the same, and need no parsing. For thousands of ranks with thousands of
    parameters, parsing is what takes the time.
    """

    def __init__(self) -> None:
        self._pieces: dict[bytes, _Piece] = {}
        self._lengths: set[int] = set()

    def match(self, start: int, length: int, data: bytes) -> _Piece | None:
        """Return the entry of `length` bytes at `start` if `data`, its beginning, equals a known one's but the name."""
        after_name = _name_stop(data)
        if not after_name:
            return None
        for head_bytes in self._lengths:
            known = self._pieces.get(data[after_name : after_name + head_bytes])
            if known is not None and after_name + head_bytes + known.extent.length == length:
                name = data[_NAME_START:after_name]
                extent = Extent(start + after_name + head_bytes, known.extent.length)
                return _Piece(start, name.decode(), known.dtype, known.dims, extent) if name.isascii() else None
        return None

    def learn(self, piece: _Piece, length: int, data: bytes) -> None:
        """Remember a parsed entry, if it consists of a name and a tensor whose contents come last.

        Any other entry may repeat its name, and the last one counts.
        """
        after_name, stop = _name_stop(data), piece.extent.offset - piece.offset
        only_tensor = after_name and data.startswith(_heads_of_length(VALUE_TENSOR, length - after_name), after_name)
        if only_tensor and stop <= len(data) and stop + piece.extent.length == length:
            head = data[after_name:stop]
            self._pieces[head] = piece
            self._lengths.add(len(head))


def _heads_of_length(key: int, field_bytes: int) -> tuple[bytes, ...]:
    """All possible heads of a field that takes `field_bytes` in all."""
    heads = (build_head(key, field_bytes - size) for size in range(2, min(_MAX_HEAD_BYTES, field_bytes) + 1))
    return tuple(head for size, head in enumerate(heads, 2) if len(head) == size)


def _name_stop(data: bytes) -> int:
    """Return the end of a short name that begins an entry; 0 if there is none."""
    return _NAME_START + data[1] if len(data) > 1 and data[0] == VALUE_TAG and data[1] < 0x80 else 0


def _read_value(reader: WireReader, length: int) -> _Piece:
    start = reader.offset
    name: str | None = None
    tensor: _TensorFields | None = None
    map_tensor: Extent | None = None
    for key, value in reader.fields(start + length):
        if key == VALUE_TAG:
            name = _read_name(reader, value, "a parameter's name")
        elif key == VALUE_TENSOR:
            # protobuf's rule: of tensor and maptensor the later one counts; repeated tensors are merged
            tensor, map_tensor = tensor or _TensorFields(), None
            _read_tensor(reader, value, tensor)
        elif key == VALUE_MAP_TENSOR:
            if map_tensor is not None:
                raise reader.error(reader.offset, f"parameter {name!r} has two map tensors in one entry: damaged")
            tensor, map_tensor = None, Extent(reader.offset, value)
    if name is None:
        raise reader.error(start, "an entry without a parameter's name: not a checkpoint, or damaged")
    if map_tensor is not None:
        return _Piece(start, name, MAP_TENSOR, (), map_tensor)
    if tensor is None:
        raise reader.error(start, f"parameter {name!r} has neither a tensor nor a map tensor: damaged")
    return _tensor_piece(reader, start, name, tensor)


def _read_tensor(reader: WireReader, length: int, tensor: _TensorFields) -> None:
    for key, value in reader.fields(reader.offset + length):
        if key == TENSOR_DIM:
            tensor.dims.append(value)
        elif key == TENSOR_TYPE:
            tensor.type_name = _read_name(reader, value, "a tensor_type")
        elif key == TENSOR_CONTENT:
            tensor.content = Extent(reader.offset, value)
        elif key == _TENSOR_PACKED_DIMS:
            tensor.dims += _packed(reader, reader.offset + value)
        if len(tensor.dims) > _MAX_AXES:
            raise reader.error(reader.offset, f"a tensor of more than {_MAX_AXES} dims: damaged")


def _packed(reader: WireReader, stop: int) -> Iterator[int]:
    for _ in range(_MAX_AXES + 1):
        if reader.offset >= stop:
            return
        yield reader.varint()
        if reader.offset > stop:
            raise reader.error(stop, "packed dims end inside a number: damaged")


def _read_name(reader: WireReader, length: int, what: str) -> str:
    offset = reader.offset
    if length > MAX_NAME_BYTES:
        raise reader.error(offset, f"{what} of {length} bytes: not a checkpoint, or damaged")
    try:
        return reader.take(length).decode()
    except UnicodeDecodeError:
        raise reader.error(offset, f"{what} is not UTF-8: not a checkpoint, or damaged") from None


def _tensor_piece(reader: WireReader, start: int, name: str, tensor: _TensorFields) -> _Piece:
    if tensor.type_name is None:
        raise reader.error(start, f"parameter {name!r} has no tensor_type: not a checkpoint, or damaged")
    if tensor.content is None:
        raise reader.error(start, f"parameter {name!r} has no tensor_content: damaged")
    if max(tensor.dims, default=0) >> 63:
        dims = [dim - (dim >> 63 << 64) for dim in tensor.dims]
        raise reader.error(start, f"parameter {name!r} has negative dims {dims}: damaged")
    try:
        # the width of a foreign dtype follows from all pieces together
        dtype = dtype_from_ckpt(tensor.type_name, 0, 0)
        if dtype is MAP_TENSOR:
            raise CheckpointError(f"a plain tensor cannot have the dtype {dtype}")
    except CheckpointError as error:
        raise reader.error(start, f"parameter {name!r}: {error}") from None
    return _Piece(start, name, dtype, tuple(tensor.dims), tensor.content)


def _joined(reader: WireReader, pieces: list[_Piece], shapes: _Shapes) -> TensorEntry:
    first = pieces[0]
    name, dtype, dims = first.name, first.dtype, first.dims
    alike = dims, first.extent.length, dtype.name
    if len(pieces) == 1 and (known := shapes.get(alike)) is not None:
        return TensorEntry(name, dtype, known, (first.extent,))
    for piece in pieces:
        if (piece.dtype, piece.dims) != (dtype, dims):
            raise reader.error(
                piece.offset,
                f"a piece of parameter {name!r} is {piece.dtype} {list(piece.dims)}, "
                f"the one before it {dtype} {list(dims)}: damaged",
            )
    extents = tuple(piece.extent for piece in pieces)
    length = sum(extent.length for extent in extents)
    if dtype is TEXT:
        return text_entry(name, _read_text(reader, name, extents))
    if dtype is MAP_TENSOR:
        return TensorEntry(name, dtype, (length,), extents)
    if dtype.is_foreign:
        return _foreign_entry(reader, first, extents)
    shape = () if dims == (0,) and length == dtype.itemsize else dims
    entry = TensorEntry(name, dtype, shape, extents)
    if entry.size_bytes != length:
        raise reader.error(
            first.offset,
            f"parameter {name!r} has {length} bytes, but {dtype} {list(dims)} takes {entry.size_bytes}: damaged",
        )
    if not is_countable(shape, dtype.itemsize):
        raise reader.error(
            first.offset, f"parameter {name!r}: its dims {list(dims)} are {TOO_LARGE} as {dtype}: damaged"
        )
    if len(pieces) == 1:
        shapes[alike] = shape
    return entry


def _foreign_entry(reader: WireReader, first: _Piece, extents: tuple[Extent, ...]) -> TensorEntry:
    length = sum(extent.length for extent in extents)
    shape = () if first.dims == (0,) and length else first.dims
    try:
        dtype = dtype_from_ckpt(first.dtype.name, math.prod(shape), length)
    except CheckpointError as error:
        raise reader.error(first.offset, f"parameter {first.name!r}, {list(first.dims)}: {error}") from None
    return TensorEntry(first.name, dtype, shape, extents)


def _read_text(reader: WireReader, name: str, extents: Sequence[Extent]) -> str:
    offset, length = extents[0].offset, sum(extent.length for extent in extents)
    if length > MAX_TEXT_BYTES:
        raise reader.error(offset, f"text entry {name!r} has {length} bytes, more than {MAX_TEXT_BYTES} (1 MiB)")
    encoded = b"".join(reader.contents(extent.offset, extent.length) for extent in extents)
    try:
        return encoded.decode(TEXT_CODE, "surrogatepass").rstrip("\0")
    except UnicodeDecodeError:
        raise reader.error(offset, f"text entry {name!r} is not UTF-32: damaged") from None

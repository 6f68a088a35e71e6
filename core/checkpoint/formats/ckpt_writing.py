"""Lays out `.ckpt` files to be written: the bytes around the contents, and the places of the contents."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from reshard.core.checkpoint.formats.ckpt import (
    CRC_MARK,
    CRC_TRAILER_BYTES,
    MAX_NAME_BYTES,
    TENSOR_CONTENT,
    TENSOR_DIM,
    TENSOR_TYPE,
    TEXT_CODE,
    VALUE,
    VALUE_MAP_TENSOR,
    VALUE_TAG,
    VALUE_TENSOR,
)
from reshard.core.checkpoint.formats.wire import build_head, build_varint
from reshard.core.checkpoint.model import Content, FilePlan, OutputEntry
from reshard.core.errors import CheckpointError
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.tensor.slices import Shape

# MindSpore's limit for one entry; a single protobuf field could not hold 2 GiB.
MAX_PIECE_BYTES = 512 << 20


def plan_file(entries: Sequence[OutputEntry], *, with_crc: bool = False) -> FilePlan:
    """Lay out the file with `entries` in their order, as MindSpore would write it; a CRC follows all segments.

    The file records neither removed redundancy nor a framework. MindSpore reads a tensor of shape (0,) as a scalar,
    since dims [0] is its way to write one; it reads other empty shapes as they are.
    """
    if not entries:
        raise CheckpointError("a .ckpt file has to hold at least one parameter")
    segments: list[bytes | Content] = []
    literal = bytearray()
    for entry in entries:
        if entry.dtype.is_foreign:
            raise CheckpointError(f"parameter {entry.name!r} is a {entry.dtype}, which .ckpt cannot hold")
        for head, content in plan_pieces(entry):
            literal += head
            if content.stop > content.start:
                segments += [bytes(literal), content]
                literal.clear()
    if literal:
        segments.append(bytes(literal))
    size_bytes = sum(len(part) if isinstance(part, bytes) else part.stop - part.start for part in segments)
    if with_crc:
        return FilePlan(tuple(segments), size_bytes + CRC_TRAILER_BYTES, crc_offset=size_bytes)
    return FilePlan(tuple(segments), size_bytes)


def crc_trailer(crc: int) -> bytes:
    """Return the trailer of a file that carries a CRC-32 of all bytes before it."""
    return CRC_MARK + crc.to_bytes(CRC_TRAILER_BYTES - len(CRC_MARK))


def plan_pieces(entry: OutputEntry) -> Iterator[tuple[bytes, Content]]:
    """Yield, per Value, the bytes before its contents and the contents; texts are part of the former."""
    name = entry.name
    tag = name.encode()
    if len(tag) > MAX_NAME_BYTES:
        raise CheckpointError(f"parameter '{name[:40]}…': a name of {len(tag)} bytes, more than {MAX_NAME_BYTES}")
    tag = build_head(VALUE_TAG, len(tag)) + tag
    if entry.text is not None:
        encoded = (entry.text or "\0").encode(TEXT_CODE, "surrogatepass")
        head = _tensor_head(tag, _tensor_fields(TEXT, (0,)), len(encoded))
        yield head + encoded, Content(name, 0, 0)
        return
    fields = _tensor_fields(entry.dtype, entry.shape)
    for start, stop in _piece_ranges(entry):
        if entry.dtype is MAP_TENSOR:
            inner = tag + build_head(VALUE_MAP_TENSOR, stop - start)
            head = build_head(VALUE, len(inner) + stop - start) + inner
        else:
            head = _tensor_head(tag, fields, stop - start)
        yield head, Content(name, start, stop)


def _piece_ranges(entry: OutputEntry) -> Iterator[tuple[int, int]]:
    if entry.dtype is MAP_TENSOR:
        if not entry.piece_bytes or sum(entry.piece_bytes) != entry.size_bytes:
            raise ValueError(
                f"map tensor {entry.name!r}: pieces {entry.piece_bytes} do not make {entry.size_bytes} bytes"
            )
        start = 0
        for length in entry.piece_bytes:
            yield start, start + length
            start += length
        return
    size_bytes = entry.size_bytes
    for start in range(0, max(size_bytes, 1), MAX_PIECE_BYTES):
        yield start, min(start + MAX_PIECE_BYTES, size_bytes)


@lru_cache(maxsize=1024)
def _tensor_fields(dtype: DType, dims: Shape) -> bytes:
    type_name = dtype.name.encode()
    dim_key = build_varint(TENSOR_DIM)
    return b"".join(dim_key + build_varint(dim) for dim in dims) + build_head(TENSOR_TYPE, len(type_name)) + type_name


def _tensor_head(tag: bytes, fields: bytes, content_bytes: int) -> bytes:
    """Return a Value's bytes before its tensor's contents, built from the inside out since outer lengths come first."""
    tensor = fields + build_head(TENSOR_CONTENT, content_bytes)
    value = tag + build_head(VALUE_TENSOR, len(tensor) + content_bytes) + tensor
    return build_head(VALUE, len(value) + content_bytes) + value

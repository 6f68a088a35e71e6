"""Lays out `.ckpt` files to be written: the bytes around the contents, and the places of the contents."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from reshard.core.errors import CheckpointError
from reshard.core.files.ckpt import (
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
    Head,
)
from reshard.core.files.model import Content, FilePlan, OutputEntry, TensorEntry, output_entry
from reshard.core.files.wire import build_head, build_varint
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
    size_bytes = 0
    for entry in entries:
        if entry.dtype.is_foreign:
            raise CheckpointError(f"parameter {entry.name!r} is a {entry.dtype}, which .ckpt cannot hold")
        for head, content in plan_pieces(entry):
            literal += head
            size_bytes += len(head) + content.stop - content.start
            if content.stop > content.start:
                segments += [bytes(literal), content]
                literal.clear()
    if literal:
        segments.append(bytes(literal))
    if with_crc:
        return FilePlan(tuple(segments), size_bytes + CRC_TRAILER_BYTES, crc_offset=size_bytes)
    return FilePlan(tuple(segments), size_bytes)


def crc_trailer(crc: int) -> bytes:
    """Return the trailer of a file that carries a CRC-32 of all bytes before it."""
    return CRC_MARK + crc.to_bytes(CRC_TRAILER_BYTES - len(CRC_MARK))


def plan_pieces(entry: OutputEntry) -> list[tuple[bytes, Content]]:
    """Return, per Value, the bytes before its contents and the contents; texts are part of the former."""
    name = entry.name
    tag = name.encode()
    if len(tag) > MAX_NAME_BYTES:
        raise CheckpointError(f"parameter '{name[:40]}…': a name of {len(tag)} bytes, more than {MAX_NAME_BYTES}")
    if entry.text is not None:
        encoded = (entry.text or "\0").encode(TEXT_CODE, "surrogatepass")
        before, after = _around_name(len(tag), TEXT, (0,), len(encoded))
        return [(before + tag + after + encoded, Content(name, 0, 0))]
    pieces = []
    for start, stop in _piece_ranges(entry):
        before, after = _around_name(len(tag), entry.dtype, entry.shape, stop - start)
        pieces.append((before + tag + after, Content(name, start, stop)))
    return pieces


def expected_heads(entry: TensorEntry) -> tuple[Head, ...]:
    """Return the bytes before each extent of a parameter: name, dtype, shape and the piece's length."""
    if not entry.extents:
        return ()
    heads = [head for head, _ in plan_pieces(output_entry(entry))]
    return tuple(Head(extent.offset - len(head), head) for extent, head in zip(entry.extents, heads, strict=True))


def _piece_ranges(entry: OutputEntry) -> Sequence[tuple[int, int]]:
    if entry.dtype is MAP_TENSOR:
        if not entry.piece_bytes or sum(entry.piece_bytes) != entry.size_bytes:
            raise ValueError(
                f"map tensor {entry.name!r}: pieces {entry.piece_bytes} do not make {entry.size_bytes} bytes"
            )
        return list(pairwise(accumulate(entry.piece_bytes, initial=0)))
    size_bytes = entry.size_bytes
    if size_bytes <= MAX_PIECE_BYTES:
        return ((0, size_bytes),)
    return [(start, min(start + MAX_PIECE_BYTES, size_bytes)) for start in range(0, size_bytes, MAX_PIECE_BYTES)]


# parameters of one shape, in thousands, differ in their names only
@lru_cache(maxsize=1024)
def _around_name(name_bytes: int, dtype: DType, dims: Shape, content_bytes: int) -> tuple[bytes, bytes]:
    """Return a Value's bytes before its name, and those from there to its contents.

    They are built from the inside out, since outer lengths come first.
    """
    if dtype is MAP_TENSOR:
        after = build_head(VALUE_MAP_TENSOR, content_bytes)
    else:
        tensor = _tensor_fields(dtype, dims) + build_head(TENSOR_CONTENT, content_bytes)
        after = build_head(VALUE_TENSOR, len(tensor) + content_bytes) + tensor
    tag_head = build_head(VALUE_TAG, name_bytes)
    return build_head(VALUE, len(tag_head) + name_bytes + len(after) + content_bytes) + tag_head, after


def _tensor_fields(dtype: DType, dims: Shape) -> bytes:
    type_name = dtype.name.encode()
    dim_key = build_varint(TENSOR_DIM)
    return b"".join(dim_key + build_varint(dim) for dim in dims) + build_head(TENSOR_TYPE, len(type_name)) + type_name

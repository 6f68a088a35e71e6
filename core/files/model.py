"""The contents of a checkpoint file, independent of its format: names, dtypes, shapes and where the bytes are.

An *index* is read from a file's headers alone. A *file plan* is the reverse: all of a file to be written except the
contents, known before the first byte is written because sizes follow from dtypes and shapes.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

from msgspec import field

from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.tensor.slices import Extent, Shape

MAX_TEXT_BYTES = 1 << 20
"""Limit of one text entry, as UTF-32: an index holds texts whole, so they must be small."""


MINDSPORE, PYTORCH = "ms", "pt"
"""Framework that a `.safetensors` file is marked for: Hugging Face's loaders refuse `ms`, MindSpore's accept both."""


class CheckpointFormat(StrEnum):
    """Formats of checkpoint files; the value is the file name's extension."""

    CKPT = "ckpt"
    SAFETENSORS = "safetensors"
    DISTCP = "distcp"
    PT = "pt"

    @property
    def has_crc_in_header(self) -> bool:
        """True if a file's CRC, if it has one, is in the header, before the contents that it covers."""
        return self is CheckpointFormat.SAFETENSORS


SELF_CONTAINED = (CheckpointFormat.CKPT, CheckpointFormat.SAFETENSORS)
"""Formats of files that name their parameters; a `.distcp` file only holds their bytes."""


class TensorEntry(Record):
    """One parameter of a checkpoint file.

    Attributes:
        shape: number of elements per axis; () is a scalar. Texts and map tensors are opaque bytes: (length,).
        extents: where its bytes are, in order; several where a `.ckpt` splits a large parameter. For a map tensor one
            serialized MapTensorProto each, which have to stay apart.
        text: value of a text entry, which has no extents; None for tensors.
    """

    name: str
    dtype: DType
    shape: Shape
    extents: tuple[Extent, ...]
    text: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of its contents."""
        if not self.dtype.itemsize:
            return sum(extent.length for extent in self.extents)
        return math.prod(self.shape) * self.dtype.itemsize

    def extents_of(self, offset: int, length: int) -> tuple[Extent, ...]:
        """Return where bytes `offset` to `offset + length` of its contents are in the file."""
        first = self.extents[0]
        if offset + length <= first.length:
            return (Extent(first.offset + offset, length),)
        extents = []
        position = 0
        for extent in self.extents:
            start = max(offset, position)
            stop = min(offset + length, position + extent.length)
            if start < stop:
                extents.append(Extent(extent.offset + start - position, stop - start))
            position += extent.length
        return tuple(extents)


class StridedContent(Record):
    """Where the elements of a tensor are that a file does not hold in C order, without gaps.

    Attributes:
        offset: byte of the first element.
        strides: bytes between neighbors along each axis, not negative.
    """

    offset: int
    strides: Shape


def text_entry(name: str, text: str) -> TensorEntry:
    """Return a text's entry, the same for every format: its length is that of its UTF-32 code units.

    As in numpy an empty text takes one unit, a NUL.
    """
    return TensorEntry(name, TEXT, (4 * max(1, len(text)),), (), text)


class StoredCrc(Record):
    """The CRC-32 of a tensor's storage in a file: of bytes that are all of the tensor's, perhaps in another order."""

    extent: Extent
    crc: int


class FileIndex(Record, dict=True):
    """Contents of a checkpoint file.

    Attributes:
        entries: parameter name -> entry, in the file's order.
        redundancy_removed: the file is marked: only one rank saved each slice that ranks share.
        strided: entries that the file does not hold in C order. Their extents are past the file's end, where
            `reshard.core.checkpoint.dense_view` shows their bytes in C order.
        crcs: CRCs of single tensors that are still to be compared with their bytes, when these are read. In memory
            only: a plan that was restored has none.
    """

    format: CheckpointFormat
    size_bytes: int
    entries: Mapping[str, TensorEntry]
    has_crc: bool = False
    redundancy_removed: bool = False
    strided: Mapping[str, StridedContent] = field(default_factory=dict)
    crcs: Mapping[str, StoredCrc] = field(default_factory=dict)

    @cached_property
    def content_bytes(self) -> int:
        """Bytes of all contents."""
        return sum(entry.size_bytes for entry in self.entries.values())


class OutputEntry(Record):
    """One parameter of a file to be written.

    `piece_bytes` are the lengths of a map tensor's messages, otherwise empty; `literal` its contents, if known before
    anything is read.
    """

    name: str
    dtype: DType
    shape: Shape
    text: str | None = None
    piece_bytes: tuple[int, ...] = ()
    literal: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Bytes of its contents in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def output_entry(entry: TensorEntry) -> OutputEntry:
    """Return a file's entry as one to be written to another file."""
    messages = tuple(extent.length for extent in entry.extents) if entry.dtype is MAP_TENSOR else ()
    return OutputEntry(entry.name, entry.dtype, entry.shape, entry.text, messages)


class Content(Record):
    """A place in a file to be written, for bytes `start` to `stop` of a parameter's contents."""

    name: str
    start: int
    stop: int


class SumPlace(Record):
    """The place in a file, behind a parameter's contents, of their CRC-32: 4 bytes, little-endian."""

    offset: int
    name: str


class FilePlan(Record):
    """A file to be written: consecutive literal bytes and contents, without gaps.

    Every parameter's contents appear whole and in order. `size_bytes` is the file's size. `crc_offset` is the place of
    a CRC; None without CRC. `sum_places` are those of single parameters' CRCs, in order. Literals have zeros there.
    """

    segments: tuple[bytes | Content, ...]
    size_bytes: int
    crc_offset: int | None = None
    sum_places: tuple[SumPlace, ...] = ()

    @property
    def heads(self) -> bytes:
        """The bytes around the contents."""
        return b"".join(segment for segment in self.segments if isinstance(segment, bytes))

"""What a checkpoint file holds, whatever its format: names, dtypes, shapes and where the bytes are.

An *index* is read from a file's headers alone. A *file plan* is the reverse: everything of a file to be written except
the contents, known before the first byte is written because sizes follow from dtypes and shapes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from core.dtypes import DType
from core.slices import Shape


class CheckpointFormat(StrEnum):
    """The two kinds of checkpoint files; the value is the file name's extension."""

    CKPT = "ckpt"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True)
class Extent:
    """Contiguous bytes of a file: absolute `offset` and `length`, in bytes."""

    offset: int
    length: int


@dataclass(frozen=True)
class TensorEntry:
    """One parameter of a checkpoint file.

    Attributes:
        name: the parameter's name.
        dtype: element type.
        shape: number of elements per axis; () is a scalar. Text and map tensors are opaque bytes: (length,).
        extents: where its bytes are, in order; several where a `.ckpt` splits a large parameter. For a map tensor one
            serialized MapTensorProto each, which have to stay apart.
        text: the value of a text entry, which has no extents; None for tensors.
    """

    name: str
    dtype: DType
    shape: Shape
    extents: tuple[Extent, ...]
    text: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of its contents."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class FileIndex:
    """What a checkpoint file holds.

    Attributes:
        format: kind of file.
        size_bytes: size of the file.
        entries: parameter name -> entry, in the file's order.
        has_crc: whether the file carries a CRC-32 of its contents.
        redundancy_removed: the file says that slices shared by several ranks were saved by one of them only.
    """

    format: CheckpointFormat
    size_bytes: int
    entries: Mapping[str, TensorEntry]
    has_crc: bool = False
    redundancy_removed: bool = False


@dataclass(frozen=True)
class OutputEntry:
    """One parameter of a file to be written; `piece_bytes` are the lengths of a map tensor's messages, else empty."""

    name: str
    dtype: DType
    shape: Shape
    text: str | None = None
    piece_bytes: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of its contents in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Content:
    """A place in a file to be written where bytes `start` to `stop` of a parameter's contents belong."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class FilePlan:
    """A file to be written: literal bytes and contents, one after another, without gaps.

    Every parameter's contents appear in ascending order and as a whole.
    """

    segments: tuple[bytes | Content, ...]
    size_bytes: int


@dataclass(frozen=True)
class CatalogRecord:
    """One rank's file of a checkpoint.

    Attributes:
        rank: global rank.
        location: URL of the file.
        size_bytes: its size.
        version: changes whenever its content does.
        index: what it holds; ranks whose files hold the same share one object.
        digests: digests of the contents of some parameters, by name.
    """

    rank: int
    location: str
    size_bytes: int
    version: str
    index: FileIndex
    digests: Mapping[str, str]


@dataclass(frozen=True)
class CheckpointCatalog:
    """A whole checkpoint: which file is which rank's, and what is in it, from the headers alone.

    Attributes:
        url: where the checkpoint is.
        format: kind of its files.
        step: the epoch and step that was chosen ("10_5"), None if the file names carry none.
        records: global rank -> its file.
        notes: what was chosen and what was left aside, in sentences.
    """

    url: str
    format: CheckpointFormat
    step: str | None
    records: Mapping[int, CatalogRecord]
    notes: tuple[str, ...] = ()

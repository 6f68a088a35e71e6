"""Fingerprints of the tensors of a checkpoint, from its files and their layout alone.

Each rank's file holds boxes of whole tensors. A box's fingerprint, weighted by where it lies in the whole, is its part
of the tensor's: what the cells of a cut add up to is the fingerprint of the whole, however it is cut. Two copies of one
cell have the same part, or they differ.

    shard_sums(record, shares)     what one file adds, read once, a block at a time
    Cells                          the parts of a stage's ranks: the whole tensor's fingerprint, and copies that differ
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.checkpoint.content_blocks import ElementRange, read_blocks
from reshard.core.checkpoint.encryption.opening import open_checkpoint
from reshard.core.checkpoint.model import TensorEntry
from reshard.core.errors import CatalogError
from reshard.core.runtime.keys import source_key
from reshard.core.storage.file_versions import difference_text
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.fingerprint import MODULUS, box_fingerprint, combined
from reshard.core.tensor.layout import ParameterLayout, ShardGrid, cell_box
from reshard.core.tensor.numpy_types import cast_bits
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import Shape, TensorSlice

BLOCK_BYTES = 4 * 2**20
"""Read and summed at a time: enough for what each block costs besides not to count."""


@dataclass(frozen=True)
class Share:
    """What an entry of a file adds to the fingerprint of a whole tensor.

    Attributes:
        key: whose sum it is added to.
        start: where the entry's shard begins in the whole tensor that it is cut from.
        piece: which box of that tensor counts, and its place and turn in the tensor that is summed; None: all of it,
            where and as it is.
        dtype: the floating-point type that values are cast to before they count; None: as they are.
    """

    key: Hashable
    start: Shape
    piece: Piece | None = None
    dtype: DType | None = None


def shard_sums(
    record: CatalogRecord,
    shares: Mapping[str, Sequence[Share]],
    advance: Callable[[int], None] = lambda _: None,
    ranges: Sequence[ElementRange] | None = None,
) -> dict[Hashable, int]:
    """What a rank's file adds to the fingerprints of whole tensors, by the keys of the shares.

    `shares` are by the names of the file's entries; only these are read, each once, or of them only `ranges`. A key
    of which there is nothing to read has the sum 0. `advance` is told the bytes that were read.

    Raises:
        CatalogError: the file is not the one that was catalogued.
        CheckpointError: it ends too early, or cannot be decrypted.
        StorageError: it cannot be read.
    """
    if ranges is None:
        ranges = [ElementRange.whole(record.index.entries[name]) for name in shares]
    sums: dict[Hashable, int] = {share.key: 0 for range_ in ranges for share in shares[range_.entry.name]}
    file = open_checkpoint(parse_url(record.location), source_key())
    try:
        if file.version != record.version:
            raise CatalogError(
                f"rank_{record.rank}: {record.location} changed since its headers were read "
                f"({difference_text(record.version, file.version)}). Start again when nothing writes to the checkpoint "
                "any more"
            )
        buffer = np.empty(BLOCK_BYTES, np.uint8)
        for entry, box, values in read_blocks(file, record, ranges, buffer):
            for share in shares[entry.name]:
                sums[share.key] = (sums[share.key] + _part(entry, box, values, share)) % MODULUS
            advance(values.nbytes)
    finally:
        file.close()
    return sums


class Cells:
    """What the ranks of a stage have of a tensor's fingerprint: of every cell the contents there are, and who has them.

    What is not told of a rank, it does not hold.
    """

    def __init__(self, layout: ParameterLayout, shape: Shape, first_rank: int) -> None:
        self._cut = layout.shard_grid(len(shape))
        self._shape = shape
        self._first_rank = first_rank
        self._parts = np.zeros(self._cut.device_count, np.uint64)
        self._held = np.zeros(self._cut.device_count, np.bool_)

    @property
    def ranks(self) -> range:
        """The global ranks of the stage."""
        return range(self._first_rank, self._first_rank + self._cut.device_count)

    @property
    def holders(self) -> list[int]:
        """Those of them that hold a box."""
        return [rank for rank in self.ranks if self._held[rank - self._first_rank]]

    def box(self, rank: int) -> TensorSlice:
        """The box of the whole tensor that a rank holds."""
        return cell_box(_bounds(self._cut, self._shape), self._cut.cell_of(rank - self._first_rank))

    def ranks_of(self, box: TensorSlice) -> tuple[int, ...]:
        """The ranks that should hold a box."""
        return tuple(rank for rank in self.ranks if self.box(rank) == box)

    def put(self, rank: int, part: int) -> None:
        """Takes in what a rank has."""
        self._parts[rank - self._first_rank] = part
        self._held[rank - self._first_rank] = True

    def add(self, rank: int, part: int) -> None:
        """Takes in some more of what a rank has."""
        self.put(rank, combined([int(self._parts[rank - self._first_rank]), part]))

    def contents(self) -> Iterator[tuple[TensorSlice, dict[int, list[int]]]]:
        """The box of every cell, and the ranks of each content that it has, the lowest rank's first."""
        for ranks in self._cut.owners.values():
            contents: dict[int, list[int]] = {}
            for rank in ranks:
                if self._held[rank]:
                    contents.setdefault(int(self._parts[rank]), []).append(self._first_rank + rank)
            yield self.box(self._first_rank + ranks[0]), contents

    def fingerprint(self) -> int | None:
        """The whole tensor's, each cell's being that of its lowest rank; None if a cell has no holder."""
        firsts = [next(iter(contents), None) for _, contents in self.contents()]
        parts = [part for part in firsts if part is not None]
        return combined(parts) if len(parts) == len(firsts) else None

    def differing(self) -> Iterator[tuple[TensorSlice, list[list[int]]]]:
        """Boxes of which ranks have different contents, and the ranks of each content."""
        return ((box, list(contents.values())) for box, contents in self.contents() if len(contents) > 1)


@lru_cache(maxsize=1024)
def _bounds(cut: ShardGrid, shape: Shape) -> tuple[Shape, ...]:
    return cut.bounds(shape)


def _part(entry: TensorEntry, box: TensorSlice, values: np.ndarray, share: Share) -> int:
    """What a block, `box` of the entry's shard, adds to the sum of a share."""
    start = tuple(map(sum, zip(box.start, share.start, strict=True)))
    if share.piece is not None:
        placed = _placed(share.piece, start, values)
        if placed is None:
            return 0
        start, values = placed
    if share.dtype is not None and share.dtype is not entry.dtype:
        values = cast_bits(values, entry.dtype, share.dtype)
    return box_fingerprint(values, start)


def _placed(piece: Piece, start: Shape, values: np.ndarray) -> tuple[Shape, np.ndarray] | None:
    """What of a block that begins at `start` lies in a piece, turned as that is, and where it begins; None: nothing."""
    box = TensorSlice(start, tuple(map(sum, zip(start, values.shape, strict=True))))
    common = box.intersect(piece.box)
    if common is None:
        return None
    inside = common.relative_to(piece.box).start
    placed = tuple(base + inside[axis] for base, axis in zip(piece.start, piece.axes, strict=True))
    return placed, values[common.relative_to(box).as_index()].transpose(piece.axes)

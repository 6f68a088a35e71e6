"""Fingerprints of whole tensors, summed over the shards in files.

Each rank's file holds boxes of whole tensors. A box's fingerprint is weighted by its place in the whole tensor, so the
boxes of a shard grid add up to the tensor's fingerprint, whatever the grid. Replicas of a box have equal fingerprints,
or they differ.

    sum_contributions     what one source file contributes; read once, a block at a time
    FileFingerprints      what one target file contributes, while its bytes are read for their digests
    ShardFingerprints     the contributions of a stage's ranks to one tensor: its fingerprint, and differing replicas
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic

import numpy as np
from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.content_blocks import ElementRange, text_bytes
from reshard.core.checkpoint.file_shares import read_file_blocks
from reshard.core.files.model import FileIndex, TensorEntry
from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import cast_bits, increased
from reshard.core.tensor.dtypes import SCALED, DType
from reshard.core.tensor.fingerprint import combined
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.tensor.quantized import MXFP4_GROUP
from reshard.core.tensor.scaling import scaled_values, unpacked_values
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes
from reshard.core.tensor.value_changes import Increase, ValueChanges
from reshard.core.transfer.read_ranges import ValueChange
from reshard.core.verification.box_sums import BoxSums, Key

_ALL_ROWS = 2**63
_WHOLE = range(0)
"""Of factors that are read as a whole."""


class Contribution(Record, Generic[Key]):
    """A contribution of a file's entry to a fingerprint.

    Attributes:
        key: the sum that it is added to.
        start: where the entry's shard begins in its whole tensor.
        piece: the box of that tensor that counts, with its place and transposition in the tensor that is summed; None:
            all of it, as it is.
        dtype: the floating-point type that values are cast to first; None: as they are.
        factors: reads the factors of the piece's values, if these are scaled before that.
        change: makes the piece's values, if an adapter changes them before that.
    """

    key: Key
    start: Shape
    piece: Piece | None = None
    dtype: DType | None = None
    factors: Callable[[range], np.ndarray] | None = None
    change: ValueChange | None = None


def sum_contributions(
    record: CatalogRecord,
    contributions: Mapping[str, Sequence[Contribution[Key]]],
    advance: Callable[[int], None] = lambda _: None,
    ranges: Sequence[ElementRange] | None = None,
) -> dict[Key, int]:
    """Sum the contributions of a rank's file by their keys, reading each entry once.

    Args:
        contributions: by the names of the file's entries; only these are read.
        advance: called with the bytes that were read.
        ranges: the elements of entries to read; None: all of them. A key without any has the sum 0.
    """
    if ranges is None:
        ranges = [ElementRange.whole(record.index.entries[name]) for name in contributions]
    boxes = BoxSums(each.key for range_ in ranges for each in contributions[range_.entry.name])
    near = {name: _Near(those) for name, those in contributions.items()}
    for entry, box, values in read_file_blocks(record, ranges):
        for each in near[entry.name].to(box):
            _add_block(boxes, entry, box, values, each)
        advance(values.nbytes)
    return boxes.sums()


class _Near(Generic[Key]):
    """The contributions of an entry, of which there may be thousands, found by the rows of its blocks."""

    def __init__(self, contributions: Sequence[Contribution[Key]]) -> None:
        self._sorted = sorted(contributions, key=lambda each: self._rows(each)[0])
        rows = [self._rows(each) for each in self._sorted]
        self._starts = [start for start, _ in rows]
        self._longest = max((stop - start for start, stop in rows), default=0)

    def to(self, block: TensorSlice) -> Sequence[Contribution[Key]]:
        """Return all contributions that overlap a block of the entry, and perhaps others."""
        if not block.start:
            return self._sorted
        first = bisect_left(self._starts, block.start[0] - self._longest)
        return self._sorted[first : bisect_left(self._starts, block.stop[0])]

    def _rows(self, each: Contribution[Key]) -> tuple[int, int]:
        """The rows of the entry's shard that count."""
        if each.piece is None or not each.start:
            return 0, _ALL_ROWS
        return each.piece.box.start[0] - each.start[0], each.piece.box.stop[0] - each.start[0]


class FileFingerprints:
    """Contributions of a target file's parameters, whose bytes arrive in order; `starts` are where its shards begin."""

    def __init__(self, index: FileIndex, starts: Mapping[str, Shape]) -> None:
        self._boxes = BoxSums[str](index.entries)
        self._streams = {name: _Stream(entry, starts.get(name), self._boxes) for name, entry in index.entries.items()}

    def add(self, name: str, block: memoryview) -> None:
        """Add the next bytes of a parameter."""
        self._streams[name].add(block)

    def fingerprints(self) -> dict[str, int]:
        """Return the contribution of each parameter, once all bytes were added."""
        return self._boxes.sums()


class _Stream:
    def __init__(self, entry: TensorEntry, start: Shape | None, boxes: BoxSums[str]) -> None:
        self._entry = entry
        self._start = start or (0,) * len(entry.shape)
        self._boxes = boxes
        self._done = 0
        self._split_element = b""
        if entry.text is not None:
            self._add_values(text_bytes(entry.text))

    def add(self, block: memoryview) -> None:
        itemsize = self._entry.dtype.itemsize
        if self._split_element:
            missing = itemsize - len(self._split_element)
            self._split_element += bytes(block[:missing])
            block = block[missing:]
            if len(self._split_element) < itemsize:
                return
            self._add_values(np.frombuffer(self._split_element, f"<u{itemsize}"))
        count = len(block) // itemsize
        self._split_element = bytes(block[count * itemsize :])
        self._add_values(np.frombuffer(block, f"<u{itemsize}", count))

    def _add_values(self, values: np.ndarray) -> None:
        begin, shape = self._done, self._entry.shape
        self._done += len(values)
        if len(values) == math.prod(shape):  # a small shard, mostly
            self._boxes.add(self._entry.name, values.reshape(shape), self._start)
            return
        for box in contiguous_boxes(shape, begin, self._done, max(1, len(values))):
            box_values, values = values[: box.size].reshape(box.shape), values[box.size :]
            self._boxes.add(self._entry.name, box_values, _sum_of(box.start, self._start))


class ShardFingerprints:
    """The contributions of a stage's ranks to one tensor's fingerprint, by the boxes of its shard grid.

    A rank without a contribution does not own its box.
    """

    def __init__(self, layout: ParameterLayout, shape: Shape, first_rank: int) -> None:
        self._grid = layout.shard_grid(len(shape))
        self._shape = shape
        self._first_rank = first_rank
        self._sums = np.zeros(self._grid.device_count, np.uint64)
        self._is_owner = np.zeros(self._grid.device_count, np.bool_)

    @classmethod
    def of_wholes(cls, ranks: Iterable[int]) -> "ShardFingerprints":
        """Make one for a parameter that no strategy knows: each of the ranks has all of it, in any shape."""
        numbers = sorted(ranks)
        return cls(whole_layout(0, numbers[-1] - numbers[0] + 1), (), numbers[0])

    @property
    def ranks(self) -> range:
        """The global ranks of the stage."""
        return range(self._first_rank, self._first_rank + self._grid.device_count)

    @property
    def owners(self) -> list[int]:
        """The ranks that own a box."""
        return [rank for rank in self.ranks if self._is_owner[rank - self._first_rank]]

    def __getitem__(self, rank: int) -> int:
        """The contribution of an owner."""
        if not self._is_owner[rank - self._first_rank]:
            raise KeyError(rank)
        return int(self._sums[rank - self._first_rank])

    def box(self, rank: int) -> TensorSlice:
        """The box that the layout gives a rank, in the whole tensor."""
        return self._grid.box_of(rank - self._first_rank, self._shape)

    def ranks_of(self, box: TensorSlice) -> tuple[int, ...]:
        """The ranks that the layout gives a box."""
        return tuple(rank for rank in self.ranks if self.box(rank) == box)

    def highest_owner(self, rank: int, missing_ranks: Collection[int]) -> int | None:
        """The highest rank, but for some that are missing, that the layout gives the same box as a rank."""
        owners = self._grid.owners.get(self._grid.cell_of(rank - self._first_rank), ())
        present = (self._first_rank + each for each in reversed(owners) if self._first_rank + each not in missing_ranks)
        return next(present, None)

    def elements_outside(self, missing_ranks: Collection[int]) -> int:
        """Number of the tensor's elements in boxes of other ranks than these."""
        if not missing_ranks:
            return math.prod(self._shape)
        owners = (tuple(self._first_rank + each for each in ranks) for ranks in self._grid.owners.values())
        return sum(self.box(ranks[0]).size for ranks in owners if not all(rank in missing_ranks for rank in ranks))

    def put(self, rank: int, fingerprint: int) -> None:
        """Set a rank's contribution."""
        self._sums[rank - self._first_rank] = fingerprint
        self._is_owner[rank - self._first_rank] = True

    def add(self, rank: int, fingerprint: int) -> None:
        """Add some of a rank's contribution."""
        self.put(rank, combined([int(self._sums[rank - self._first_rank]), fingerprint]))

    def contents(self) -> Iterator[tuple[TensorSlice, dict[int, list[int]]]]:
        """Each box with its contents and their owners; the lowest owner's content is first."""
        for ranks in self._grid.owners.values():
            contents: dict[int, list[int]] = {}
            for rank in ranks:
                if self._is_owner[rank]:
                    contents.setdefault(int(self._sums[rank]), []).append(self._first_rank + rank)
            yield self.box(self._first_rank + ranks[0]), contents

    def total(self) -> int:
        """The sum over all boxes with owners; where replicas differ, the lowest owner's counts."""
        return int(self._firsts.sum())

    def fingerprint(self) -> int | None:
        """The whole tensor's fingerprint; None if a box has no owner."""
        return self.total() if self._owned.any(axis=1).all() else None

    def differing(self) -> Iterator[tuple[TensorSlice, list[list[int]]]]:
        """Boxes whose replicas differ, with the owners of each content."""
        if (self._owned & (self._sums[self._grid.owner_table] != self._firsts[:, np.newaxis])).any():
            yield from ((box, list(contents.values())) for box, contents in self.contents() if len(contents) > 1)

    @property
    def _owned(self) -> np.ndarray:
        """Bool array of the shape of the grid's `owner_table`: True for owners with a contribution."""
        table = self._grid.owner_table
        owned: np.ndarray = self._is_owner[table] & (table >= 0)
        return owned

    @property
    def _firsts(self) -> np.ndarray:
        """Uint64 array of shape (cells,): the contribution of each box's lowest owner, 0 without one."""
        table, owned = self._grid.owner_table, self._owned
        lowest = np.take_along_axis(table, owned.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        return np.where(owned.any(axis=1), self._sums[lowest], np.uint64(0))


def _add_block(
    boxes: BoxSums[Key], entry: TensorEntry, box: TensorSlice, values: np.ndarray, contribution: Contribution[Key]
) -> None:
    """Add the contribution of a block, which is `box` of the entry's shard."""
    dtype, piece = entry.dtype, contribution.piece
    if piece is not None and piece.scale is not None and piece.scale.is_packed and contribution.factors is not None:
        start = *box.start[:2], box.start[2] * MXFP4_GROUP + 2 * box.start[3]
        packed = values.reshape(*values.shape[:2], -1)  # of less than a group's bytes a block has one
        factors = contribution.factors(range(start[0], start[0] + len(packed)))
        values, dtype = unpacked_values(packed, start, factors), SCALED
        piece = replace(piece, changes=ValueChanges(each=piece.changes.each))
    else:
        start = _sum_of(box.start, contribution.start)
    steps: Shape = ()
    if piece is not None:
        block = TensorSlice(start, _sum_of(start, values.shape))
        part = piece.in_source(block)
        if part is None:
            return
        bounds = part.box.bounds
        values = values[bounds.relative_to(block).as_index()]
        if part.scale is not None and contribution.factors is not None:
            values = scaled_values(values, bounds.start, contribution.factors(_WHOLE), part.scale.block)
            dtype = SCALED
        elif part.changes.is_adapted and contribution.change is not None:
            values = contribution.change(values, dtype, bounds.start)
        for step in part.changes.each:
            values = increased(values, dtype, step.number) if isinstance(step, Increase) else np.zeros_like(values)
        values = part.arranged(values[part.box.relative_to(bounds).as_index()])
        start, steps = part.start, part.steps
    if contribution.dtype is not None and contribution.dtype is not dtype:
        values = cast_bits(values, dtype, contribution.dtype)
    boxes.add(contribution.key, values, start, steps)


def _sum_of(start: Shape, offsets: Shape) -> Shape:
    return tuple(base + offset for base, offset in zip(start, offsets, strict=True))

"""Owners of source shards: the rank to read each shard from, and the boxes that no rank owns.

A strategy says which ranks should own a shard; their files may lack it, because redundancy was removed or because they
are damaged. A *copy* is a tensor in one pipeline stage: its layout, and the ranks whose files lack it. Each shard is
read from its lowest owner. A shard without an owner in the first copy is read from the other stages' copies, box by
box: a tensor is complete if every element has an owner in any of them.

All boxes are in units, as in `reshard.core.plan.geometry`.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from reshard.core.runtime.records import Record
from reshard.core.tensor.boxes import BoxFinder
from reshard.core.tensor.layout import BoxGrid, ParameterLayout, ShardGrid, cell_box
from reshard.core.tensor.slices import Shape, TensorSlice

NO_RANK = -1
"""Rank of a part that no rank owns."""


class SourceCopy(Record):
    """A parameter in one source stage.

    Attributes:
        first_rank: global rank of the stage's first device.
        layout: its layout in the stage.
        missing_ranks: global ranks of the stage whose files lack it; usually none.
    """

    first_rank: int
    layout: ParameterLayout
    missing_ranks: frozenset[int] = frozenset()


class LostBox(Record):
    """A box of a parameter that no file holds.

    Attributes:
        box: in the coordinates of the whole tensor; None for all of it, if no file tells its shape.
        ranks: the ranks that should hold it.
    """

    name: str
    box: TensorSlice | None
    ranks: tuple[int, ...]


class ShardPart(Record):
    """A part of a shard, and the rank to read it from.

    Attributes:
        rank: global source rank, or `NO_RANK`.
        shard: the box of the whole shard.
        box: the box of the part.
    """

    rank: int
    shard: TensorSlice
    box: TensorSlice


@lru_cache(maxsize=4096)
def lacks_shards(copy: SourceCopy, axis_count: int) -> bool:
    """True if shards of a copy of a tensor with `axis_count` axes have no owner."""
    if not copy.missing_ranks:
        return False
    owners = copy.layout.shard_grid(axis_count).owners.values()
    return any(all(copy.first_rank + rank in copy.missing_ranks for rank in ranks) for ranks in owners)


def lost_boxes(name: str, shape: Shape, copies: Sequence[SourceCopy]) -> Iterator[LostBox]:
    """Yield the boxes of a tensor that have no owner in any copy."""
    if not lacks_shards(copies[0], len(shape)):
        return
    unit_counts = common_units(shape, [copy.layout.shard_grid(len(shape)) for copy in copies])
    units = units_of(shape, unit_counts)
    for box, ranks in _lost_units(tuple(copies), unit_counts):
        if box.scaled(units).size:
            yield LostBox(name, box.scaled(units), ranks)


@lru_cache(maxsize=64)
def _lost_units(copies: tuple[SourceCopy, ...], unit_counts: Shape) -> list[tuple[TensorSlice, tuple[int, ...]]]:
    # parameters with the same layout that miss the same ranks have lost the same boxes
    return SourceCopies(copies, unit_counts).lost()


def common_units(shape: Shape, grids: Sequence[ShardGrid]) -> Shape:
    """Return the number of units along each axis of a tensor of `shape`; no border of any grid lies inside one."""
    if any(isinstance(grid, BoxGrid) for grid in grids):
        return shape
    return tuple(
        shape[0]
        if axis == 0 and any(grid.uneven for grid in grids)
        else math.lcm(*(grid.pieces[axis] for grid in grids))
        for axis in range(len(shape))
    )


def units_of(shape: Shape, unit_counts: Shape) -> Shape:
    """Return the elements per unit along each axis of a tensor of `shape`."""
    return tuple(length // count if count else 0 for length, count in zip(shape, unit_counts, strict=True))


class GridBoxes:
    """The boxes of a grid's shards, whichever ranks own them; remembers what it computes."""

    def __init__(self, grid: ShardGrid, unit_counts: Shape) -> None:
        self._bounds = grid.bounds(unit_counts)
        self._boxes: dict[Shape, TensorSlice] = {}
        self._overlaps: dict[TensorSlice, list[tuple[Shape, TensorSlice]]] = {}

    def box(self, cell: Shape) -> TensorSlice:
        """Return the box of the shard in a cell."""
        box = self._boxes.get(cell)
        if box is None:
            box = self._boxes[cell] = self._box_in(cell)
        return box

    def overlaps(self, box: TensorSlice) -> Sequence[tuple[Shape, TensorSlice]]:
        """Return the cells whose shards overlap a box, with the common boxes, which fill the box exactly once."""
        known = self._overlaps.get(box)
        if known is None:
            known = self._overlaps[box] = list(self._overlapping(box))
        return known

    def _box_in(self, cell: Shape) -> TensorSlice:
        return cell_box(self._bounds, cell)

    def _overlapping(self, box: TensorSlice) -> Iterator[tuple[Shape, TensorSlice]]:
        axes = [
            _axis_overlaps(bounds, low, high)
            for bounds, low, high in zip(self._bounds, box.start, box.stop, strict=True)
        ]
        for parts in product(*axes):
            yield (
                tuple(index for index, _, _ in parts),
                TensorSlice(tuple(low for _, low, _ in parts), tuple(high for _, _, high in parts)),
            )


class ListedBoxes(GridBoxes):
    """Boxes that a layout lists one by one."""

    def __init__(self, grid: BoxGrid, unit_counts: Shape) -> None:
        super().__init__(grid, unit_counts)
        self._grid = grid
        self._finder = BoxFinder(grid.boxes.distinct)

    def _box_in(self, cell: Shape) -> TensorSlice:
        return self._grid.box_in(cell)

    def _overlapping(self, box: TensorSlice) -> Iterator[tuple[Shape, TensorSlice]]:
        return (((number,), common) for number, common in self._finder.overlapping(box))


@lru_cache(maxsize=64)
def boxes_of(grid: ShardGrid, unit_counts: Shape) -> GridBoxes:
    """Return the boxes of a grid over a tensor of so many units; grids with the same shards share them.

    A source without redundancy has thousands of layout classes and a handful of grids.
    """
    return ListedBoxes(grid, unit_counts) if isinstance(grid, BoxGrid) else GridBoxes(grid, unit_counts)


class CopyShards:
    """The shards of one copy, and the owner of each."""

    def __init__(self, copy: SourceCopy, unit_counts: Shape) -> None:
        self.grid = copy.layout.shard_grid(len(unit_counts))
        self.boxes = boxes_of(self.grid, unit_counts)
        self._copy = copy
        self._owners: dict[Shape, int] = {}

    def owner(self, cell: Shape) -> int:
        """Return the lowest rank that owns a shard, so that few files are read, and often; or `NO_RANK`."""
        rank = self._owners.get(cell)
        if rank is None:
            intended = (self._copy.first_rank + rank for rank in self.grid.owners.get(cell, ()))
            rank = next((rank for rank in intended if rank not in self._copy.missing_ranks), NO_RANK)
            self._owners[cell] = rank
        return rank

    def intended_owners(self, cell: Shape) -> tuple[int, ...]:
        """Return the ranks that should own a shard by the strategy."""
        return tuple(self._copy.first_rank + rank for rank in self.grid.owners[cell])


class SourceCopies:
    """The copies of a tensor to read from; the first is preferred."""

    def __init__(self, copies: Sequence[SourceCopy], unit_counts: Shape) -> None:
        self.unit_counts = unit_counts
        self._by_copy = [CopyShards(copy, unit_counts) for copy in copies]

    def parts(self, box: TensorSlice) -> Iterator[ShardPart]:
        """Yield parts of shards that fill a box exactly once."""
        return self._parts(box, 0)

    def lost(self) -> list[tuple[TensorSlice, tuple[int, ...]]]:
        """Return the boxes without an owner, with the ranks that should own them."""
        whole = TensorSlice.whole(self.unit_counts)
        return [
            (part.box, self._intended_owners(part.box))
            for part in self.parts(whole)
            if part.rank == NO_RANK and part.box.size
        ]

    def _parts(self, box: TensorSlice, number: int) -> Iterator[ShardPart]:
        shards = self._by_copy[number]
        for cell, shared in shards.boxes.overlaps(box):
            rank = shards.owner(cell)
            if rank == NO_RANK and number + 1 < len(self._by_copy):
                yield from self._parts(shared, number + 1)
            else:
                yield ShardPart(rank, shards.boxes.box(cell), shared)

    def _intended_owners(self, box: TensorSlice) -> tuple[int, ...]:
        return tuple(
            sorted(
                {
                    rank
                    for shards in self._by_copy
                    for cell, _ in shards.boxes.overlaps(box)
                    for rank in shards.intended_owners(cell)
                }
            )
        )


def _axis_overlaps(bounds: Shape, start: int, stop: int) -> list[tuple[int, int, int]]:
    """The shards along one axis that overlap `start` to `stop`, as (index, from, to); they fill it exactly once."""
    parts = []
    position = start
    cell = max(bisect_right(bounds, start) - 1, 0)
    while position < stop:
        end = min(bounds[cell + 1], stop)
        if end > position:
            parts.append((cell, position, end))
            position = end
        cell += 1
    return parts

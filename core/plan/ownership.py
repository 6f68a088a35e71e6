"""Which source ranks really hold what: the cells of a tensor that have a holder, and the boxes that have none.

A strategy says which ranks are to hold a cell; files may lack it, because redundancy was removed or because they are
damaged. A *copy* is one pipeline stage's cut of a tensor, and which of the stage's ranks lack it. Each cell is read
from the lowest rank that holds it. Where no rank of the first copy does, the other stages' copies stand in, box by box:
a tensor is there if every element of it has a holder in any of them.

All boxes are in units, as in the plan: along each axis as many as all cuts need for their borders to lie between two.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from reshard.core.tensor.layout import ParameterLayout, ShardGrid, cell_box
from reshard.core.tensor.slices import Shape, TensorSlice

NO_RANK = -1
"""In the place of a rank, where no rank holds what is wanted."""


@dataclass(frozen=True)
class SourceCopy:
    """A parameter as one source stage has it.

    Attributes:
        first_rank: global rank of the stage's first device.
        layout: its layout in the stage.
        missing_ranks: global ranks of the stage whose files do not hold it; none as a rule.
    """

    first_rank: int
    layout: ParameterLayout
    missing_ranks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LostBox:
    """A part of a parameter that no file holds.

    Attributes:
        name: the parameter's name.
        box: in the coordinates of the whole tensor; None if it is all of it, and no file tells its shape.
        ranks: the ranks that should hold it.
    """

    name: str
    box: TensorSlice | None
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ShardPart:
    """A box and the rank that it is read from.

    Attributes:
        rank: global source rank, or `NO_RANK`.
        shard: the box of the shard that the rank holds, or would hold.
        box: the part of the shard that is needed.
    """

    rank: int
    shard: TensorSlice
    box: TensorSlice


@lru_cache(maxsize=4096)
def lacks_shards(copy: SourceCopy, axis_count: int) -> bool:
    """Whether cells of a copy of a tensor with `axis_count` axes have no holder."""
    if not copy.missing_ranks:
        return False
    cells = copy.layout.shard_grid(axis_count).owners.values()
    return any(all(copy.first_rank + rank in copy.missing_ranks for rank in ranks) for ranks in cells)


def lost_boxes(name: str, shape: Shape, copies: Sequence[SourceCopy]) -> Iterator[LostBox]:
    """The boxes of a tensor that no copy has a holder of."""
    if not lacks_shards(copies[0], len(shape)):
        return
    unit_counts = common_units(shape, [copy.layout.shard_grid(len(shape)) for copy in copies])
    units = tuple(length // count if count else 0 for length, count in zip(shape, unit_counts, strict=True))
    for box, ranks in _lost_units(tuple(copies), unit_counts):
        if box.scaled(units).size:
            yield LostBox(name, box.scaled(units), ranks)


@lru_cache(maxsize=64)
def _lost_units(copies: tuple[SourceCopy, ...], unit_counts: Shape) -> list[tuple[TensorSlice, tuple[int, ...]]]:
    # parameters that are cut alike, and lack the same ranks, have lost the same boxes
    return SourceCopies(copies, unit_counts).lost()


def common_units(shape: Shape, cuts: Sequence[ShardGrid]) -> Shape:
    """How many units each axis of a tensor of `shape` has, so that no border of any cut lies inside one."""
    return tuple(
        shape[0] if axis == 0 and any(cut.uneven for cut in cuts) else math.lcm(*(cut.pieces[axis] for cut in cuts))
        for axis in range(len(shape))
    )


class Grid:
    """The cells of a cut over a tensor; who holds them does not matter, and boxes are kept."""

    def __init__(self, cut: ShardGrid, unit_counts: Shape) -> None:
        self._bounds = cut.bounds(unit_counts)
        self._boxes: dict[Shape, TensorSlice] = {}
        self._overlaps: dict[TensorSlice, list[tuple[Shape, TensorSlice]]] = {}

    def box(self, cell: Shape) -> TensorSlice:
        """The box of a cell."""
        box = self._boxes.get(cell)
        if box is None:
            box = self._boxes[cell] = cell_box(self._bounds, cell)
        return box

    def overlaps(self, box: TensorSlice) -> Sequence[tuple[Shape, TensorSlice]]:
        """The cells that a box needs, each with what both share; these fill the box exactly once."""
        known = self._overlaps.get(box)
        if known is None:
            known = self._overlaps[box] = list(self._overlapping(box))
        return known

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


@lru_cache(maxsize=64)
def grid_of(cut: ShardGrid, unit_counts: Shape) -> Grid:
    """The grid of a cut over a tensor of so many units; cuts with the same cells share it, whoever holds them.

    A redundancy-removed source has thousands of layout classes and a handful of cuts.
    """
    return Grid(cut, unit_counts)


class CopyGrid:
    """The cells of one copy, and who holds each."""

    def __init__(self, copy: SourceCopy, unit_counts: Shape) -> None:
        self.cut = copy.layout.shard_grid(len(unit_counts))
        self._copy = copy
        self._grid = grid_of(self.cut, unit_counts)
        self._owners: dict[Shape, int] = {}

    def box(self, cell: Shape) -> TensorSlice:
        """The box of a cell."""
        return self._grid.box(cell)

    def owner(self, cell: Shape) -> int:
        """The lowest rank that holds a cell, always the same, so that few files are read, and often; or `NO_RANK`."""
        rank = self._owners.get(cell)
        if rank is None:
            held = (self._copy.first_rank + rank for rank in self.cut.owners.get(cell, ()))
            rank = self._owners[cell] = next((rank for rank in held if rank not in self._copy.missing_ranks), NO_RANK)
        return rank

    def should_hold(self, cell: Shape) -> tuple[int, ...]:
        """The ranks that the strategy gives a cell to."""
        return tuple(self._copy.first_rank + rank for rank in self.cut.owners[cell])

    def overlaps(self, box: TensorSlice) -> Sequence[tuple[Shape, TensorSlice]]:
        """The cells that a box needs, each with what both share; these fill the box exactly once."""
        return self._grid.overlaps(box)


class SourceCopies:
    """All copies that a tensor may be read from; the first is preferred."""

    def __init__(self, copies: Sequence[SourceCopy], unit_counts: Shape) -> None:
        self.unit_counts = unit_counts
        self._grids = [CopyGrid(copy, unit_counts) for copy in copies]

    @property
    def first(self) -> CopyGrid:
        """The copy that is read wherever it has a holder."""
        return self._grids[0]

    def parts(self, box: TensorSlice) -> Iterator[ShardPart]:
        """Parts that fill a box exactly once, each with the rank that it is read from."""
        return self._parts(box, 0)

    def lost(self) -> list[tuple[TensorSlice, tuple[int, ...]]]:
        """Boxes without a holder, each with the ranks that should hold it."""
        whole = TensorSlice.whole(self.unit_counts)
        return [
            (part.box, self._should_hold(part.box))
            for part in self.parts(whole)
            if part.rank == NO_RANK and part.box.size
        ]

    def _parts(self, box: TensorSlice, number: int) -> Iterator[ShardPart]:
        grid = self._grids[number]
        for cell, shared in grid.overlaps(box):
            rank = grid.owner(cell)
            if rank == NO_RANK and number + 1 < len(self._grids):
                yield from self._parts(shared, number + 1)
            else:
                yield ShardPart(rank, grid.box(cell), shared)

    def _should_hold(self, box: TensorSlice) -> tuple[int, ...]:
        return tuple(
            sorted({rank for grid in self._grids for cell, _ in grid.overlaps(box) for rank in grid.should_hold(cell)})
        )


def _axis_overlaps(bounds: Shape, start: int, stop: int) -> list[tuple[int, int, int]]:
    """The cells along one axis that share `start` to `stop`, as (cell, from, to); they fill it exactly once."""
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

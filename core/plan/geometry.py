"""The geometry of target parameters that are made of pieces: turned, split off others, or joined from several.

As for those that are cut anew as a whole, it is worked out once for all that are cut and made alike; but in elements,
not in units, since pieces may begin anywhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from reshard.core.plan.ownership import ShardPart, SourceCopies, SourceCopy, grid_of
from reshard.core.tensor.layout import ShardGrid
from reshard.core.tensor.segments import Piece, SortedPieces
from reshard.core.tensor.slices import Shape, TensorSlice


@dataclass(frozen=True)
class PlacedPart(ShardPart):
    """A box of a source parameter, the rank that it is read from, and where it goes.

    Attributes:
        source: number of the source parameter.
        axes: target axis i is source axis `axes[i]`; None: the order is the same.
        place: the box that it fills of the whole target parameter.
    """

    source: int
    axes: Shape | None
    place: TensorSlice


class ComposedPair:
    """Pieces of sources against a target cut, in elements.

    `sources` are the copies and the whole shape of each source parameter, `shape` is the target parameter's.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Sequence[SourceCopy], Shape]],
        pieces: Sequence[Piece],
        target: ShardGrid,
        shape: Shape,
    ) -> None:
        self.target = target
        self.unit_counts = shape
        self._copies = [SourceCopies(copies, whole) for copies, whole in sources]
        self._target_grid = grid_of(target, shape)
        self._pieces = SortedPieces(pieces)
        self._parts_of: dict[Shape, tuple[PlacedPart, ...]] = {}

    def units_of(self, shape: Shape) -> Shape:
        """Elements per unit along each axis: a unit is an element."""
        return tuple(1 if length else 0 for length in shape)

    def target_box(self, cell: Shape) -> TensorSlice:
        """A cell of the target's grid."""
        return self._target_grid.box(cell)

    @cached_property
    def target_sizes(self) -> dict[Shape, int]:
        """How many elements each cell of the target's grid has."""
        return {cell: self.target_box(cell).size for cell in self.target.owners}

    def parts(self, target_cell: Shape) -> tuple[PlacedPart, ...]:
        """What fills a target cell, each part with the source rank that it is read from."""
        known = self._parts_of.get(target_cell)
        if known is None:
            known = self._parts_of[target_cell] = tuple(self._parts(self.target_box(target_cell)))
        return known

    def needed_bytes(self, itemsizes: Sequence[int]) -> list[int]:
        """Bytes of the sources that each cell of the target's grid is made from; `itemsizes` are the sources'."""
        return [sum(part.box.size * itemsizes[part.source] for part in self.parts(cell)) for cell in self.target.owners]

    def _parts(self, box: TensorSlice) -> Iterator[PlacedPart]:
        for piece in self._pieces.near(box.start, box.stop):
            shared = piece.target_box.intersect(box)
            if shared is None:
                continue
            axes = piece.axes if piece.is_transposed else None
            for held in self._copies[piece.source].parts(piece.source_box(shared)):
                if held.box.size:
                    place = piece.placed_box(held.box)
                    yield PlacedPart(held.rank, held.shard, held.box, piece.source, axes, place)

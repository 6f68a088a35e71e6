"""The geometry of a layout class: which boxes of which source ranks fill each target shard.

It is worked out once for all parameters of a class, in *units*. Along each axis a tensor is divided into as many units
as all its grids need, so that every border of a shard lies between two units; a parameter's boxes are the class's boxes
times its elements per unit. Parameters that are split, joined or transposed have pieces that may begin anywhere: their
unit is one element.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from reshard.core.plan.ownership import ShardPart, SourceCopies, SourceCopy, boxes_of, common_units, units_of
from reshard.core.tensor.layout import ShardGrid
from reshard.core.tensor.segments import Piece, SortedPieces, are_whole, whole_piece
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.tensor.value_changes import UNCHANGED, ValueChanges


class PlacedPart(ShardPart):
    """A part of a source shard, and the box of the target parameter that it fills.

    Attributes:
        source: index of the source parameter.
        axes: target axis i is source axis `axes[i]`, or new; None: the axes are the same.
        place: the box in the whole target parameter.
        changes: what becomes of the values.
    """

    source: int
    axes: Shape | None
    place: TensorSlice
    changes: ValueChanges = UNCHANGED


class ClassGeometry:
    """Pieces of source parameters against the target's grid, in units.

    `sources` are the copies and the number of units along each axis of each source parameter. All copies but the first
    serve the shards that have no owner in the first.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Sequence[SourceCopy], Shape]],
        pieces: Sequence[Piece],
        target: ShardGrid,
        unit_counts: Shape,
    ) -> None:
        self.target = target
        self.unit_counts = unit_counts
        self._copies = [SourceCopies(copies, units) for copies, units in sources]
        self._source_units = [units for _, units in sources]
        self._target_boxes = boxes_of(target, unit_counts)
        self._is_whole = are_whole(pieces, unit_counts)
        self._pieces = SortedPieces(pieces)
        self._parts_of: dict[Shape, tuple[PlacedPart, ...]] = {}

    @classmethod
    def of_whole(cls, copies: Sequence[SourceCopy], target: ShardGrid, shape: Shape) -> "ClassGeometry":
        """The geometry of a parameter that is all of one source parameter of `shape`."""
        grids = [copy.layout.shard_grid(len(shape)) for copy in copies]
        unit_counts = common_units(shape, [*grids, target])
        return cls([(copies, unit_counts)], [whole_piece(unit_counts)], target, unit_counts)

    def units_of(self, shape: Shape) -> Shape:
        """Elements per unit along each axis of a tensor of the class."""
        return units_of(shape, self.unit_counts)

    def source_elements(self, box: TensorSlice, units: Shape) -> TensorSlice:
        """A box of a source in elements; `units` are the target's elements per unit, which only whole sources share."""
        return box.scaled(units) if self._is_whole else box

    def target_box(self, cell: Shape) -> TensorSlice:
        """The target shard in a cell of the grid."""
        return self._target_boxes.box(cell)

    @cached_property
    def target_sizes(self) -> np.ndarray:
        """Int64 array of shape (target shards,): units of each, in the order of the grid's `owners`."""
        return np.array([self.target_box(cell).size for cell in self.target.owners], dtype=np.int64)

    @cached_property
    def source_sizes(self) -> np.ndarray:
        """Int64 array of shape (sources, target shards): units that each target shard takes of each source.

        Factors of scaled values are read as a whole.
        """
        sizes = [[0] * len(self.target.owners) for _ in self._copies]
        for number, cell in enumerate(self.target.owners):
            for part in self.parts(cell):
                sizes[part.source][number] += part.box.size
            for source in self._factors(cell):
                sizes[source][number] = math.prod(self._source_units[source])
        return np.array(sizes, dtype=np.int64)

    def factor_ranks(self, target_cell: Shape) -> Iterator[int]:
        """The source ranks with factors of the values of a target shard."""
        for source in self._factors(target_cell):
            whole = TensorSlice.whole(self._source_units[source])
            yield from (part.rank for part in self._copies[source].parts(whole))

    def parts(self, target_cell: Shape) -> Sequence[PlacedPart]:
        """Parts of source shards that fill the target shard in a cell."""
        known = self._parts_of.get(target_cell)
        if known is None:
            known = self._parts_of[target_cell] = tuple(self._parts(self.target_box(target_cell)))
        return known

    def _factors(self, target_cell: Shape) -> frozenset[int]:
        """The sources that are factors of the values of a target shard."""
        scales = (part.changes.scale for part in self.parts(target_cell))
        return frozenset(scale.source for scale in scales if scale is not None)

    def _parts(self, box: TensorSlice) -> Iterator[PlacedPart]:
        if self._is_whole:  # most parameters: nothing to place
            for part in self._copies[0].parts(box):
                yield PlacedPart(part.rank, part.shard, part.box, 0, None, part.box)
            return
        for piece in self._pieces.near(box.start, box.stop):
            shared = piece.target_box.intersect(box)
            if shared is None:
                continue
            axes = None if piece.keeps_axes else piece.axes
            wanted = piece.source_box(shared)
            for part in self._copies[piece.source].parts(wanted.bounds):
                here = wanted.intersect(part.box) if wanted.steps else part.box
                if here is not None and here.size:
                    place = piece.placed_box(here)
                    yield PlacedPart(part.rank, part.shard, here, piece.source, axes, place, piece.changes)

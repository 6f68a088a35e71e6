"""What a target parameter is made of: boxes of source parameters, turned and put side by side.

A *piece* is a box of one source parameter and its place in a target parameter. A parameter that is only cut anew,
renamed or cast has one piece, which is all of its source; one that was split off a fused tensor has a box of it; one
that is joined has several; a transposed one has its axes in another order. Pure algebra: every operation maps pieces to
pieces, and the pieces of a parameter fill it exactly once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from core.slices import Shape, TensorSlice


@dataclass(frozen=True)
class Piece:
    """A box of a source parameter, and where it goes.

    Attributes:
        source: number of the source parameter, among those that the target parameter is made from.
        box: in the coordinates of the whole source parameter.
        axes: target axis i is source axis `axes[i]`.
        start: where it begins in the whole target parameter.
    """

    source: int
    box: TensorSlice
    axes: Shape
    start: Shape

    @property
    def shape(self) -> Shape:
        """Its shape in the target."""
        return tuple(self.box.shape[axis] for axis in self.axes)

    @property
    def target_box(self) -> TensorSlice:
        """Its box in the coordinates of the whole target parameter."""
        return TensorSlice(self.start, tuple(low + length for low, length in zip(self.start, self.shape, strict=True)))

    @property
    def is_turned(self) -> bool:
        """Whether its axes are in another order."""
        return self.axes != tuple(range(len(self.axes)))


def whole_piece(shape: Shape) -> Piece:
    """All of a source parameter of `shape`, as it is."""
    return Piece(0, TensorSlice.whole(shape), tuple(range(len(shape))), (0,) * len(shape))


def are_whole(pieces: Sequence[Piece], shape: Shape) -> bool:
    """Whether pieces are all of one source parameter of `shape`, as it is."""
    return len(pieces) == 1 and pieces[0] == whole_piece(shape)


def filled_size(pieces: Sequence[Piece]) -> int:
    """Elements of all pieces."""
    return sum(math.prod(piece.shape) for piece in pieces)

"""Pieces of target parameters: boxes of source parameters, transposed and put side by side.

A *piece* is a box of one source parameter and its place in a target parameter. A parameter that is only resharded,
renamed or cast has one piece, its whole source; a part of a split fused tensor has a box of it; a joined parameter has
several; in a transposed one the axes have another order. Pure algebra: every operation maps pieces to pieces, and the
pieces of a parameter fill it exactly once.

A fused axis of several groups has shares of every part in each group: an axis of length 12 with parts of 2, 1 and 1
shares in 3 groups is `qqkvqqkvqqkv`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np

from reshard.core.tensor.slices import Shape, TensorSlice


@dataclass(frozen=True)
class Piece:
    """A box of a source parameter, and its place.

    Attributes:
        source: index of the source parameter.
        box: in the coordinates of the whole source parameter.
        axes: target axis i is source axis `axes[i]`.
        start: its first index in the whole target parameter.
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
        """Its box in the whole target parameter."""
        return TensorSlice(self.start, tuple(low + length for low, length in zip(self.start, self.shape, strict=True)))

    @property
    def is_transposed(self) -> bool:
        """True if its axes are in another order."""
        return self.axes != tuple(range(len(self.axes)))

    def source_box(self, target_box: TensorSlice) -> TensorSlice:
        """Map a box inside this piece from the target's coordinates to the source's."""
        start, stop = list(self.box.start), list(self.box.start)
        for target_axis, axis in enumerate(self.axes):
            start[axis] += target_box.start[target_axis] - self.start[target_axis]
            stop[axis] += target_box.stop[target_axis] - self.start[target_axis]
        return TensorSlice(tuple(start), tuple(stop))

    def placed_box(self, source_box: TensorSlice) -> TensorSlice:
        """Map a box inside this piece from the source's coordinates to the target's."""
        # one pass: this is called for every read of every parameter
        shifts = [low - self.box.start[axis] for low, axis in zip(self.start, self.axes, strict=True)]
        return TensorSlice(
            tuple(source_box.start[axis] + shift for axis, shift in zip(self.axes, shifts, strict=True)),
            tuple(source_box.stop[axis] + shift for axis, shift in zip(self.axes, shifts, strict=True)),
        )


Pieces = tuple[Piece, ...]


class SortedPieces:
    """Non-empty pieces, sorted along an axis: there may be one for each row of a tensor.

    The default axis is the one with the most different starts.
    """

    def __init__(self, pieces: Iterable[Piece], axis: int | None = None) -> None:
        self._filled = [piece for piece in pieces if math.prod(piece.shape)]
        axes = range(len(self._filled[0].start)) if self._filled else range(0)
        places = [len({piece.start[axis] for piece in self._filled}) for axis in axes]
        self._axis = axis if axis is not None or not places else places.index(max(places))
        if self._filled and self._axis is not None:
            along = self._axis
            self._filled.sort(key=lambda piece: piece.start[along])
            self._starts = [piece.start[along] for piece in self._filled]
            self._longest = max(piece.shape[along] for piece in self._filled)

    def near(self, start: Shape, stop: Shape) -> Sequence[Piece]:
        """Return all pieces that overlap a box of the target, and perhaps others."""
        if self._axis is None or not self._filled:
            return self._filled
        first = bisect_left(self._starts, start[self._axis] - self._longest)
        return self._filled[first : bisect_left(self._starts, stop[self._axis])]


@lru_cache(maxsize=1024)
def whole_piece(shape: Shape) -> Piece:
    """Return the piece that is a whole source parameter of `shape`."""
    return Piece(0, TensorSlice.whole(shape), tuple(range(len(shape))), (0,) * len(shape))


def are_whole(pieces: Sequence[Piece], shape: Shape) -> bool:
    """True if pieces are one whole source parameter of `shape`, unchanged."""
    return len(pieces) == 1 and pieces[0] == whole_piece(shape)


def fill_once(pieces: Sequence[Piece], shape: Shape) -> bool:
    """True if pieces fill a target parameter of `shape` exactly once."""
    if sum(math.prod(piece.shape) for piece in pieces) != math.prod(shape):
        return False
    whole = TensorSlice.whole(shape)
    boxes = [piece.target_box for piece in pieces if math.prod(piece.shape)]
    if not all(whole.contains(box) for box in boxes):
        return False
    # between two borders of pieces all elements of an axis are alike: count one of them
    borders = [
        sorted({position for box in boxes for position in (box.start[axis], box.stop[axis])})
        for axis in range(len(shape))
    ]
    numbers = [{position: number for number, position in enumerate(axis)} for axis in borders]
    counts = np.zeros([max(0, len(axis) - 1) for axis in borders], dtype=np.int64)
    for box in boxes:
        low = [number[position] for number, position in zip(numbers, box.start, strict=True)]
        high = [number[position] for number, position in zip(numbers, box.stop, strict=True)]
        counts[tuple(map(slice, low, high))] += 1
    return bool((counts == 1).all())


def transposed(pieces: Iterable[Piece], axes: Shape) -> Pieces:
    """Return the pieces of a parameter with its axes reordered: axis i was axis `axes[i]`."""
    return tuple(
        replace(piece, axes=tuple(piece.axes[axis] for axis in axes), start=tuple(piece.start[axis] for axis in axes))
        for piece in pieces
    )


def split(pieces: Sequence[Piece], shape: Shape, axis: int, shares: Sequence[int], groups: int) -> Iterator[Pieces]:
    """Yield the pieces of each part of a fused parameter of `shape`; `axis` divides by all shares of all groups."""
    at = SortedPieces(pieces, axis)
    share = shape[axis] // (groups * sum(shares))
    run = share * sum(shares)
    for first, count in zip(accumulate(shares, initial=0), shares, strict=False):
        length = count * share
        taken: list[Piece] = []
        for group in range(groups):
            start = group * run + first * share
            taken.extend(_shifted(_between(at, axis, shape, start, length), axis, group * length - start))
        yield merged(taken)


def joined(parts: Sequence[tuple[Sequence[Piece], Shape]], axis: int, groups: int) -> Pieces:
    """Return the pieces of several parameters side by side along `axis`, with an equal share of each in every group.

    `parts` are the pieces and the shape of each; their source indexes do not clash.
    """
    taken: list[Piece] = []
    position = 0
    sorted_parts = [(SortedPieces(pieces, axis), shape) for pieces, shape in parts]
    for group in range(groups):
        for at, shape in sorted_parts:
            length = shape[axis] // groups
            start = group * length
            taken.extend(_shifted(_between(at, axis, shape, start, length), axis, position - start))
            position += length
    return merged(taken)


def merged(pieces: Iterable[Piece]) -> Pieces:
    """Merge pieces that are neighbors both in their source and in the target."""
    left = list(pieces)
    count = len(left) + 1
    while len(left) < count:
        count = len(left)
        for axis in range(len(left[0].start) if left else 0):
            left = _merged_along(left, axis)
    return tuple(sorted(left, key=lambda piece: piece.start))


def _merged_along(pieces: list[Piece], axis: int) -> list[Piece]:
    def others(piece: Piece) -> tuple[Shape, Shape]:
        return piece.start[:axis], piece.start[axis + 1 :]

    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (*others(piece), piece.start[axis])):
        if found and (both := _one_piece(found[-1], piece, axis)) is not None:
            found[-1] = both
        else:
            found.append(piece)
    return found


def _one_piece(first: Piece, second: Piece, axis: int) -> Piece | None:
    """Merge two neighbors along a target axis; None if they are not neighbors."""
    source_axis = first.axes[axis]
    if (first.source, first.axes) != (second.source, second.axes):
        return None
    following = list(first.start)
    following[axis] += first.shape[axis]
    # extended along that axis, the first one's box must end where the second one's does; other axes must agree
    stop = list(first.box.stop)
    stop[source_axis] = second.box.stop[source_axis]
    start = list(second.box.start)
    start[source_axis] = first.box.start[source_axis]
    is_next = (
        tuple(following) == second.start
        and first.box.stop[source_axis] == second.box.start[source_axis]
        and tuple(stop) == second.box.stop
        and tuple(start) == first.box.start
    )
    return replace(first, box=TensorSlice(first.box.start, tuple(stop))) if is_next else None


def _between(pieces: SortedPieces, axis: int, shape: Shape, start: int, length: int) -> Iterator[Piece]:
    """The pieces of a parameter of `shape`, clipped to `length` positions of an axis from `start` on."""
    low = (*(0,) * axis, start, *(0,) * (len(shape) - axis - 1))
    high = (*shape[:axis], start + length, *shape[axis + 1 :])
    wanted = TensorSlice(low, high)
    for piece in pieces.near(low, high):
        shared = piece.target_box.intersect(wanted)
        if shared is not None:
            yield replace(piece, box=piece.source_box(shared), start=shared.start)


def _shifted(pieces: Iterable[Piece], axis: int, distance: int) -> Iterator[Piece]:
    for piece in pieces:
        start = (*piece.start[:axis], piece.start[axis] + distance, *piece.start[axis + 1 :])
        yield replace(piece, start=start)

"""What a target parameter is made of: boxes of source parameters, turned and put side by side.

A *piece* is a box of one source parameter and its place in a target parameter. A parameter that is only cut anew,
renamed or cast has one piece, which is all of its source; one that was split off a fused tensor has a box of it; one
that is joined has several; a transposed one has its axes in another order. Pure algebra: every operation maps pieces to
pieces, and the pieces of a parameter fill it exactly once.

A fused axis of `groups` runs has in each run some of every part in turn: that of length 12 of parts with 2, 1 and 1
shares and 3 groups is `qqkvqqkvqqkv`.
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
    def is_transposed(self) -> bool:
        """Whether its axes are in another order."""
        return self.axes != tuple(range(len(self.axes)))

    def source_box(self, target_box: TensorSlice) -> TensorSlice:
        """Where in the source a box is that lies inside this piece's, in the target's coordinates."""
        start, stop = list(self.box.start), list(self.box.start)
        for target_axis, axis in enumerate(self.axes):
            start[axis] += target_box.start[target_axis] - self.start[target_axis]
            stop[axis] += target_box.stop[target_axis] - self.start[target_axis]
        return TensorSlice(tuple(start), tuple(stop))

    def placed_box(self, source_box: TensorSlice) -> TensorSlice:
        """Where in the target a box is that lies inside this piece's, in the source's coordinates."""
        shifts = [low - self.box.start[axis] for low, axis in zip(self.start, self.axes, strict=True)]
        return TensorSlice(
            tuple(source_box.start[axis] + shift for axis, shift in zip(self.axes, shifts, strict=True)),
            tuple(source_box.stop[axis] + shift for axis, shift in zip(self.axes, shifts, strict=True)),
        )


Pieces = tuple[Piece, ...]


class SortedPieces:
    """Pieces that have elements, by where they begin along an axis: there may be one for each row of a tensor.

    `axis` is that along which most of them begin at different places, unless it is given.
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
        """All pieces that share elements with a box of the target, and others."""
        if self._axis is None or not self._filled:
            return self._filled
        first = bisect_left(self._starts, start[self._axis] - self._longest)
        return self._filled[first : bisect_left(self._starts, stop[self._axis])]


@lru_cache(maxsize=1024)
def whole_piece(shape: Shape) -> Piece:
    """All of a source parameter of `shape`, as it is."""
    return Piece(0, TensorSlice.whole(shape), tuple(range(len(shape))), (0,) * len(shape))


def are_whole(pieces: Sequence[Piece], shape: Shape) -> bool:
    """Whether pieces are all of one source parameter of `shape`, as it is."""
    return len(pieces) == 1 and pieces[0] == whole_piece(shape)


def filled_size(pieces: Sequence[Piece]) -> int:
    """Elements of all pieces."""
    return sum(math.prod(piece.shape) for piece in pieces)


def fill_once(pieces: Sequence[Piece], shape: Shape) -> bool:
    """Whether pieces fill a target parameter of `shape` exactly once."""
    if filled_size(pieces) != math.prod(shape):
        return False
    whole = TensorSlice.whole(shape)
    boxes = [piece.target_box for piece in pieces if math.prod(piece.shape)]
    if not all(whole.contains(box) for box in boxes):
        return False
    # between two borders of pieces all elements of an axis are alike: one of them tells for all
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
    """The pieces of a parameter after its axes changed order: axis i is then what was axis `axes[i]`."""
    return tuple(
        replace(piece, axes=tuple(piece.axes[axis] for axis in axes), start=tuple(piece.start[axis] for axis in axes))
        for piece in pieces
    )


def split(pieces: Sequence[Piece], shape: Shape, axis: int, shares: Sequence[int], groups: int) -> Iterator[Pieces]:
    """The pieces of each part of a fused parameter of `shape`, whose `axis` divides by all shares of all groups."""
    at = SortedPieces(pieces, axis)
    share = shape[axis] // (groups * sum(shares))
    run = share * sum(shares)
    for first, count in zip(accumulate(shares, initial=0), shares, strict=False):
        length = count * share
        taken: list[Piece] = []
        for group in range(groups):
            start = group * run + first * share
            taken.extend(_moved(_between(at, axis, shape, start, length), axis, group * length - start))
        yield merged(taken)


def joined(parts: Sequence[tuple[Sequence[Piece], Shape]], axis: int, groups: int) -> Pieces:
    """The pieces of several parameters side by side along `axis`, of each an equal share in each of the groups.

    `parts` are the pieces and the shape of each; their numbers of sources do not clash.
    """
    taken: list[Piece] = []
    position = 0
    sorted_parts = [(SortedPieces(pieces, axis), shape) for pieces, shape in parts]
    for group in range(groups):
        for at, shape in sorted_parts:
            length = shape[axis] // groups
            start = group * length
            taken.extend(_moved(_between(at, axis, shape, start, length), axis, position - start))
            position += length
    return merged(taken)


def merged(pieces: Iterable[Piece]) -> Pieces:
    """The same with as few pieces as that takes: those that are neighbors in their source and in the target are one."""
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
    """Two neighbors along a target axis as one piece; None if they are none."""
    source_axis = first.axes[axis]
    if (first.source, first.axes) != (second.source, second.axes):
        return None
    following = list(first.start)
    following[axis] += first.shape[axis]
    # the first one's box, as long as both along that axis, has to end where the second one's does, and to begin as it
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
    """What of the pieces of a parameter of `shape` is at `length` positions of an axis from `start` on."""
    low = (*(0,) * axis, start, *(0,) * (len(shape) - axis - 1))
    high = (*shape[:axis], start + length, *shape[axis + 1 :])
    wanted = TensorSlice(low, high)
    for piece in pieces.near(low, high):
        shared = piece.target_box.intersect(wanted)
        if shared is not None:
            yield replace(piece, box=piece.source_box(shared), start=shared.start)


def _moved(pieces: Iterable[Piece], axis: int, distance: int) -> Iterator[Piece]:
    for piece in pieces:
        start = (*piece.start[:axis], piece.start[axis] + distance, *piece.start[axis + 1 :])
        yield replace(piece, start=start)

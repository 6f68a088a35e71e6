"""Pieces of target parameters: boxes of source parameters, transposed and put side by side.

A *piece* is a box of one source parameter and its place in a target parameter. A parameter that is only resharded,
renamed or cast has one piece, its whole source; a part of a split fused tensor has a box of it; a joined parameter has
several; in a transposed one the axes have another order; in a stacked one there is an axis that the source lacks, along
which each piece has one element. Pure algebra: every operation maps pieces to pieces, and the pieces of a parameter
fill it exactly once.

A fused axis of several groups has shares of every part in each group: an axis of length 12 with parts of 2, 1 and 1
shares in 3 groups is `qqkvqqkvqqkv`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import add

import numpy as np

from reshard.core.tensor.slices import Shape, TensorSlice

NEW_AXIS = -1
"""Instead of a source axis: a target axis that the source lacks, of one element."""


@dataclass(frozen=True)
class BlockScale:
    """Factors of a matrix's values: one for each block of `block` elements, counted from the whole matrix's beginning.

    `source` is the index of the source parameter that holds them, a matrix with an element for each block.
    """

    source: int
    block: Shape


@dataclass(frozen=True)
class Piece:
    """A box of a source parameter, and its place.

    Attributes:
        source: index of the source parameter.
        box: in the coordinates of the whole source parameter.
        axes: target axis i is source axis `axes[i]`, or `NEW_AXIS`; the box has one element along axes left out.
        start: its first index in the whole target parameter.
        scale: factors of its values, if they are scaled.
    """

    source: int
    box: TensorSlice
    axes: Shape
    start: Shape
    scale: BlockScale | None = None

    @property
    def shape(self) -> Shape:
        """Its shape in the target."""
        box = self.box.shape
        return tuple(1 if axis == NEW_AXIS else box[axis] for axis in self.axes)

    @property
    def target_box(self) -> TensorSlice:
        """Its box in the whole target parameter."""
        return TensorSlice(self.start, tuple(map(add, self.start, self.shape)))

    @property
    def keeps_axes(self) -> bool:
        """True if its axes are the source's, in the same order."""
        return self.axes == tuple(range(len(self.box.start)))

    @property
    def is_transposed(self) -> bool:
        """True if its axes are in another order."""
        return reorders(self.axes)

    def source_box(self, target_box: TensorSlice) -> TensorSlice:
        """Map a box inside this piece from the target's coordinates to the source's."""
        start, stop = list(self.box.start), list(self.box.stop)
        for target_axis, axis in enumerate(self.axes):
            if axis != NEW_AXIS:
                shift = self.box.start[axis] - self.start[target_axis]
                start[axis] = target_box.start[target_axis] + shift
                stop[axis] = target_box.stop[target_axis] + shift
        return TensorSlice(tuple(start), tuple(stop))

    def placed_box(self, source_box: TensorSlice) -> TensorSlice:
        """Map a box inside this piece from the source's coordinates to the target's."""
        # one pass: this is called for every read of every parameter
        start, stop = list(self.start), [low + 1 for low in self.start]
        for target_axis, axis in enumerate(self.axes):
            if axis != NEW_AXIS:
                shift = self.start[target_axis] - self.box.start[axis]
                start[target_axis] = source_box.start[axis] + shift
                stop[target_axis] = source_box.stop[axis] + shift
        return TensorSlice(tuple(start), tuple(stop))

    def arranged(self, values: np.ndarray) -> np.ndarray:
        """Return a view of the values of a box inside this piece, with the target's axes."""
        kept = sorted(axis for axis in self.axes if axis != NEW_AXIS)
        values = values[tuple(slice(None) if axis in kept else 0 for axis in range(values.ndim))]
        values = values.transpose([kept.index(axis) for axis in self.axes if axis != NEW_AXIS])
        return values[tuple(None if axis == NEW_AXIS else slice(None) for axis in self.axes)]


@dataclass(frozen=True)
class PieceSteps:
    """Pieces at equal distances, such as every other row; usually one piece.

    Attributes:
        piece: the first one; if there are others, it has one element along `axis`.
        count: how many there are.
        axis: the target axis along which they follow one another.
        distance: between neighbors, along the source's axis.
        place_distance: between neighbors, along the target's.
    """

    piece: Piece
    count: int = 1
    axis: int = 0
    distance: int = 1
    place_distance: int = 1

    @property
    def source_start(self) -> int:
        """The first index along the source's first axis; 0 of a scalar."""
        return self.piece.box.start[0] if self.piece.box.start else 0

    @property
    def source_stop(self) -> int:
        """The index after the last along the source's first axis; 1 of a scalar."""
        beyond = self.distance * (self.count - 1) if self.count > 1 and self.piece.axes[self.axis] == 0 else 0
        return (self.piece.box.stop[0] if self.piece.box.stop else 1) + beyond

    def within(self, box: TensorSlice) -> "PieceSteps | None":
        """Return the part in a box of the source; None if there is none."""
        piece, first, count = self.piece, 0, 1
        if self.count > 1:
            along = piece.axes[self.axis]
            low = piece.box.start[along]
            first = max(0, -(-(box.start[along] - low) // self.distance))
            count = min(self.count, (box.stop[along] - 1 - low) // self.distance + 1) - first
            if count < 1:
                return None
            piece = self._piece(first)
        common = piece.box.intersect(box)
        if common is None:
            return None
        piece = replace(piece, box=common, start=piece.placed_box(common).start)
        return replace(self, piece=piece, count=count)

    def index(self, box: TensorSlice) -> tuple[slice, ...]:
        """Return the numpy index of its elements in a box of the source that contains it."""
        index = list(self.piece.box.relative_to(box).as_index())
        if self.count > 1:
            along = self.piece.axes[self.axis]
            start = index[along].start
            index[along] = slice(start, start + self.distance * (self.count - 1) + 1, self.distance)
        return tuple(index)

    @property
    def steps(self) -> Shape:
        """Distances between elements in the target, along each axis."""
        return tuple(
            self.place_distance if self.count > 1 and axis == self.axis else 1 for axis in range(len(self.piece.axes))
        )

    def _piece(self, number: int) -> Piece:
        along, distance = self.piece.axes[self.axis], self.distance * number
        box = self.piece.box.shifted(
            tuple(distance if axis == along else 0 for axis in range(len(self.piece.box.start)))
        )
        start = list(self.piece.start)
        start[self.axis] += self.place_distance * number
        return replace(self.piece, box=box, start=tuple(start))


Pieces = tuple[Piece, ...]


def reorders(axes: Shape | None) -> bool:
    """True if target axes, of which axis i is source axis `axes[i]`, are in another order than the source's."""
    kept = [axis for axis in axes or () if axis != NEW_AXIS]
    return kept != sorted(kept)


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


def split(pieces: Sequence[Piece], shape: Shape, axis: int, shares: Sequence[int], groups: int, number: int) -> Pieces:
    """Return the pieces of part `number` of a fused parameter of `shape`, whose axis divides by all shares."""
    at = SortedPieces(pieces, axis)
    share = shape[axis] // (groups * sum(shares))
    run, first, length = share * sum(shares), share * sum(shares[:number]), share * shares[number]
    taken: list[Piece] = []
    for group in range(groups):
        start = group * run + first
        taken.extend(_shifted(_between(at, axis, shape, start, length), axis, group * length - start))
    return merged(taken)


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


def stacked(parts: Sequence[Pieces]) -> Pieces:
    """Return the pieces of parameters of one shape along a new first axis; their source indexes do not clash."""
    return tuple(
        replace(piece, axes=(NEW_AXIS, *piece.axes), start=(index, *piece.start))
        for index, pieces in enumerate(parts)
        for piece in pieces
    )


def unstacked(pieces: Sequence[Piece], shape: Shape, index: int) -> Pieces:
    """Return the pieces of one index of the first axis of a parameter of `shape`, without that axis."""
    taken = _between(SortedPieces(pieces, 0), 0, shape, index, 1)
    return merged(replace(piece, axes=piece.axes[1:], start=piece.start[1:]) for piece in taken)


def merged_axes(pieces: Sequence[Piece], shape: Shape) -> Pieces:
    """Return the pieces of a parameter of `shape` whose first two axes become one."""
    rows = shape[1]
    return merged(
        replace(piece, axes=piece.axes[1:], start=(index * rows + piece.start[1], *piece.start[2:]))
        for index, piece in _divided(pieces, 1)
    )


def unmerged_axes(pieces: Sequence[Piece], shape: Shape, count: int) -> Pieces:
    """Return the pieces of a parameter of `shape` whose first axis becomes two, the first of them of `count`."""
    rows = shape[0] // count
    return tuple(
        replace(piece, axes=(NEW_AXIS, *piece.axes), start=(index, piece.start[0] - index * rows, *piece.start[1:]))
        for index, piece in _divided(pieces, rows)
    )


def clipped(pieces: Iterable[Piece], box: TensorSlice) -> Pieces:
    """Return the pieces of a box of a parameter, which becomes a parameter of its own."""
    found = ((piece, piece.target_box.intersect(box)) for piece in pieces)
    return tuple(
        replace(piece, box=piece.source_box(common), start=common.relative_to(box).start)
        for piece, common in found
        if common is not None
    )


def in_steps(pieces: Iterable[Piece]) -> list[PieceSteps]:
    """Put pieces at equal distances together; `pieces` are in the order of their places."""
    found: list[PieceSteps] = []
    latest: dict[object, tuple[int, Piece]] = {}
    for piece in pieces:
        kind = piece.source, piece.axes, piece.box.shape, piece.scale
        number, last = latest.get(kind, (-1, piece))
        longer = _extended(found[number], last, piece) if number >= 0 else None
        if longer is None:
            number = len(found)
            found.append(PieceSteps(piece))
        else:
            found[number] = longer
        latest[kind] = number, piece
    return found


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
    kinds = [(piece.source, piece.axes, piece.scale) for piece in (first, second)]
    if kinds[0] != kinds[1] or source_axis == NEW_AXIS:
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
            yield Piece(piece.source, piece.source_box(shared), piece.axes, shared.start, piece.scale)


def _shifted(pieces: Iterable[Piece], axis: int, distance: int) -> Iterator[Piece]:
    for piece in pieces:
        start = (*piece.start[:axis], piece.start[axis] + distance, *piece.start[axis + 1 :])
        yield Piece(piece.source, piece.box, piece.axes, start, piece.scale)


def _divided(pieces: Iterable[Piece], rows: int) -> Iterator[tuple[int, Piece]]:
    """Pieces clipped to runs of `rows` along the first axis, each with the number of its run; none without elements."""
    for piece in pieces:
        box = piece.target_box
        if not box.size:
            continue
        for index in range(box.start[0] // rows, -(-box.stop[0] // rows)):
            start = (max(box.start[0], index * rows), *box.start[1:])
            stop = (min(box.stop[0], (index + 1) * rows), *box.stop[1:])
            yield index, replace(piece, box=piece.source_box(TensorSlice(start, stop)), start=start)


def _extended(steps: PieceSteps, last: Piece, piece: Piece) -> PieceSteps | None:
    """Pieces at equal distances, of which `last` is the last, and one more of the same kind; None if it is not next."""
    moved = [axis for axis, low in enumerate(last.start) if piece.start[axis] != low]
    if len(moved) != 1 or piece.scale is not None:
        return None
    [axis] = moved
    along = piece.axes[axis]
    if along == NEW_AXIS or piece.box.shape[along] != 1:
        return None
    shift = [high - low for low, high in zip(last.box.start, piece.box.start, strict=True)]
    distance, place_distance = shift[along], piece.start[axis] - last.start[axis]
    if distance < 1 or place_distance < 1 or any(shift[:along]) or any(shift[along + 1 :]):
        return None
    if steps.count > 1 and (steps.axis, steps.distance, steps.place_distance) != (axis, distance, place_distance):
        return None
    return PieceSteps(steps.piece, steps.count + 1, axis, distance, place_distance)

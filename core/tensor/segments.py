"""Pieces of target parameters: boxes of source parameters, transposed and put side by side.

A *piece* is a box of one source parameter and its place in a target parameter. A parameter that is only resharded,
renamed or cast has one piece, its whole source; a part of a split fused tensor has a box of it; a joined parameter has
several; in a transposed one the axes have another order; in a stacked one there is an axis that the source lacks, along
which each piece has one element. Pure algebra: every operation maps pieces to pieces, and the pieces of a parameter
fill it exactly once. Rows at equal distances, such as those of gate and up in turn, are one piece: a stepped box.

A fused axis of several groups has shares of every part in each group: an axis of length 12 with parts of 2, 1 and 1
shares in 3 groups is `qqkvqqkvqqkv`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from operator import add, neg

import numpy as np
from msgspec.structs import replace

from reshard.core.errors import PlanError
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.tensor.value_changes import UNCHANGED, BlockScale, ValueChanges

MAX_PIECES = 2**16
"""Of one parameter: 61 layers of 384 experts, gate and up in turn, have 47,000. Making so many takes a second."""
_MAX_LOOKED_AT = 2**20
"""Pieces that one operation looks at, those again that are near several of its runs."""
_MAX_CELLS = 2**24
NEW_AXIS = -1
"""Instead of a source axis: a target axis that the source lacks, of one element."""


class Piece(Record):
    """A box of a source parameter, and its place.

    Attributes:
        source: index of the source parameter.
        box: in the coordinates of the whole source parameter; perhaps stepped.
        axes: target axis i is source axis `axes[i]`, or `NEW_AXIS`; the box has one element along axes left out.
        start: its first index in the whole target parameter.
        steps: distances between neighbors in the target, as in `TensorSlice`.
        changes: what becomes of its values.
    """

    source: int
    box: TensorSlice
    axes: Shape
    start: Shape
    steps: Shape = ()
    changes: ValueChanges = UNCHANGED

    @property
    def scale(self) -> BlockScale | None:
        """Factors of its values, if they are scaled."""
        return self.changes.scale

    @property
    def shape(self) -> Shape:
        """Its shape in the target."""
        box = self.box.shape
        return tuple(1 if axis == NEW_AXIS else box[axis] for axis in self.axes)

    @property
    def target_box(self) -> TensorSlice:
        """Its box in the whole target parameter."""
        if self.steps:
            return TensorSlice.stepped(self.start, self.shape, self.steps)
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
        if self.steps or self.box.steps:
            return self._stepped_source_box(target_box)
        start, stop = list(self.box.start), list(self.box.stop)
        for target_axis, axis in enumerate(self.axes):
            if axis != NEW_AXIS:
                shift = self.box.start[axis] - self.start[target_axis]
                start[axis] = target_box.start[target_axis] + shift
                stop[axis] = target_box.stop[target_axis] + shift
        return TensorSlice(tuple(start), tuple(stop))

    def placed_box(self, source_box: TensorSlice) -> TensorSlice:
        """Map a box inside this piece from the source's coordinates to the target's."""
        if self.steps or self.box.steps:
            return self._stepped_placed_box(source_box)
        # one pass: this is called for every read of every parameter
        start, stop = list(self.start), [low + 1 for low in self.start]
        for target_axis, axis in enumerate(self.axes):
            if axis != NEW_AXIS:
                shift = self.start[target_axis] - self.box.start[axis]
                start[target_axis] = source_box.start[axis] + shift
                stop[target_axis] = source_box.stop[axis] + shift
        return TensorSlice(tuple(start), tuple(stop))

    def in_source(self, box: TensorSlice) -> "Piece | None":
        """Return the part in a box of the source; None if there is none."""
        common = self.box.intersect(box)
        if common is None:
            return None
        placed = self.placed_box(common)
        return replace(self, box=common, start=placed.start, steps=placed.steps)

    def in_target(self, box: TensorSlice) -> "Piece | None":
        """Return the part in a box of the target; None if there is none."""
        common = self.target_box.intersect(box)
        if common is None:
            return None
        return replace(self, box=self.source_box(common), start=common.start, steps=common.steps)

    def picked(self, axis: int, every: "Progression", to: "Progression") -> "Piece | None":
        """Return the part at some positions along a target axis, moved to other positions; None if there is none."""
        shape, distances = self.shape, self.target_box.distances
        low, distance = self.start[axis], distances[axis]
        common = math.gcd(distance, every.distance)
        shift, rest = divmod(every.start - low, common)
        if rest:
            return None
        # of this piece's positions along the axis, numbered from 0, those that are also in `every`
        period = every.distance // common
        number = shift * pow(distance // common, -1, period) % period
        behind = every.start - low - number * distance  # the first one in `every` may be further on
        number += max(0, -(-behind // (distance * period))) * period
        last = min(shape[axis] - 1, (every.start + every.distance * (every.count - 1) - low) // distance)
        count = (last - number) // period + 1
        if count < 1 or not math.prod(shape):
            return None
        place = (low + number * distance - every.start) // every.distance
        start = _put(self.start, axis, to.start + place * to.distance)
        steps = _put(distances, axis, distance * period // every.distance * to.distance)
        source_axis = self.axes[axis]
        box = self.box
        if source_axis != NEW_AXIS:
            box = TensorSlice.stepped(
                _put(box.start, source_axis, box.start[source_axis] + number * box.distances[source_axis]),
                _put(box.shape, source_axis, count),
                _put(box.distances, source_axis, period * box.distances[source_axis]),
            )
        target = TensorSlice.stepped(start, _put(shape, axis, count), steps)
        return replace(self, box=box, start=start, steps=target.steps)

    def _stepped_source_box(self, target_box: TensorSlice) -> TensorSlice:
        start, shape = list(self.box.start), list(self.box.shape)
        distances, box_shape = self.target_box.distances, target_box.shape
        for target_axis, axis in enumerate(self.axes):
            if axis != NEW_AXIS:
                number = (target_box.start[target_axis] - self.start[target_axis]) // distances[target_axis]
                start[axis] += number * self.box.distances[axis]
                shape[axis] = box_shape[target_axis]
        return TensorSlice.stepped(tuple(start), tuple(shape), self.box.distances)

    def _stepped_placed_box(self, source_box: TensorSlice) -> TensorSlice:
        start, shape = list(self.start), [1] * len(self.start)
        distances, box_shape = self.target_box.distances, source_box.shape
        for target_axis, axis in enumerate(self.axes):
            if axis != NEW_AXIS:
                number = (source_box.start[axis] - self.box.start[axis]) // self.box.distances[axis]
                start[target_axis] += number * distances[target_axis]
                shape[target_axis] = box_shape[axis]
        return TensorSlice.stepped(tuple(start), tuple(shape), distances)

    def arranged(self, values: np.ndarray) -> np.ndarray:
        """Return a view of the values of a box inside this piece, with the target's axes."""
        kept = sorted(axis for axis in self.axes if axis != NEW_AXIS)
        values = values[tuple(slice(None) if axis in kept else 0 for axis in range(values.ndim))]
        values = values.transpose([kept.index(axis) for axis in self.axes if axis != NEW_AXIS])
        return values[tuple(None if axis == NEW_AXIS else slice(None) for axis in self.axes)]


class Progression(Record):
    """Positions at equal distances along an axis."""

    start: int
    distance: int
    count: int


Pieces = tuple[Piece, ...]


def reorders(axes: Shape | None) -> bool:
    """True if target axes, of which axis i is source axis `axes[i]`, are in another order than the source's."""
    kept = [axis for axis in axes or () if axis != NEW_AXIS]
    return kept != sorted(kept)


class SortedPieces:
    """Non-empty pieces, sorted along an axis: there may be thousands.

    The default axis is the one with the most different starts. `looked_at` is for who limits what is looked at.
    """

    def __init__(self, pieces: Iterable[Piece], axis: int | None = None) -> None:
        self._filled = [piece for piece in pieces if math.prod(piece.shape)]
        axes = range(len(self._filled[0].start)) if self._filled else range(0)
        places = [len({piece.start[axis] for piece in self._filled}) for axis in axes]
        self.looked_at = 0
        self._axis = axis if axis is not None or not places else places.index(max(places))
        if self._filled and self._axis is not None:
            along = self._axis
            self._filled.sort(key=lambda piece: piece.start[along])
            self._starts = [piece.start[along] for piece in self._filled]
            self._longest = max(piece.target_box.stop[along] - piece.start[along] for piece in self._filled)

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
    """True if pieces fill a target parameter of `shape` exactly once.

    Raises:
        PlanError: they have too many borders to be counted.
    """
    if sum(math.prod(piece.shape) for piece in pieces) != math.prod(shape):
        return False
    whole = TensorSlice.whole(shape)
    boxes = [piece.target_box for piece in pieces if math.prod(piece.shape)]
    if not boxes or not all(whole.contains(box) for box in boxes):
        return not boxes
    ranges = [_representatives(boxes, axis) for axis in range(len(shape))]
    cells = [sum(map(len, those)) for those in ranges]
    if math.prod(cells) > _MAX_CELLS:
        raise PlanError(
            f"its {len(pieces)} pieces cut it into {' * '.join(map(str, cells))} boxes, more than {_MAX_CELLS:,}, the "
            "limit"
        )
    counted = [np.concatenate([np.arange(each.start, each.stop) for each in those]) for those in ranges]
    counts = np.zeros(cells, dtype=np.int32)
    for box in boxes:
        counts[_index_among(counted, box)] += 1
    return bool((counts == 1).all())


def _representatives(boxes: Sequence[TensorSlice], axis: int) -> list[range]:
    """Positions along an axis that stand for all: each of the others is in the same boxes as one of them.

    Between two borders of boxes that is so for positions at a distance that all steps divide.
    """
    borders = sorted({position for box in boxes for position in (box.start[axis], box.stop[axis])})
    period = math.lcm(*{box.distances[axis] for box in boxes})
    return [range(low, min(high, low + period)) for low, high in pairwise(borders)]


def _index_among(positions: Sequence[np.ndarray], box: TensorSlice) -> tuple[np.ndarray | slice, ...]:
    """The numpy index of a box in an array of some positions along each axis."""
    borders = zip(positions, box.start, box.stop, strict=True)
    ranges = [slice(*np.searchsorted(each, (low, high)).tolist()) for each, low, high in borders]
    if not box.steps:
        return tuple(ranges)
    axes = zip(positions, ranges, box.start, box.steps, strict=True)
    return np.ix_(*(near.start + np.flatnonzero((each[near] - low) % step == 0) for each, near, low, step in axes))


def transposed(pieces: Iterable[Piece], axes: Shape) -> Pieces:
    """Return the pieces of a parameter with its axes reordered: axis i was axis `axes[i]`."""
    return tuple(
        replace(
            piece,
            axes=tuple(piece.axes[axis] for axis in axes),
            start=tuple(piece.start[axis] for axis in axes),
            steps=tuple(piece.steps[axis] for axis in axes) if piece.steps else (),
        )
        for piece in pieces
    )


def split(pieces: Sequence[Piece], shape: Shape, axis: int, shares: Sequence[int], groups: int, number: int) -> Pieces:
    """Return the pieces of part `number` of a fused parameter of `shape`, whose axis divides by all shares.

    Raises:
        PlanError: there would be too many. The following functions raise it, too.
    """
    if not math.prod(shape):  # any number of groups goes into an empty axis
        return ()
    share = shape[axis] // (groups * sum(shares))
    first, length = share * sum(shares[:number]), share * shares[number]
    taken = Progression(first, share * sum(shares), groups)
    runs = _in_runs(SortedPieces(pieces, axis), shape, axis, length, taken, Progression(0, length, groups))
    return merged(_limited(runs))


def joined(parts: Sequence[tuple[Sequence[Piece], Shape]], axis: int, groups: int) -> Pieces:
    """Return the pieces of several parameters side by side along `axis`, with an equal share of each in every group.

    `parts` are the pieces and the shape of each; their source indexes do not clash.
    """
    parts = [(pieces, shape) for pieces, shape in parts if math.prod(shape)]
    taken: list[Piece] = []
    run, position = sum(shape[axis] for _, shape in parts) // groups, 0
    for pieces, shape in parts:
        length = shape[axis] // groups
        every, to = Progression(0, length, groups), Progression(position, run, groups)
        _take(taken, _in_runs(SortedPieces(pieces, axis), shape, axis, length, every, to))
        position += length
    return merged(taken)


def stacked(parts: Sequence[Pieces]) -> Pieces:
    """Return the pieces of parameters of one shape along a new first axis; their source indexes do not clash."""
    return _limited(_with_new_axis(piece, 0, index) for index, pieces in enumerate(parts) for piece in pieces)


def unstacked(pieces: Sequence[Piece], shape: Shape, index: int) -> Pieces:
    """Return the pieces of one index of the first axis of a parameter of `shape`, without that axis."""
    one = Progression(index, 1, 1)
    return merged(_without_axis(piece, 0) for piece in _picked(SortedPieces(pieces, 0), shape, 0, one, one))


def merged_axes(pieces: Sequence[Piece], shape: Shape) -> Pieces:
    """Return the pieces of a parameter of `shape` whose first two axes become one."""
    return merged(_limited(_with_merged_axes((piece for piece in pieces if piece.box.size), shape[1])))


def unmerged_axes(pieces: Sequence[Piece], shape: Shape, count: int) -> Pieces:
    """Return the pieces of a parameter of `shape` whose first axis becomes two, the first of them of `count`."""
    if not math.prod(shape):
        return ()
    rows = shape[0] // count
    found = SortedPieces(pieces, 0)
    taken: list[Piece] = []
    for number in range(min(count, rows)):
        if count <= rows:  # a run of rows for each index
            every, to = Progression(number * rows, 1, rows), Progression(0, 1, rows)
        else:  # a row of every index
            every, to = Progression(number, rows, count), Progression(0, 1, count)
        new_axis = 0 if count <= rows else 1
        _take(taken, (_with_new_axis(piece, new_axis, number) for piece in _picked(found, shape, 0, every, to)))
    return merged(taken)


def clipped(pieces: Iterable[Piece], box: TensorSlice) -> Pieces:
    """Return the pieces of a box of a parameter, which becomes a parameter of its own."""
    inside = (piece.in_target(box) for piece in pieces)
    shift = tuple(map(neg, box.start))
    return tuple(replace(piece, start=tuple(map(add, piece.start, shift))) for piece in inside if piece is not None)


def merged(pieces: Iterable[Piece]) -> Pieces:
    """Merge pieces that are neighbors, or rows in turn, both in their source and in the target."""
    left = list(pieces)
    count = len(left) + 1
    while len(left) < count:
        count = len(left)
        for axis in range(len(left[0].start) if left else 0):
            left = _merged_along(left, axis)
    return tuple(sorted(left, key=lambda piece: piece.start))


def _merged_along(pieces: list[Piece], axis: int) -> list[Piece]:
    alike: dict[object, list[Piece]] = {}
    found = []
    for piece in pieces:
        if piece.axes[axis] == NEW_AXIS:
            found.append(piece)
        else:
            alike.setdefault(_kind_beside(piece, axis), []).append(piece)
    return found + [piece for those in alike.values() for piece in _in_turn(_chained(those, axis), axis)]


def _kind_beside(piece: Piece, axis: int) -> object:
    """Equal for pieces that differ along a target axis only, and along its axis of the source."""
    source_axis, box, distances = piece.axes[axis], piece.box, piece.target_box.distances
    return (
        *(piece.source, piece.axes, piece.changes),
        *(_put(piece.start, axis, 0), _put(distances, axis, 0)),
        *(_put(box.start, source_axis, 0), _put(box.shape, source_axis, 0), _put(box.distances, source_axis, 0)),
    )


def _chained(pieces: Sequence[Piece], axis: int) -> list[Piece]:
    """Merge pieces that go on where others end, at the same distances."""
    if len(pieces) == 1:
        return list(pieces)
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.start[axis] % _distances(piece, axis)[1], piece.start[axis])):
        both = _longer(found[-1], piece, axis) if found else None
        if both is None:
            found.append(piece)
        else:
            found[-1] = both
    return found


def _longer(first: Piece, second: Piece, axis: int) -> Piece | None:
    """Merge two pieces along a target axis; None if the second does not follow the first."""
    distances = _distances(first if first.shape[axis] > 1 else second, axis)
    if second.shape[axis] > 1 and _distances(second, axis) != distances:
        return None
    source_axis, count = first.axes[axis], first.shape[axis]
    goes_on = (
        second.box.start[source_axis] == first.box.start[source_axis] + count * distances[0]
        and second.start[axis] == first.start[axis] + count * distances[1]
    )
    return _with_progression(first, axis, count + second.shape[axis], distances) if goes_on else None


def _in_turn(pieces: list[Piece], axis: int) -> list[Piece]:
    """Merge pieces of which each has every n-th row, and all together have all."""
    stepped: dict[tuple[int, tuple[int, int]], list[Piece]] = {}
    found = []
    for piece in pieces:
        distances = _distances(piece, axis)
        if distances[1] == 1:
            found.append(piece)
        else:
            stepped.setdefault((piece.shape[axis], distances), []).append(piece)
    for (count, distances), those in stepped.items():
        those.sort(key=lambda piece: piece.start[axis])
        while those:
            first, together, between = those[0], 1, (0, 0)
            if len(those) > 1:
                between = _shift(first, those[1], axis)
                together = distances[1] // between[1] if between[1] else 1
            turn = those[:together]
            fits = (
                1 < together == len(turn)
                and tuple(each * together for each in between) == distances
                and all(_shift(one, other, axis) == between for one, other in pairwise(turn))
            )
            found.append(_with_progression(first, axis, count * together, between) if fits else first)
            del those[: together if fits else 1]
    return found


def _distances(piece: Piece, axis: int) -> tuple[int, int]:
    """Distances between neighbors along a target axis: in the source, and in the target."""
    return piece.box.distances[piece.axes[axis]], piece.steps[axis] if piece.steps else 1


def _shift(first: Piece, second: Piece, axis: int) -> tuple[int, int]:
    """The way from one piece to another along a target axis: in the source, and in the target."""
    source_axis = first.axes[axis]
    return second.box.start[source_axis] - first.box.start[source_axis], second.start[axis] - first.start[axis]


def _with_progression(piece: Piece, axis: int, count: int, distances: tuple[int, int]) -> Piece:
    """A piece with another number of elements along a target axis, at other distances in source and target."""
    source_axis, box, steps = piece.axes[axis], piece.box, piece.target_box.distances
    shape = _put(box.shape, source_axis, count)
    new_box = TensorSlice.stepped(box.start, shape, _put(box.distances, source_axis, distances[0]))
    return _with_steps(replace(piece, box=new_box), piece.start, _put(steps, axis, distances[1]))


def _in_runs(
    pieces: SortedPieces, shape: Shape, axis: int, length: int, runs: Progression, to: Progression
) -> Iterator[Piece]:
    """The pieces of runs of `length` positions of an axis, moved to other runs; progressions are of their starts."""
    # whichever makes fewer pieces, and the same for all parts of a fused parameter, so that they fit together again
    if runs.count <= max(runs.distance, to.distance):
        for number in range(runs.count):
            run = Progression(runs.start + number * runs.distance, 1, length)
            yield from _picked(pieces, shape, axis, run, Progression(to.start + number * to.distance, 1, length))
        return
    for place in range(length):
        every = replace(runs, start=runs.start + place)
        yield from _picked(pieces, shape, axis, every, replace(to, start=to.start + place))


def _picked(pieces: SortedPieces, shape: Shape, axis: int, every: Progression, to: Progression) -> Iterator[Piece]:
    """The pieces of a parameter of `shape` at some positions of an axis, moved to others."""
    low, high = (
        _put((0,) * len(shape), axis, every.start),
        _put(shape, axis, every.start + every.distance * every.count),
    )
    near = pieces.near(low, high)
    pieces.looked_at += len(near)
    if pieces.looked_at > _MAX_LOOKED_AT:
        raise PlanError(f"its pieces lie so that more than {_MAX_LOOKED_AT:,}, the limit, would have to be looked at")
    for piece in near:
        picked = piece.picked(axis, every, to)
        if picked is not None:
            yield picked


def _with_merged_axes(pieces: Iterable[Piece], rows: int) -> Iterator[Piece]:
    """Pieces of a parameter whose first two axes, the second of `rows`, become one."""
    for piece in pieces:
        # a run of each index of the first axis, or the rows at equal distances of each of the second: the fewer
        along = 0 if piece.shape[0] <= piece.shape[1] else 1
        for position in range(piece.start[along], piece.target_box.stop[along], piece.target_box.distances[along]):
            here = Progression(position, 1, 1)
            one = piece.picked(along, here, here)
            if one is not None:
                distances = one.target_box.distances
                start = one.start[0] * rows + one.start[1], *one.start[2:]
                step = distances[1] if along == 0 else distances[0] * rows
                yield _with_steps(_without_axis(one, along), start, (step, *distances[2:]))


def _take(taken: list[Piece], pieces: Iterable[Piece]) -> None:
    """Add pieces to others; PlanError if there are too many."""
    taken.extend(islice(pieces, MAX_PIECES + 1 - len(taken)))
    if len(taken) > MAX_PIECES:
        raise PlanError(f"it would be cut into more than {MAX_PIECES:,} pieces, the limit")


def _limited(pieces: Iterable[Piece]) -> Pieces:
    taken: list[Piece] = []
    _take(taken, pieces)
    return tuple(taken)


def _with_new_axis(piece: Piece, axis: int, index: int) -> Piece:
    """A piece at an index of an axis that its source lacks."""
    steps = (*piece.steps[:axis], 1, *piece.steps[axis:]) if piece.steps else ()
    start = (*piece.start[:axis], index, *piece.start[axis:])
    return replace(piece, axes=(*piece.axes[:axis], NEW_AXIS, *piece.axes[axis:]), start=start, steps=steps)


def _without_axis(piece: Piece, axis: int) -> Piece:
    """A piece without a target axis, along which it has one element."""
    start, steps = _left_out(piece.start, axis), _left_out(piece.target_box.distances, axis)
    return _with_steps(replace(piece, axes=_left_out(piece.axes, axis), start=start, steps=()), start, steps)


def _with_steps(piece: Piece, start: Shape, distances: Shape) -> Piece:
    """A piece at another place in the target, its elements at other distances there."""
    box = TensorSlice.stepped(start, piece.shape, distances)
    return replace(piece, start=start, steps=box.steps)


def _put(values: Shape, place: int, value: int) -> Shape:
    return (*values[:place], value, *values[place + 1 :])


def _left_out(values: Shape, place: int) -> Shape:
    return (*values[:place], *values[place + 1 :])

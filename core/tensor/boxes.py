"""Shards given box by box, as PyTorch's checkpoints list them: in any number, of any shapes, on any ranks.

Ranks with the same box own replicas. The boxes of a tensor *tile* it if every element lies in exactly one of them. A
sum of boxes is determined by its signed corners: the corner of a box counts +1 or -1, by turns along each axis. So
boxes tile a tensor if and only if their corners add up to those of the whole, and the first corner that does not is an
element in no box or in several.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product

from reshard.core.errors import LayoutError
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape, TensorSlice

_MAX_DIVIDED_AXES = 8
"""Real tensors are divided along up to three; a box has two to the power of that many corners."""
_MAX_CORNERS = 1 << 21
"""Limit for all boxes of a tensor, some 300 MB: 262,144 boxes divided along three axes."""


class ShardBoxes(Record, cache_hash=True, dict=True):
    """The boxes of a tensor of `shape`, and the ranks that own them.

    Attributes:
        owned: (stage rank, box), by ascending rank; a rank owns at most one box, which may be empty.
    """

    shape: Shape
    owned: tuple[tuple[int, TensorSlice], ...]

    @cached_property
    def owners(self) -> Mapping[TensorSlice, tuple[int, ...]]:
        """Box -> the ranks that own it, ascending; in the order of the lowest of each."""
        owners: dict[TensorSlice, list[int]] = {}
        for rank, box in self.owned:
            owners.setdefault(box, []).append(rank)
        return {box: tuple(ranks) for box, ranks in owners.items()}

    @cached_property
    def distinct(self) -> tuple[TensorSlice, ...]:
        """The boxes, each once."""
        return tuple(self.owners)

    def check_tiling(self) -> None:
        """Raise LayoutError unless the boxes tile the tensor."""
        check_tiling(self.distinct, self.shape)


def check_tiling(boxes: Sequence[TensorSlice], shape: Shape) -> None:
    """Raise LayoutError unless boxes tile a tensor of `shape`."""
    whole = TensorSlice.whole(shape)
    for number, box in enumerate(boxes):
        if len(box.start) != len(shape) or not whole.contains(box):
            raise LayoutError(f"the box {box} (number {number}) does not lie in its shape {list(shape)}")
    element, count = _first_untiled(boxes, shape)
    if count < 0:
        raise LayoutError(f"its shards are incomplete: element {list(element)} of {list(shape)} is in none")
    if count > 0:
        raise LayoutError(f"its shards overlap: element {list(element)} of {list(shape)} is in {count + 1} of them")


class BoxFinder:
    """Finds the boxes of a list that overlap another box; they are sorted along the axis with the most borders."""

    def __init__(self, boxes: Sequence[TensorSlice]) -> None:
        filled = [(number, box) for number, box in enumerate(boxes) if box.size]
        axes = range(len(filled[0][1].start)) if filled else range(0)
        self._axis = max(axes, key=lambda axis: len({box.start[axis] for _, box in filled}), default=None)
        if (axis := self._axis) is not None:
            filled.sort(key=lambda item: item[1].start[axis])
            self._starts = [box.start[axis] for _, box in filled]
            self._longest = max(box.shape[axis] for _, box in filled)
        self._filled = filled

    def overlapping(self, wanted: TensorSlice) -> Iterator[tuple[int, TensorSlice]]:
        """Yield the number and the common box of each box that overlaps the wanted one."""
        near = self._filled
        if self._axis is not None:
            first = bisect_left(self._starts, wanted.start[self._axis] - self._longest)
            near = near[first : bisect_left(self._starts, wanted.stop[self._axis])]
        for number, box in near:
            common = box.intersect(wanted)
            if common is not None:
                yield number, common


def _first_untiled(boxes: Sequence[TensorSlice], shape: Shape) -> tuple[Shape, int]:
    """The first element that is not in exactly one box, and how many too many (or too few, negative) hold it."""
    filled = [box for box in boxes if box.size]
    if not math.prod(shape):
        return (), 0
    whole = TensorSlice.whole(shape)
    axes = [axis for axis in range(len(shape)) if any(box.shape[axis] != shape[axis] for box in filled)]
    if len(axes) > _MAX_DIVIDED_AXES:
        raise LayoutError(f"its shards divide {len(axes)} axes, reshard allows {_MAX_DIVIDED_AXES}")
    if len(filled) << len(axes) > _MAX_CORNERS:
        raise LayoutError(
            f"it has {len(filled)} shards that divide {len(axes)} axes: these have more than the {_MAX_CORNERS} "
            "corners that reshard allows"
        )
    corners: Counter[Shape] = Counter()
    for box in filled:
        _add_corners(corners, box, axes, 1)
    _add_corners(corners, whole, axes, -1)
    wrong = min((corner for corner, count in corners.items() if count), default=None)
    if wrong is None:
        return (), 0
    element = [0] * len(shape)
    for axis, position in zip(axes, wrong, strict=True):
        element[axis] = position
    return tuple(element), corners[wrong]


def _add_corners(corners: Counter[Shape], box: TensorSlice, axes: Sequence[int], times: int) -> None:
    for ends in product((0, 1), repeat=len(axes)):
        corner = tuple(box.stop[axis] if end else box.start[axis] for axis, end in zip(axes, ends, strict=True))
        corners[corner] += times * (-1) ** sum(ends)

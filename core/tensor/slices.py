"""Boxes in a tensor's index space, and where their bytes lie.

A *slice* is a half-open box `start <= index < stop` per axis; it has no data. A *stepped* slice has every n-th index of
an axis, such as every other row. A *shard* is the data one rank holds of one parameter: its elements in C order.
`start` and `stop` count elements, `offset` and `_bytes` count bytes.
"""

import math
from collections.abc import Iterator
from operator import add, ge, gt, le, neg, sub

from reshard.core.runtime.records import Record

Shape = tuple[int, ...]

_MOST_BYTES = 2**63 - 1
TOO_LARGE = "too large (2^63 bytes or more, dimensions of 0 not counted)"
"""Message text for a shape that is not countable."""


def is_countable(shape: Shape, itemsize: int = 1) -> bool:
    """True if a signed 64-bit integer can count a tensor's bytes, and so each of its dimensions.

    Dimensions of 0 are left out, as in numpy: they would hide others that no file can hold.
    """
    return math.prod(filter(None, shape)) * max(itemsize, 1) <= _MOST_BYTES


class TensorSlice(Record):
    """A half-open box; a scalar is the box without axes, which has one element.

    Attributes:
        steps: distances between neighbors along each axis, 1 along axes with one element; empty if all are 1. Along an
            axis with a longer one, `stop` is the last index and 1.
    """

    start: Shape
    stop: Shape
    steps: Shape = ()

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise ValueError(f"start {self.start} and stop {self.stop} have different numbers of axes")
        # by map: a plan has millions of boxes
        if any(map(gt, self.start, self.stop)) or min(self.start, default=0) < 0:
            raise ValueError(f"not a box: start {self.start}, stop {self.stop}")
        if self.steps and not _are_steps(self.start, self.stop, self.steps):
            raise ValueError(f"not a stepped box: start {self.start}, stop {self.stop}, steps {self.steps}")

    @classmethod
    def whole(cls, shape: Shape) -> "TensorSlice":
        """Return the box of a whole tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def stepped(cls, start: Shape, shape: Shape, steps: Shape) -> "TensorSlice":
        """Return `shape` elements from `start` on, at distances `steps`; those along axes of one element are 1."""
        stop = tuple(
            low + (length - 1) * step + 1 if length else low
            for low, length, step in zip(start, shape, steps, strict=True)
        )
        steps = tuple(step if length > 1 else 1 for length, step in zip(shape, steps, strict=True))
        return cls(start, stop, steps if any(step != 1 for step in steps) else ())

    # not cached: Python 3.11's cached_property has one lock for all boxes, and waiting for it costs threads more
    @property
    def shape(self) -> Shape:
        """Number of elements along each axis."""
        if self.steps:
            return tuple(
                (high - low + step - 1) // step
                for low, high, step in zip(self.start, self.stop, self.steps, strict=True)
            )
        return tuple(map(sub, self.stop, self.start))

    @property
    def bounds(self) -> "TensorSlice":
        """The smallest box without steps that contains it."""
        return TensorSlice(self.start, self.stop) if self.steps else self

    @property
    def distances(self) -> Shape:
        """Distances between neighbors along each axis."""
        return self.steps or (1,) * len(self.start)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def intersect(self, other: "TensorSlice") -> "TensorSlice | None":
        """Return the common box, in the coordinates both share; None if they have no element in common.

        One of them may be stepped.
        """
        if other.steps:
            if self.steps:
                raise ValueError(f"{self} and {other} are both stepped")
            return other.intersect(self)
        if self.steps:
            return self._intersect_stepped(other)
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        if any(map(ge, start, stop)):
            return None
        return TensorSlice(start, stop)

    def relative_to(self, outer: "TensorSlice") -> "TensorSlice":
        """Return the same box in coordinates that begin at `outer.start`.

        Raises:
            ValueError: this box does not lie inside `outer`.
        """
        if not outer.contains(self):
            raise ValueError(f"{self} does not lie inside {outer}")
        return self.shifted(tuple(map(neg, outer.start)))

    def shifted(self, by: Shape) -> "TensorSlice":
        """The same box, `by` elements further along each axis."""
        if len(by) != len(self.start):
            raise ValueError(f"{self} cannot be shifted by {by}")
        return TensorSlice(tuple(map(add, self.start, by)), tuple(map(add, self.stop, by)), self.steps)

    def contains(self, other: "TensorSlice") -> bool:
        """True if `other` lies inside this box, which is not stepped."""
        if len(other.start) != len(self.start):
            raise ValueError(f"{self} and {other} have different numbers of axes")
        return all(map(le, self.start, other.start)) and all(map(ge, self.stop, other.stop))

    def scaled(self, factors: Shape) -> "TensorSlice":
        """Return the box, which is not stepped, with every axis multiplied by a factor."""
        return TensorSlice(
            tuple(low * factor for low, factor in zip(self.start, factors, strict=True)),
            tuple(high * factor for high, factor in zip(self.stop, factors, strict=True)),
        )

    def as_index(self) -> tuple[slice, ...]:
        """Return the numpy index of this box."""
        return tuple(map(slice, self.start, self.stop, self.distances))

    def _intersect_stepped(self, other: "TensorSlice") -> "TensorSlice | None":
        start, shape = [], []
        for low, high, step, other_low, other_high in zip(
            self.start, self.stop, self.steps, other.start, other.stop, strict=True
        ):
            first = low if other_low <= low else low + (other_low - low + step - 1) // step * step
            count = (min(high, other_high) - first + step - 1) // step
            if count < 1:
                return None
            start.append(first)
            shape.append(count)
        return TensorSlice.stepped(tuple(start), tuple(shape), self.steps)

    def __str__(self) -> str:
        steps = (f":{step}" if step != 1 else "" for step in self.distances)
        axes = (f"{low}:{high}{step}" for low, high, step in zip(self.start, self.stop, steps, strict=True))
        return f"[{', '.join(axes)}]"


def _are_steps(start: Shape, stop: Shape, steps: Shape) -> bool:
    """True if they are as `TensorSlice` has them, so that equal boxes are equal."""
    if len(steps) != len(start) or all(step == 1 for step in steps):
        return False
    return all(
        step == 1 or (step > 1 and high - low > step and (high - 1 - low) % step == 0)
        for low, high, step in zip(start, stop, steps, strict=True)
    )


def row_major_strides(shape: Shape) -> Shape:
    """Return the strides of a C-ordered array of `shape`, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


class Extent(Record):
    """Contiguous bytes of a file or a shard: `offset` from its first byte and `length`, in bytes."""

    offset: int
    length: int


def bounding_extent(box: TensorSlice, shard_shape: Shape, itemsize: int) -> Extent:
    """The smallest run of bytes of a shard that contains the whole of `box` (not empty, in shard coordinates)."""
    strides = row_major_strides(shard_shape)
    first = sum(low * stride for low, stride in zip(box.start, strides, strict=True))
    last = sum((high - 1) * stride for high, stride in zip(box.stop, strides, strict=True))
    return Extent(first * itemsize, (last - first + 1) * itemsize)


def contiguous_axis(box: TensorSlice, shard_shape: Shape) -> int:
    """Return the first axis from which on `box` is contiguous in a shard of `shard_shape`.

    For each index of the axes before it, the elements of `box` lie side by side: all later axes are whole, and the
    axis itself may be partial. 0 means that the whole box is contiguous; steps along the last axis, that nothing is.
    """
    distances = box.distances
    axis = len(shard_shape)
    while axis > 0:
        axis -= 1
        if distances[axis] != 1:
            axis += 1
            break
        if box.start[axis] != 0 or box.stop[axis] != shard_shape[axis]:
            break
    while axis > 0 and box.stop[axis - 1] - box.start[axis - 1] == 1:
        axis -= 1
    return axis


def contiguous_boxes(shape: Shape, start: int, stop: int, most: int) -> Iterator[TensorSlice]:
    """Yield elements `start` to `stop` of a C-ordered tensor of `shape` as contiguous boxes, in order.

    The boxes are as large as possible with at most `most` elements.
    """
    strides = row_major_strides(shape)
    position = start
    while position < stop:
        room = min(stop - position, most)
        index = [position // stride % length for stride, length in zip(strides, shape, strict=True)]
        axis = len(shape)
        # the outermost axis along which at least one whole index of everything inside fits
        while axis > 0 and not any(index[axis:]) and strides[axis - 1] <= room:
            axis -= 1
        low = list(index)
        high = [i + 1 for i in index]
        high[axis:] = shape[axis:]
        count = 1
        if shape:
            count = min(shape[axis] - index[axis], room // strides[axis])
            high[axis] = index[axis] + count
        yield TensorSlice(tuple(low), tuple(high))
        position += count * (strides[axis] if shape else 1)

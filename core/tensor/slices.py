"""Boxes in a tensor's index space, and where their bytes lie.

A *slice* is a half-open box `start <= index < stop` per axis; it has no data. A *shard* is the data one rank holds of
one parameter: its elements in C order. `start` and `stop` count elements, `offset` and `_bytes` count bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add, ge, gt, le, neg, sub

Shape = tuple[int, ...]

_MOST_BYTES = 2**63 - 1
TOO_LARGE = "too large (2^63 bytes or more, dimensions of 0 not counted)"
"""Message text for a shape that is not countable."""


def is_countable(shape: Shape, itemsize: int = 1) -> bool:
    """True if a signed 64-bit integer can count a tensor's bytes, and so each of its dimensions.

    Dimensions of 0 are left out, as in numpy: they would hide others that no file can hold.
    """
    return math.prod(filter(None, shape)) * max(itemsize, 1) <= _MOST_BYTES


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A half-open box; a scalar is the box without axes, which has one element."""

    start: Shape
    stop: Shape

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise ValueError(f"start {self.start} and stop {self.stop} have different numbers of axes")
        # by map: a parameter may have a box for each row
        if any(map(gt, self.start, self.stop)) or min(self.start, default=0) < 0:
            raise ValueError(f"not a box: start {self.start}, stop {self.stop}")

    @classmethod
    def whole(cls, shape: Shape) -> "TensorSlice":
        """Return the box of a whole tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

    # not cached: Python 3.11's cached_property has one lock for all boxes, and waiting for it costs threads more
    @property
    def shape(self) -> Shape:
        """Number of elements along each axis."""
        return tuple(map(sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def intersect(self, other: "TensorSlice") -> "TensorSlice | None":
        """Return the common box, in the coordinates both share; None if they have no element in common."""
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
        return TensorSlice(tuple(map(add, self.start, by)), tuple(map(add, self.stop, by)))

    def contains(self, other: "TensorSlice") -> bool:
        """True if `other` lies inside this box."""
        if len(other.start) != len(self.start):
            raise ValueError(f"{self} and {other} have different numbers of axes")
        return all(map(le, self.start, other.start)) and all(map(ge, self.stop, other.stop))

    def scaled(self, factors: Shape) -> "TensorSlice":
        """Return the box with every axis multiplied by a factor."""
        return TensorSlice(
            tuple(low * factor for low, factor in zip(self.start, factors, strict=True)),
            tuple(high * factor for high, factor in zip(self.stop, factors, strict=True)),
        )

    def as_index(self) -> tuple[slice, ...]:
        """Return the numpy index of this box."""
        return tuple(slice(low, high) for low, high in zip(self.start, self.stop, strict=True))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{low}:{high}" for low, high in zip(self.start, self.stop, strict=True)) + "]"


def row_major_strides(shape: Shape) -> Shape:
    """Return the strides of a C-ordered array of `shape`, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Extent:
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
    axis itself may be partial. 0 means that the whole box is contiguous.
    """
    axis = len(shard_shape)
    while axis > 0:
        axis -= 1
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

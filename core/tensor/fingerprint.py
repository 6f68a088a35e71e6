"""The logical fingerprint of a tensor: a sum over its elements that does not depend on the sharding.

Each element adds `(value + 1) * weight` modulo 2**64. The value is the element's bits taken as an unsigned integer; the
weight is the product of one pseudo-random odd number per axis, chosen by the axis and the element's index along it in
the whole tensor. The sum over disjoint boxes that fill a tensor is therefore the tensor's, for any boxes: equal
tensors have equal fingerprints under all shardings, and a rank adds its contribution without knowing the others'.

The weights, exactly:

- An index is two digits, `index = 256 * high + low`, and its weight the product of one for each.
- Elements of 1 or 2 bytes are taken as if 4 or 2 neighbors along the last axis, counted from the tensor's beginning,
  were one number of 32 bits: the weight of the last axis is that of `index // 4` (or 2), times the neighbor's place
  value. So a byte costs a quarter of what a 32-bit element costs.
- Elements of 8 bytes are two numbers of 32 bits, each with a weight of its own. As one number, bit 63 times any odd
  weight would be 2**63, and two flipped signs would cancel.

Changes that it detects:

- Any change of a single element of at most 4 bytes, always: its difference times an odd number is not 0 modulo 2**64.
  The same goes for an element that is dropped or counted twice, even one whose value is 0, because of the `+ 1`.
- Everything else with high probability over the choice of weights. Changes unrelated to the weights (elements or boxes
  that are moved, swapped, stale, shifted, of another dtype) are missed about once in 2**57 cases, or less often. The
  worst are changes of nothing but the uppermost bits, as of several signs: their weights count modulo 2**33 only, and
  all are odd, so that such a change is missed once in 2**32 cases. If they are the corners of a grid, and every other
  one changes the other way, factors are taken out, each of them even: of a grid in both digits of both axes of a
  matrix, which has 16 corners, that is once in 2**19 cases.
- Not: two elements of equal value that changed places, which is no change; nor shape and dtype, which must be compared
  separately.

The weights are the same everywhere and public: it is easy to make two different tensors with one fingerprint on
purpose, and the fingerprint reveals something of the contents. It finds mistakes and accidents; it is not a
cryptographic hash, does not prove a tensor's origin, and does not belong beside an encrypted one.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from string import ascii_letters

import numpy as np
from msgspec.structs import replace

from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape

MODULUS = 2**64
ELEMENT_BYTES = (1, 2, 4, 8)
"""Item sizes of elements that can be fingerprinted."""
TEXT_PATTERN = "^[0-9a-f]{16}$"
"""The pattern of `fingerprint_text`."""

_DIGIT = 256
_SHORTEST_ROW = 128
"""Shorter rows are summed several at once: starting one costs as much as some tens of elements."""
_FEWEST_WORDS = 8
"""Shorter rows of small elements are not divided into whole words and the elements before and after."""
_WORD = np.dtype(np.uint32)
_LANES = -1
"""Number of the axis along which the two words of an 8-byte element lie."""


def box_fingerprint(values: np.ndarray, start: Shape, steps: Shape | None = None) -> int:
    """Return a box's contribution to its tensor's fingerprint.

    Args:
        values: the box's elements as unsigned integers of their item size (1, 2, 4 or 8 bytes), of the box's shape and
            any strides. Opaque bytes are one axis of 1-byte elements.
        start: the box's first index in the whole tensor, along each axis.
        steps: distances between the box's elements in the whole tensor, along each axis; None: they are neighbors.

    Returns:
        A number below 2**64; disjoint boxes' are added modulo 2**64.

    Raises:
        ValueError: the values are not unsigned integers, or `start` has another number of axes.
    """
    # numpy gives single numbers for boxes without axes
    return int(box_fingerprints(np.asarray(values)[np.newaxis], start, steps)[0])


def box_fingerprints(values: np.ndarray, start: Shape, steps: Shape | None = None) -> np.ndarray:
    """Return the contributions of boxes of one shape and place, each to the fingerprint of a tensor of its own.

    Args:
        values: the boxes' elements as for `box_fingerprint`, of shape (boxes, *box's shape).
        start: the boxes' first index in their whole tensors, along each axis.
        steps: as for `box_fingerprint`.

    Returns:
        uint64 array of shape (boxes,).

    Raises:
        ValueError: the values are not unsigned integers, or `start` has another number of axes.
    """
    steps = steps or (1,) * len(start)
    if values.dtype.kind != "u" or not values.ndim - 1 == len(start) == len(steps):
        raise ValueError(f"{values.dtype} {list(values.shape[1:])} at {list(start)}: not a box of unsigned integers")
    sums = np.zeros(len(values), np.uint64)
    if not values.size:
        return sums
    axes = tuple(_Axis(number, begin, step=step) for number, (begin, step) in enumerate(zip(start, steps, strict=True)))
    for word_part in _in_words(_Part(values, axes)):
        for part in _in_digits(word_part, 0):
            sums += _sums(part)
    return sums


def combined(fingerprints: Iterable[int]) -> int:
    """Return the fingerprint of disjoint boxes together."""
    return sum(fingerprints) % MODULUS


def fingerprint_text(fingerprint: int) -> str:
    """Format as 16 hex digits."""
    return f"{fingerprint:016x}"


class _Axis(Record):
    """The weights of elements along one axis of an array.

    Attributes:
        number: the axis of the tensor.
        start: index in the tensor of the array's first element; of words or of high digits if it holds those.
        sharing: elements in a word, each of them by itself in the array.
        low: whether the low digit counts.
        high: whether the high digit counts; on an axis without low digits it is the index.
        step: distance in the tensor between neighbors in the array.
    """

    number: int
    start: int
    sharing: int = 1
    low: bool = True
    high: bool = True
    step: int = 1


class _Part(Record):
    """Some of the numbers of boxes.

    Attributes:
        numbers: unsigned integers; the array's first axis counts the boxes.
        axes: weights along each axis of a box.
        unit: the addend of each number: 1 for each element in it.
    """

    numbers: np.ndarray
    axes: tuple[_Axis, ...]
    unit: int = 1

    def cut(self, axis: int, begin: int, stop: int) -> "_Part":
        """Return elements `begin` to `stop` along a box's axis."""
        cut_axis = replace(self.axes[axis], start=self.axes[axis].start + begin * self.axes[axis].step)
        numbers = self.numbers[(slice(None),) * (axis + 1) + (slice(begin, stop),)]
        return _Part(numbers, (*self.axes[:axis], cut_axis, *self.axes[axis + 1 :]), self.unit)


def _in_words(part: _Part) -> Iterator[_Part]:
    """Boxes in numbers of 32 bits as far as possible, their axes in the order of memory."""
    order = sorted(range(len(part.axes)), key=lambda axis: -abs(part.numbers.strides[axis + 1]))
    last_number = len(part.axes) - 1
    numbers = part.numbers.transpose(0, *(axis + 1 for axis in order))
    axes = tuple(part.axes[axis] for axis in order)
    if numbers.itemsize == 2 * _WORD.itemsize:
        words = numbers.view([("low", _WORD), ("high", _WORD)])["low"]
        lanes = np.lib.stride_tricks.as_strided(words, (*words.shape, 2), (*words.strides, _WORD.itemsize))
        yield _Part(lanes, (*axes, _Axis(_LANES, 0)))
    elif numbers.itemsize == _WORD.itemsize or not axes:
        yield _Part(numbers, axes)
    else:
        sharing = _WORD.itemsize // numbers.itemsize
        single = tuple(replace(axis, sharing=sharing) if axis.number == last_number else axis for axis in axes)
        yield from _in_shared_words(_Part(numbers, single))


def _in_shared_words(part: _Part) -> Iterator[_Part]:
    """Elements of 1 or 2 bytes: whole words where neighbors in the tensor are neighbors in memory."""
    numbers, (*outer, last) = part.numbers, part.axes
    length, sharing = numbers.shape[-1], last.sharing
    first = -last.start % sharing
    count = (length - first) // sharing
    if sharing == 1 or numbers.strides[-1] != numbers.itemsize or last.step != 1 or count < _FEWEST_WORDS:
        yield part
        return
    stop = first + count * sharing
    unit = sum(1 << (8 * numbers.itemsize * place) for place in range(sharing))
    words = _Axis(last.number, (last.start + first) // sharing)
    yield _Part(numbers[..., first:stop].view(_WORD), (*outer, words), unit)
    for begin, end in ((0, first), (stop, length)):
        if begin < end:
            yield part.cut(len(part.axes) - 1, begin, end)


def _in_digits(part: _Part, axis: int) -> Iterator[_Part]:
    """Split long axes, from `axis` on, in two: the weights of low digits are few, and serve all high digits."""
    if axis == len(part.axes):
        yield part
        return
    split, length = part.axes[axis], part.numbers.shape[axis + 1]
    per_high = _DIGIT * split.sharing
    first = -split.start % per_high
    count = (length - first) // per_high
    if length < 2 * per_high or count < 1 or split.step != 1:
        yield from _in_digits(part, axis + 1)
        return
    stop = first + count * per_high
    whole = part.cut(axis, first, stop)
    shape = whole.numbers.shape
    digits = whole.numbers.reshape(*shape[: axis + 1], count, per_high, *shape[axis + 2 :])
    high = _Axis(split.number, (split.start + first) // per_high, low=False)
    low = replace(split, start=0, high=False)
    yield from _in_digits(_Part(digits, (*part.axes[:axis], high, low, *part.axes[axis + 1 :]), part.unit), axis + 2)
    for begin, end in ((0, first), (stop, length)):
        if begin < end:
            yield from _in_digits(part.cut(axis, begin, end), axis + 1)


def _sums(part: _Part) -> np.ndarray:
    """The sum over all numbers of each box, a few axes at a time, from the last."""
    numbers, axes, unit = part.numbers, part.axes, part.unit
    if not axes:
        return numbers.astype(np.uint64) + np.uint64(unit)
    while axes:
        kept, inner = len(axes), 1
        while kept and inner < _SHORTEST_ROW:
            kept -= 1
            inner *= numbers.shape[kept + 1]
        weights = np.array(1, np.uint64)
        for axis, length in zip(axes[kept:], numbers.shape[kept + 1 :], strict=True):
            weights = np.multiply.outer(weights, _weights(axis, length))
        units = int(weights.sum()) * unit % MODULUS
        letters = ascii_letters[: weights.ndim]
        numbers = np.einsum(f"...{letters},{letters}->...", numbers, weights) + np.uint64(units)
        axes, unit = axes[:kept], 0
    return numbers


@lru_cache(maxsize=64)
def _weights(axis: _Axis, length: int) -> np.ndarray:
    """The weights of an array's elements along an axis."""
    index = np.arange(axis.start, axis.start + length * axis.step, axis.step, dtype=np.uint64)
    if not axis.low:
        return _mixed(2 * axis.number + 1, index)
    word, place = np.divmod(index, np.uint64(axis.sharing))
    high, low = np.divmod(word, np.uint64(_DIGIT))
    weights = _mixed(2 * axis.number, low)
    if axis.high:
        weights *= _mixed(2 * axis.number + 1, high)
    return weights << place * np.uint64(8 * _WORD.itemsize // axis.sharing)


def _mixed(stream: int, index: np.ndarray) -> np.ndarray:
    """A pseudo-random odd number for each index: splitmix64's; each stream starts elsewhere in its period."""
    return _splitmix(index + _begin(stream)) | np.uint64(1)


@lru_cache(maxsize=64)
def _begin(stream: int) -> np.ndarray:
    return _splitmix(np.array([stream % MODULUS], np.uint64))


def _splitmix(state: np.ndarray) -> np.ndarray:
    mixed = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

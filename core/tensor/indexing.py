"""Basic indexing, as numpy has it: which elements of a tensor an index selects, and how they become the result.

Integers, slices with any step, `...` and `numpy.newaxis`. The elements of every such index are a stepped box; the axes
that integers drop, the directions of slices with negative steps and new axes are left to a second index, of the box's
values.
"""

import operator
from typing import Any

from reshard.core.errors import IndexingError
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape, TensorSlice


class Selection(Record):
    """The elements that an index selects.

    Attributes:
        box: the elements, in ascending order along each axis.
        arrange: the index that makes the result of the box's values.
    """

    box: TensorSlice
    arrange: tuple[Any, ...]


def select(index: Any, shape: Shape) -> Selection:
    """Return what an index selects of a tensor of `shape`.

    Raises:
        IndexingError: it is out of bounds, has too many axes, or is not a basic index.
    """
    items = _without_ellipsis(index if isinstance(index, tuple) else (index,), shape)
    starts: list[int] = []
    counts: list[int] = []
    steps: list[int] = []
    arrange: list[Any] = []
    axis = 0
    for item in items:
        if item is None or item is Ellipsis:
            arrange.append(item)
            continue
        length = shape[axis]
        if isinstance(item, slice):
            places = _places(item, length)
            arrange.append(slice(None, None, -1) if places.step < 0 else slice(None))
            places = places[::-1] if places.step < 0 else places
        else:
            places = range(_position(item, axis, length), length)[:1]
            arrange.append(0)
        starts.append(places.start if places else 0)
        counts.append(len(places))
        steps.append(places.step)
        axis += 1
    return Selection(TensorSlice.stepped(tuple(starts), tuple(counts), tuple(steps)), tuple(arrange))


def _without_ellipsis(items: tuple[Any, ...], shape: Shape) -> list[Any]:
    """The items with a slice of all for each axis that has none, behind the ellipsis, which stays, or at the end.

    An ellipsis that stays makes numpy return an array, not a scalar, for an index of integers.
    """
    for item in items:
        _check_basic(item)
    ellipses = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexingError("an index can only have a single ellipsis ('...')")
    indexed = sum(item is not None and item is not Ellipsis for item in items)
    if indexed > len(shape):
        raise IndexingError(f"too many indices: it is {len(shape)}-dimensional, but {indexed} were indexed")
    place = ellipses[0] + 1 if ellipses else len(items)
    return [*items[:place], *[slice(None)] * (len(shape) - indexed), *items[place:]]


def _check_basic(item: Any) -> None:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return
    # True is a mask, and a tensor of one element may call itself an integer
    if isinstance(item, bool) or getattr(item, "ndim", None) or not hasattr(item, "__index__"):
        kind = type(item).__name__
        raise IndexingError(
            f"cannot index by a {kind}: only by integers, slices, '...' and None. For masks and lists of indices, "
            "read it first: tensor[:][mask]"
        )


def _position(item: Any, axis: int, length: int) -> int:
    try:
        position = operator.index(item)
    except TypeError as error:  # numpy's bool and floats have `__index__` as well
        raise IndexingError(f"cannot index by a {type(item).__name__}: {error}") from error
    if not -length <= position < length:
        raise IndexingError(f"index {position} is out of bounds for axis {axis} with size {length}")
    return position % length


def _places(item: slice, length: int) -> range:
    try:
        return range(length)[item]
    except (TypeError, ValueError) as error:
        raise IndexingError(f"{error}: {item}") from error

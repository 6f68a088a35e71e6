"""Operations on parameters: what rules do to pieces and shapes, whatever names they have.

Each takes the composed inputs of a rule, and returns what becomes of them. A LayoutError says what does not fit.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from reshard.core.errors import LayoutError
from reshard.core.runtime.records import Record
from reshard.core.tensor.quantized import MXFP4_GROUP
from reshard.core.tensor.segments import (
    Piece,
    Pieces,
    clipped,
    joined,
    merged_axes,
    split,
    stacked,
    transposed,
    unmerged_axes,
    unstacked,
    whole_piece,
)
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.tensor.value_changes import UNCHANGED, Adaptation, BlockScale, ValueChanges, Zeroing

_MAX_TILES = 2**10
"""Of a parameter, side by side."""
_MAX_FACTOR_BYTES = 16 * 2**20
"""The factors of a matrix are in memory as a whole: with blocks of 128 by 128 those of 65,536 by 1,048,576."""


class Composed(Record):
    """A parameter under way: its name in messages, the pieces that it is made of, and its shape."""

    name: str
    pieces: Pieces
    shape: Shape


class Operation(Record):
    """What a rule does; `rule` is its name in messages, `verb` what it says of a parameter."""

    verb: ClassVar[str]
    rule: str

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:
        """Return the pieces and the shape of the result."""
        raise NotImplementedError

    def _axis_length(self, part: Composed, axis: int) -> int:
        if axis >= len(part.shape):
            raise LayoutError(f"{self.rule}: {part.name!r} has shape {list(part.shape)}, and no axis {axis}")
        return part.shape[axis]


class Transposed(Operation):
    """Axes reordered: reversed, or by `axes`."""

    verb = "transposed"
    axes: Shape

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        axes = self.axes or tuple(reversed(range(len(part.shape))))
        if len(axes) != len(part.shape):
            raise LayoutError(f"{self.rule}: orders {len(axes)} axes, {part.name!r} has shape {list(part.shape)}")
        return transposed(part.pieces, axes), tuple(part.shape[axis] for axis in axes)


class SplitOff(Operation):
    """The part `number` of a fused parameter."""

    verb = "split"
    axis: int
    shares: Shape
    groups: int
    number: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        length = self._axis_length(part, self.axis)
        if length % (sum(self.shares) * self.groups):
            each = "" if self.groups == 1 else f" in {self.groups} groups"
            raise LayoutError(
                f"{self.rule}: axis {self.axis} of {part.name!r} has {length} elements, which do not divide into "
                f"{sum(self.shares)} shares{each}"
            )
        pieces = split(part.pieces, part.shape, self.axis, self.shares, self.groups, self.number)
        return pieces, _with_length(part.shape, self.axis, length // sum(self.shares) * self.shares[self.number])


class Joined(Operation):
    """Parameters side by side; with `shares` their lengths have that proportion."""

    verb = "joined"
    axis: int
    groups: int
    shares: Shape = ()

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        first = inputs[0]
        for part in inputs:
            length = self._axis_length(part, self.axis)
            if length % self.groups:
                raise LayoutError(
                    f"{self.rule}: axis {self.axis} of {part.name!r} has {length} elements, which do not divide into "
                    f"{self.groups} groups"
                )
            if _with_length(part.shape, self.axis, 0) != _with_length(first.shape, self.axis, 0):
                raise LayoutError(
                    f"{self.rule}: {first.name!r} has shape {list(first.shape)}, {part.name!r} has "
                    f"{list(part.shape)}: they may differ along axis {self.axis} only"
                )
        lengths = [part.shape[self.axis] for part in inputs]
        if self.shares and any(
            length * sum(self.shares) != share * sum(lengths)
            for length, share in zip(lengths, self.shares, strict=True)
        ):
            raise LayoutError(
                f"{self.rule}: along axis {self.axis} {_names(inputs)} have {', '.join(map(str, lengths))} elements, "
                f"which is not {' : '.join(map(str, self.shares))}: correct 'parts'"
            )
        pieces = joined([(part.pieces, part.shape) for part in inputs], self.axis, self.groups)
        return pieces, _with_length(first.shape, self.axis, sum(lengths))


class Stacked(Operation):
    """Parameters of one shape along a new first axis."""

    verb = "stacked"

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        first = inputs[0]
        for part in inputs:
            if part.shape != first.shape:
                raise LayoutError(
                    f"{self.rule}: {first.name!r} has shape {list(first.shape)}, {part.name!r} has {list(part.shape)}"
                )
        return stacked([part.pieces for part in inputs]), (len(inputs), *first.shape)


class Unstacked(Operation):
    """One index of the first axis, which has `count`."""

    verb = "unstacked"
    count: int
    index: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        length = self._axis_length(part, 0)
        if length != self.count:
            raise LayoutError(
                f"{self.rule}: {part.name!r} has shape {list(part.shape)}, whose first axis has not {self.count} "
                "elements: correct 'count'"
            )
        return unstacked(part.pieces, part.shape, self.index), part.shape[1:]


class MergedAxes(Operation):
    """The first two axes become one; the first has `count` elements."""

    verb = "merged"
    count: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        rows = self._axis_length(part, 1)
        if part.shape[0] != self.count:
            raise LayoutError(
                f"{self.rule}: {part.name!r} has shape {list(part.shape)}, whose first axis has not {self.count} "
                "elements: correct 'count'"
            )
        return merged_axes(part.pieces, part.shape), (self.count * rows, *part.shape[2:])


class DividedAxis(Operation):
    """An axis, usually the first, becomes two, the first of which has `count` elements."""

    verb = "divided"
    count: int
    axis: int = 0

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        length = self._axis_length(part, self.axis)
        if length % self.count:
            axis = f"axis {self.axis}" if self.axis else "the first axis"
            raise LayoutError(
                f"{self.rule}: {axis} of {part.name!r} has {length} elements, which do not divide by {self.count}"
            )
        shape = (*part.shape[: self.axis], self.count, length // self.count, *part.shape[self.axis + 1 :])
        # with the axis in front, and then the two that it becomes back in its place
        others = tuple(axis for axis in range(len(part.shape)) if axis != self.axis)
        in_front = transposed(part.pieces, (self.axis, *others))
        divided = unmerged_axes(in_front, (length, *(part.shape[axis] for axis in others)), self.count)
        back = (*range(2, self.axis + 2), 0, 1, *range(self.axis + 2, len(shape)))
        return transposed(divided, back), shape


class Sliced(Operation):
    """Elements `start` to `stop` of an axis."""

    verb = "sliced"
    axis: int
    start: int
    stop: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        length = self._axis_length(part, self.axis)
        if self.stop > length:
            raise LayoutError(f"{self.rule}: axis {self.axis} of {part.name!r} has {length} elements, not {self.stop}")
        low, high = [0] * len(part.shape), list(part.shape)
        low[self.axis], high[self.axis] = self.start, self.stop
        pieces = clipped(part.pieces, TensorSlice(tuple(low), tuple(high)))
        return pieces, _with_length(part.shape, self.axis, self.stop - self.start)


class Padded(Operation):
    """An axis of `length` elements, those after the last one copies of it."""

    verb = "padded"
    axis: int
    length: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        length = self._axis_length(part, self.axis)
        if not 0 < length <= self.length:
            raise LayoutError(
                f"{self.rule}: axis {self.axis} of {part.name!r} has {length} elements, which cannot become "
                f"{self.length}"
            )
        low, high = [0] * len(part.shape), list(part.shape)
        low[self.axis] = length - 1
        last = clipped(part.pieces, TensorSlice(tuple(low), tuple(high)))
        parts = [(part.pieces, part.shape), *[(last, _with_length(part.shape, self.axis, 1))] * (self.length - length)]
        return joined(parts, self.axis, 1), _with_length(part.shape, self.axis, self.length)


class Repeated(Operation):
    """The same once more, under another name."""

    verb = "repeated"

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        return part.pieces, part.shape


class Added(Operation):
    """A number is added to the values."""

    verb = "added to"
    number: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        if any(piece.scale is not None for piece in part.pieces):
            raise LayoutError(f"{self.rule}: {part.name!r} has scaled values, to which no number can be added")
        return tuple(replace(piece, changes=piece.changes.increased(self.number)) for piece in part.pieces), part.shape


class Zeros(Operation):
    """Zeros in the shape of a parameter, or with an axis of another `length`."""

    verb = "made zeros"
    axis: int
    length: int

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        there = self._axis_length(part, self.axis)
        length = self.length or there
        if any(piece.scale is not None for piece in part.pieces):
            raise LayoutError(f"{self.rule}: {part.name!r} has scaled values, of which no zeros can be made")
        if not there or length > there * _MAX_TILES:
            raise LayoutError(
                f"{self.rule}: axis {self.axis} of {part.name!r} has {there:,} elements, too few for {length:,} zeros"
            )
        zeros = tuple(replace(piece, changes=ValueChanges(each=(Zeroing(),))) for piece in part.pieces)
        tiled = joined([(zeros, part.shape)] * -(-length // there), self.axis, 1)
        shape = _with_length(part.shape, self.axis, length)
        return clipped(tiled, TensorSlice.whole(shape)), shape


class Dequantized(Operation):
    """A matrix whose blocks are scaled by the elements of another."""

    verb = "dequantized"
    block: Shape

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        weight, scale = inputs
        if len(weight.shape) != len(self.block):
            raise LayoutError(f"{self.rule}: {weight.name!r} has shape {list(weight.shape)}, and must be a matrix")
        blocks = tuple(-(-length // side) for length, side in zip(weight.shape, self.block, strict=True))
        if scale.shape != blocks:
            raise LayoutError(
                f"{self.rule}: {weight.name!r} has shape {list(weight.shape)}, so {scale.name!r} must have "
                f"{list(blocks)}, not {list(scale.shape)}"
            )
        if 4 * math.prod(blocks) > _MAX_FACTOR_BYTES:
            raise LayoutError(
                f"{self.rule}: {scale.name!r} has {math.prod(blocks)} elements: its blocks are too small to be read"
            )
        [piece], [scale_piece] = weight.pieces, scale.pieces
        changes = _by_place(self.rule, weight.name, piece, BlockScale(scale_piece.source, self.block))
        return (replace(piece, changes=changes),), weight.shape


class Adapted(Operation):
    """A parameter of `shape` whose values an adapter changes."""

    verb = "adapted"
    shape: Shape

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        if part.shape != self.shape:
            raise LayoutError(
                f"{self.rule}: {part.name!r} has shape {list(part.shape)}, and the adapter is for {list(self.shape)}"
            )
        return tuple(
            replace(piece, changes=_by_place(self.rule, part.name, piece, Adaptation())) for piece in part.pieces
        ), part.shape


class Unpacked(Operation):
    """Experts in MXFP4, whose groups of 32 values are 16 bytes, with a scale for each."""

    verb = "unpacked"

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        blocks, scale = inputs
        if len(blocks.shape) != 4 or 2 * blocks.shape[3] != MXFP4_GROUP:
            raise LayoutError(
                f"{self.rule}: {blocks.name!r} has shape {list(blocks.shape)}, not experts, rows, groups and "
                f"{MXFP4_GROUP // 2} bytes"
            )
        if scale.shape != blocks.shape[:3]:
            raise LayoutError(
                f"{self.rule}: {blocks.name!r} has shape {list(blocks.shape)}, so {scale.name!r} must have "
                f"{list(blocks.shape[:3])}, not {list(scale.shape)}"
            )
        if math.prod(scale.shape[1:]) > _MAX_FACTOR_BYTES:
            raise LayoutError(f"{self.rule}: {scale.name!r} has too many elements for each expert to be read")
        shape = unpacked_shape(blocks.shape)
        [piece], [scale_piece] = blocks.pieces, scale.pieces
        factors = BlockScale(scale_piece.source, (1, 1, MXFP4_GROUP), is_packed=True)
        return (replace(whole_piece(shape), source=piece.source, changes=ValueChanges(factors)),), shape


def unpacked_shape(blocks: Shape) -> Shape:
    """Return the shape of the values of MXFP4 whose blocks have a shape."""
    experts, rows, groups, packed = blocks
    return experts, rows, groups * packed * 2


def _with_length(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _names(inputs: Sequence[Composed]) -> str:
    return ", ".join(repr(part.name) for part in inputs[:3]) + (" and others" if len(inputs) > 3 else "")


def _by_place(rule: str, name: str, piece: Piece, change: BlockScale | Adaptation) -> ValueChanges:
    """Change values as the source has them; a LayoutError if something else becomes of them before."""
    if piece.changes != UNCHANGED:
        raise LayoutError(
            f"{rule}: the values of {name!r} can only be changed as the source has them, before other steps"
        )
    return ValueChanges(change)

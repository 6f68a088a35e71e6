"""Where each parameter is in the flat groups that ranks share: pure, from shapes and lengths alone.

Stages 1 and 2 put the parameters of a group one after the other into one row, which is cut into parts of equal length,
one for each rank, wherever a cut falls. Stage 3 cuts each parameter itself into pieces of equal length; a rank's pieces
lie one after the other. The last elements of a row, or of a parameter's last pieces, may be padding.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from reshard.core.errors import LayoutError
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.placed_shards import PlacedShard
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted
from reshard.core.tensor.slices import Extent, Shape, TensorSlice, contiguous_boxes

_MOST_BOXES = 1 << 14


class Piece(Record):
    """Elements `start` to `stop` of a parameter, in C order, which a rank has from `offset` of its part on."""

    rank: int
    offset: int
    start: int
    stop: int


class FlatParameter(Record):
    """A parameter, and its pieces in the parts of one group."""

    name: str
    shape: Shape
    group: int
    pieces: tuple[Piece, ...]


class JoinedGroup(Record):
    """The row of a group in stages 1 and 2: `length` elements, in parts of `part_length`."""

    parameters: tuple[FlatParameter, ...]
    length: int
    part_length: int

    def content_of(self, rank: int) -> int:
        """Return how many elements of a rank's part are not the padding at the end of the row."""
        return min(max(self.length - rank * self.part_length, 0), self.part_length)


def joined_group(
    group: int, shapes: Mapping[str, Shape], alignment: Sequence[int] | None, part_length: int, ranks: int
) -> JoinedGroup:
    """Return the places of parameters in a row; `alignment` elements are after each of them.

    Raises:
        LayoutError: there is not an alignment for each, or the parts of all ranks are shorter than the parameters.
    """
    if alignment is None:
        alignment = [0] * len(shapes)
    if len(alignment) != len(shapes):
        raise LayoutError(
            f"group {group} has {counted(len(alignment), 'padding')} of parameters (param_alignment_paddings), and "
            f"{counted(len(shapes), 'parameter')}"
        )
    length = sum(math.prod(shape) for shape in shapes.values()) + sum(alignment)
    if length > part_length * ranks:  # it bounds the number of pieces, too
        raise LayoutError(
            f"the parameters of group {group} take {length} elements, the parts of {counted(ranks, 'rank')} have "
            f"{part_length * ranks}"
        )
    parameters, position = [], 0
    for (name, shape), padding in zip(shapes.items(), alignment, strict=True):
        count = math.prod(shape)
        pieces = tuple(_cut(position, position + count, part_length))
        parameters.append(FlatParameter(name, shape, group, pieces))
        position += count + padding
    return JoinedGroup(tuple(parameters), length, part_length)


def _cut(start: int, stop: int, part_length: int) -> Iterator[Piece]:
    """The pieces of the elements `start` to `stop` of a row."""
    position = start
    while position < stop:
        rank, offset = divmod(position, part_length)
        count = min(stop - position, part_length - offset)
        yield Piece(rank, offset, position - start, position - start + count)
        position += count


def partitioned_groups(
    shapes: Sequence[Mapping[str, Shape]], lengths: Sequence[int], ranks: int
) -> list[FlatParameter]:
    """Return the places of parameters in stage 3, whose groups have these lengths on every rank.

    Raises:
        LayoutError: the parameters do not fill them exactly.
    """
    parameters, group, position = [], 0, 0
    for name, shape in ((name, shape) for each in shapes for name, shape in each.items()):
        count = math.prod(shape)
        length = share_length(shape, ranks)
        while length and group < len(lengths) and position == lengths[group]:
            group, position = group + 1, 0
        if length and (group == len(lengths) or position + length > lengths[group]):
            raise LayoutError(f"{name!r} does not fit: the flat groups have {sum(lengths)} elements on each rank")
        pieces = tuple(_parts(position, count, length))
        parameters.append(FlatParameter(name, shape, group, pieces))
        position += length
    used = sum(lengths[:group]) + position
    if used != sum(lengths):
        raise LayoutError(f"the flat groups have {sum(lengths)} elements on each rank, its parameters take {used}")
    return parameters


def share_length(shape: Shape, ranks: int) -> int:
    """Return how many elements of a parameter each rank has in stage 3, with padding."""
    return -(-math.prod(shape) // ranks)


def partitioned(name: str, shape: Shape, ranks: int) -> FlatParameter:
    """Return the places of a parameter that is alone in its group: of one without an optimizer, in stage 3."""
    count = math.prod(shape)
    return FlatParameter(name, shape, 0, tuple(_parts(0, count, share_length(shape, ranks))))


def _parts(offset: int, count: int, length: int) -> Iterator[Piece]:
    """The pieces of a parameter of `count` elements, `length` of them on each rank."""
    for rank, start in enumerate(range(0, count, length) if length else ()):
        yield Piece(rank, offset, start, min(start + length, count))


def placed(name: str, parameter: FlatParameter, parts: Sequence[StoredTensor]) -> Iterator[tuple[int, PlacedShard]]:
    """Yield the shards of a tensor that lies in the parts of ranks as a parameter does, each with its rank.

    Args:
        name: its own name: that of the parameter, or of a state.
        parameter: whose places it has.
        parts: each rank's row of the group.
    """
    if not parameter.pieces:
        yield 0, PlacedShard.whole(name, _run(parts[0], parameter.shape, 0))
    for piece in parameter.pieces:
        offset = piece.offset
        for box in _boxes(parameter.shape, piece.start, piece.stop):
            shape = box.shape
            yield piece.rank, PlacedShard(name, parameter.shape, box, _run(parts[piece.rank], shape, offset))
            offset += math.prod(shape)


@lru_cache(_MOST_BOXES)
def _boxes(shape: Shape, start: int, stop: int) -> tuple[TensorSlice, ...]:
    """Boxes of elements of a shape: the layers of a model have the same ones."""
    return tuple(contiguous_boxes(shape, start, stop, stop - start))


def _run(row: StoredTensor, shape: Shape, offset: int) -> StoredTensor:
    """Elements of a row from `offset` on, as a tensor of a shape."""
    item = row.dtype.itemsize
    start = row.extent.offset if row.extent else 0
    return StoredTensor(row.dtype, shape, Extent(start + offset * item, math.prod(shape) * item), None, crc=row.crc)

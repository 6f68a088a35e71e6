"""How one parameter is sharded over the devices of one pipeline stage.

A *layout* is a parameter's entry in a strategy file: a device matrix, a tensor map, an optimizer shard. A *shard grid*
follows from it for a tensor of a given number of axes. Axes are divided as a whole, by model parallelism first and by
the optimizer shard inside it on axis 0, so a shard is always one box and the shards of a grid fill the tensor once.
Other frameworks list the box of each rank instead: such a layout has `boxes`, and a grid whose cells are these.

Ranks here are stage ranks: 0 .. devices-1 inside one stage, the row-major coordinates of the device matrix. Device axes
are numbered from the right in tensor maps (0 is the rightmost), as in MindSpore's files.
"""

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import attrgetter

import numpy as np
from msgspec.structs import replace

from reshard.core.errors import LayoutError
from reshard.core.runtime.records import Record
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.slices import Shape, TensorSlice

ALL_REPEATED_AXES = -1
"""`optimizer_shard_size` of a layout whose optimizer shard uses every repeated device axis."""

_SHARDING = attrgetter(
    *("device_matrix", "tensor_map", "nested", "optimizer_shard_step", "optimizer_shard_size", "field"),
    *("param_split_shape", "indices_offset", "boxes"),
)
"""What decides a parameter's shards, and so whether two layouts are equal."""


class ParameterLayout(Record, dict=True):
    """One parameter's entry in a strategy file.

    Attributes:
        device_matrix: sizes of the device axes, the leftmost one slowest.
        tensor_map: per tensor axis the device axes that divide it, slowest first; empty if it is not divided.
        nested: the file gave one list per tensor axis. A flat list of several numbers may stand for a tensor of as
            many axes or for a nested map of a 1-d one: only the tensor's number of axes decides.
        optimizer_shard_step: distance between the ranks of an optimizer shard; 0: no optimizer shard. It never
            changes the placement.
        optimizer_shard_size: pieces into which the optimizer shard divides each model-parallel slice; -1: as many as
            all repeated axes give, 0: none.
        field: number of the embedding table's field, for uneven shards.
        param_split_shape: lengths of the pieces of axis 0 if they are uneven, else empty.
        indices_offset: goes with `param_split_shape`; kept, though it does not change the placement.
        tensor_shape: shape of the whole tensor, which only JSON strategy files have; not compared.
        boxes: the box of each rank, which then decides alone; None: the grid that the rest describes.
    """

    device_matrix: Shape
    tensor_map: tuple[Shape, ...]
    nested: bool = False
    optimizer_shard_step: int = 0
    optimizer_shard_size: int = 0
    field: int = 0
    param_split_shape: Shape = ()
    indices_offset: Shape = ()
    tensor_shape: Shape | None = None
    boxes: ShardBoxes | None = None

    def __eq__(self, other: object) -> bool:
        """Compare everything but the tensor's shape."""
        return self is other or (isinstance(other, ParameterLayout) and _SHARDING(self) == _SHARDING(other))

    # a strategy has thousands of parameters and few layouts, each hashed for every parameter, several times
    def __hash__(self) -> int:
        """Hash what is compared, once."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(_SHARDING(self))

    @property
    def is_uneven(self) -> bool:
        """True if ranks may own shards of different shapes."""
        return bool(self.param_split_shape) or self.boxes is not None

    @property
    def device_count(self) -> int:
        """Devices of the stage."""
        return math.prod(self.device_matrix)

    def shard_grid(self, axis_count: int) -> "ShardGrid":
        """Return the grid of a tensor with `axis_count` axes.

        Raises:
            LayoutError: the layout contradicts itself or does not fit a tensor of that many axes.
        """
        if self.boxes is not None:
            return _box_grid(self.boxes, self.device_count, axis_count)
        return _shard_grid(self, axis_count)

    def map_for(self, axis_count: int) -> tuple[Shape, ...]:
        """Return the tensor map for a tensor with `axis_count` axes: per axis the device axes, counted from the right.

        Raises:
            LayoutError: the map has another number of axes, or names a device axis that does not exist or twice.
        """
        tensor_map = self.tensor_map
        if axis_count == 1 and len(tensor_map) > 1 and not self.nested and all(tensor_map):
            tensor_map = (tuple(axis for axes in tensor_map for axis in axes),)
        if len(tensor_map) != axis_count:
            raise LayoutError(f"its layout has {len(tensor_map)} tensor axes, the tensor has {axis_count}")
        named = [axis for axes in tensor_map for axis in axes]
        for axis in named:
            if not 0 <= axis < len(self.device_matrix):
                raise LayoutError(f"its tensor map names device axis {axis}, the device matrix is {self.device_matrix}")
        if len(set(named)) != len(named):
            raise LayoutError(f"its tensor map {self.tensor_map} names a device axis twice")
        return tensor_map

    def folded(self, axis_count: int) -> "ParameterLayout":
        """Return the layout of the same shards without an optimizer shard, for a tensor with `axis_count` axes.

        The device axes that the optimizer shard uses follow those of tensor axis 0; one that it uses in part is split
        in two in the device matrix.

        Raises:
            LayoutError: the layout contradicts itself or does not fit a tensor of that many axes.
        """
        tensor_map = self.map_for(axis_count)
        used = dict(_optimizer_shard_axes(self, tensor_map))
        matrix: list[int] = []
        places: dict[int, int] = {}  # device axis from the left -> its place in the new matrix
        for axis, length in enumerate(self.device_matrix):
            part = used.get(axis, length)
            matrix += [part] if part == length else [length // part, part]
            places[axis] = len(matrix) - 1
        last, new_last = len(self.device_matrix) - 1, len(matrix) - 1
        entries = [[new_last - places[last - axis] for axis in axes] for axes in tensor_map]
        if entries:
            entries[0] += [new_last - places[axis] for axis in used]
        return replace(
            self,
            device_matrix=tuple(matrix),
            tensor_map=tuple(map(tuple, entries)),
            nested=True,
            optimizer_shard_step=0,
            optimizer_shard_size=0,
        )


class ShardGrid(Record, dict=True):
    """The division of a tensor into shards, and the shard of each stage rank.

    A *cell* is a place in the grid: an index along each axis. The box in a cell is a shard; ranks in the same cell own
    replicas of it.

    Attributes:
        pieces: number of cells along each tensor axis, the optimizer shard included.
        uneven: lengths of the shards along axis 0 if the layout gives them one by one, else empty.
        cells: int array of shape (devices, tensor axes): each stage rank's cell.
    """

    pieces: Shape
    uneven: Shape
    cells: np.ndarray

    def __eq__(self, other: object) -> bool:
        """Compare the shards, and which rank owns which."""
        return self is other or (
            isinstance(other, ShardGrid)
            and (self.pieces, self.uneven) == (other.pieces, other.uneven)
            and np.array_equal(self.cells, other.cells)
        )

    def __hash__(self) -> int:
        return hash((self.pieces, self.uneven))

    @property
    def device_count(self) -> int:
        """Devices of the stage."""
        return len(self.cells)

    @property
    def is_whole(self) -> bool:
        """True if every rank owns the whole tensor."""
        return math.prod(self.pieces) == 1

    @cached_property
    def owners(self) -> dict[Shape, tuple[int, ...]]:
        """Cell -> the stage ranks that own its shard, in ascending order."""
        owners: dict[Shape, list[int]] = {}
        for rank, cell in enumerate(self._cells):
            owners.setdefault(cell, []).append(rank)
        return {cell: tuple(ranks) for cell, ranks in owners.items()}

    @cached_property
    def _cells(self) -> list[Shape]:
        return list(map(tuple, self.cells.tolist()))

    @cached_property
    def cell_numbers(self) -> np.ndarray:
        """Int array of shape (devices,): the number of each stage rank's cell in the order of `owners`."""
        numbers = {cell: number for number, cell in enumerate(self.owners)}
        return np.array([numbers[cell] for cell in self._cells], dtype=np.int64)

    @cached_property
    def owner_table(self) -> np.ndarray:
        """Int array of shape (cells, most owners of a cell): `owners` row by row, filled up with -1."""
        table = np.full((len(self.owners), max(map(len, self.owners.values()), default=0)), -1, dtype=np.int64)
        for row, ranks in zip(table, self.owners.values(), strict=True):
            row[: len(ranks)] = ranks
        return table

    @cached_property
    def are_owners(self) -> np.ndarray:
        """Bool array of shape (devices,): which stage ranks own a shard."""
        return np.ones(self.device_count, np.bool_)

    def cell_of(self, stage_rank: int) -> Shape:
        """Return a rank's cell."""
        return self._cells[stage_rank]

    def bounds(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the borders of the shards along each axis of a whole tensor of `shape`.

        Raises:
            LayoutError: the shape does not divide.
        """
        return tuple(self._axis_bounds(axis, length) for axis, length in enumerate(shape))

    def box_of(self, stage_rank: int, shape: Shape) -> TensorSlice:
        """Return the box of a whole tensor of `shape` that a rank owns.

        Raises:
            LayoutError: the shape does not divide.
        """
        return _box(self, shape, self.cell_of(stage_rank))

    def whole_shape(self, stage_rank: int, shard_shape: Shape) -> Shape:
        """Return the shape of the whole tensor, of which a rank owns a shard of `shard_shape`.

        Raises:
            LayoutError: shards are uneven and this one does not have its length.
        """
        shape = tuple(length * count for length, count in zip(shard_shape, self.pieces, strict=True))
        if not self.uneven:
            return shape
        shape = (sum(self.uneven), *shape[1:])
        expected = self.box_of(stage_rank, shape).shape[0]
        if expected != shard_shape[0]:
            raise LayoutError(
                f"its param_split_shape {list(self.uneven)} gives this rank {expected} rows, "
                f"its shard has shape {list(shard_shape)}"
            )
        return shape

    def _axis_bounds(self, axis: int, length: int) -> Shape:
        if axis == 0 and self.uneven:
            if sum(self.uneven) != length:
                raise LayoutError(f"axis 0 has {length} elements, its param_split_shape {list(self.uneven)} others")
            return (0, *accumulate(self.uneven))
        count = self.pieces[axis]
        if length % count:
            raise LayoutError(f"axis {axis} has {length} elements, which {count} devices cannot share evenly")
        step = length // count
        return tuple(range(0, length + 1, step)) if step else (0,) * (count + 1)


class BoxGrid(ShardGrid, kw_only=True):
    """Shards given box by box. The cell of a rank is (its box's number,); ranks without a box share the cell (-1,).

    `bounds` are the borders of all boxes along each axis, so they do not give the box in a cell.
    """

    boxes: ShardBoxes

    def __eq__(self, other: object) -> bool:
        """Compare the boxes as well."""
        return isinstance(other, BoxGrid) and self.boxes == other.boxes and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.pieces, self.boxes))

    @property
    def is_whole(self) -> bool:
        """Return False: a box may be all of the tensor, but not every rank owns it."""
        return False

    @cached_property
    def owners(self) -> dict[Shape, tuple[int, ...]]:
        """Cell -> the stage ranks that own its box."""
        return {(number,): ranks for number, ranks in enumerate(self.boxes.owners.values())}

    @cached_property
    def cell_numbers(self) -> np.ndarray:
        """Int array of shape (devices,): the number of each stage rank's box; any, for ranks without one."""
        numbers: np.ndarray = np.maximum(self.cells[:, 0], 0)
        return numbers

    @cached_property
    def are_owners(self) -> np.ndarray:
        """Bool array of shape (devices,): which stage ranks own a box."""
        owners: np.ndarray = self.cells[:, 0] >= 0
        return owners

    def cell_of(self, stage_rank: int) -> Shape:
        """Return a rank's cell."""
        return (int(self.cells[stage_rank, 0]),)

    def box_in(self, cell: Shape) -> TensorSlice:
        """Return the box in a cell: an empty one at the tensor's end in the cell of ranks that own none."""
        [number] = cell
        return TensorSlice(self.boxes.shape, self.boxes.shape) if number < 0 else self.boxes.distinct[number]

    def bounds(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the borders of the boxes along each axis of the whole tensor.

        Raises:
            LayoutError: the tensor has another shape.
        """
        self._check_shape(shape)
        filled = [box for box in self.boxes.distinct if box.size]
        return tuple(
            tuple(sorted({0, length, *(edge for box in filled for edge in (box.start[axis], box.stop[axis]))}))
            for axis, length in enumerate(shape)
        )

    def box_of(self, stage_rank: int, shape: Shape) -> TensorSlice:
        """Return the box that a rank owns.

        Raises:
            LayoutError: the whole tensor has another shape.
        """
        self._check_shape(shape)
        return self.box_in(self.cell_of(stage_rank))

    def whole_shape(self, stage_rank: int, shard_shape: Shape) -> Shape:
        """Return the shape of the whole tensor.

        Raises:
            LayoutError: the rank's box has another shape.
        """
        box = self.box_in(self.cell_of(stage_rank))
        if box.shape != shard_shape:
            raise LayoutError(f"its box {box} does not have the shape of its shard, {list(shard_shape)}")
        return self.boxes.shape

    def _check_shape(self, shape: Shape) -> None:
        if shape != self.boxes.shape:
            raise LayoutError(f"its shape is {list(shape)}, its boxes are of a tensor of {list(self.boxes.shape)}")


def cell_box(bounds: Sequence[Shape], cell: Shape) -> TensorSlice:
    """Return the box in a cell of a grid with `bounds` along each axis."""
    return TensorSlice(
        tuple(edges[index] for edges, index in zip(bounds, cell, strict=True)),
        tuple(edges[index + 1] for edges, index in zip(bounds, cell, strict=True)),
    )


def whole_layout(axis_count: int, device_count: int = 1) -> ParameterLayout:
    """Return the layout of a tensor that each of `device_count` devices owns whole."""
    return ParameterLayout((device_count,), ((),) * axis_count, nested=True)


def boxes_layout(boxes: ShardBoxes, device_count: int) -> ParameterLayout:
    """Return the layout of a tensor whose shards are given box by box, over `device_count` devices."""
    axes = ((),) * len(boxes.shape)
    return ParameterLayout((device_count,), axes, nested=True, tensor_shape=boxes.shape, boxes=boxes)


@lru_cache(maxsize=4096)
def _box(grid: ShardGrid, shape: Shape, cell: Shape) -> TensorSlice:
    """The box in a cell: a rank's shards of many parameters have the same."""
    return cell_box(grid.bounds(shape), cell)


@lru_cache(maxsize=4096)
def _box_grid(boxes: ShardBoxes, device_count: int, axis_count: int) -> BoxGrid:
    if axis_count != len(boxes.shape):
        raise LayoutError(f"its layout has {len(boxes.shape)} tensor axes, the tensor has {axis_count}")
    if any(not 0 <= rank < device_count for rank, _ in boxes.owned):
        raise LayoutError(f"its boxes are of ranks up to {boxes.owned[-1][0]}, of {device_count} devices")
    cells = np.full((device_count, 1), -1, dtype=np.int64)
    for number, ranks in enumerate(boxes.owners.values()):
        cells[list(ranks), 0] = number
    return BoxGrid((len(boxes.distinct), *(1,) * (axis_count - 1)), (), cells, boxes=boxes)


@lru_cache(maxsize=4096)
def _shard_grid(layout: ParameterLayout, axis_count: int) -> ShardGrid:
    if any(size < 1 for size in layout.device_matrix):
        raise LayoutError(f"its device matrix is {list(layout.device_matrix)}")
    tensor_map = layout.map_for(axis_count)
    matrix = layout.device_matrix
    coordinates = np.stack(np.unravel_index(np.arange(layout.device_count), matrix or (1,)), axis=1)
    pieces = []
    cells = np.zeros((layout.device_count, axis_count), dtype=np.int64)
    for tensor_axis, device_axes in enumerate(tensor_map):
        used = [(len(matrix) - 1 - axis, matrix[-1 - axis]) for axis in device_axes]
        cells[:, tensor_axis] = _mixed_radix(coordinates, used)
        pieces.append(math.prod(size for _, size in used))
    uneven = layout.param_split_shape
    if uneven and (not pieces or len(uneven) != pieces[0] or min(uneven) < 0):
        raise LayoutError(f"its param_split_shape {list(uneven)} does not give one length for each piece of axis 0")
    shard_axes = _optimizer_shard_axes(layout, tensor_map)
    if shard_axes:
        count = math.prod(size for _, size in shard_axes)
        if any(length % count for length in uneven):
            raise LayoutError(f"its param_split_shape {list(uneven)} does not divide by its optimizer shard {count}")
        uneven = tuple(length // count for length in uneven for _ in range(count))
        cells[:, 0] = cells[:, 0] * count + _mixed_radix(coordinates, shard_axes)
        pieces[0] *= count
    return ShardGrid(tuple(pieces), uneven, cells)


def _mixed_radix(coordinates: np.ndarray, used: Sequence[tuple[int, int]]) -> np.ndarray:
    """Each device's index along a tensor axis; `used`: (device axis from the left, size), slowest first."""
    index = np.zeros(len(coordinates), dtype=np.int64)
    for axis, size in used:
        index = index * size + coordinates[:, axis] % size
    return index


def _optimizer_shard_axes(layout: ParameterLayout, tensor_map: tuple[Shape, ...]) -> list[tuple[int, int]]:
    """The device axes of the optimizer shard as (axis from the left, size used), leftmost first.

    Repeated axes are used from the right until their product is the shard's size; the last one may be used in part.
    """
    size = layout.optimizer_shard_size
    if size == 0 or layout.optimizer_shard_step == 0:
        return []
    if not tensor_map:
        raise LayoutError("it has an optimizer shard, but no axis that could be cut")
    matrix = layout.device_matrix
    named = {len(matrix) - 1 - axis for axes in tensor_map for axis in axes}
    repeated = [(axis, length) for axis, length in enumerate(matrix) if axis not in named and length > 1]
    where = f"device matrix {list(matrix)}, tensor map {[list(axes) for axes in layout.tensor_map]}"
    if not repeated:
        raise LayoutError(f"it has an optimizer shard of size {size}, but no device axis is left for it ({where})")
    if not layout.nested and len(repeated) == 1:
        step = math.prod(matrix[repeated[0][0] + 1 :])
        if layout.optimizer_shard_step != step:
            raise LayoutError(f"its optimizer shard has step {layout.optimizer_shard_step}, not {step} ({where})")
    if size == ALL_REPEATED_AXES:
        return repeated
    remaining = size
    used: list[tuple[int, int]] = []
    for axis, length in reversed(repeated):
        part = math.gcd(remaining, length)
        if remaining < 1 or part not in (remaining, length):
            break
        used.insert(0, (axis, part))
        remaining //= part
        if remaining == 1:
            return used
    raise LayoutError(f"an optimizer shard of size {size} cannot be taken from the repeated device axes ({where})")

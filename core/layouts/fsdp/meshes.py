"""The mesh of ranks in a DTensor's pickle: its size along each axis, and where the rank of the file is in it.

Since PyTorch 2.9 a mesh is a layout, of lengths and strides, over a list of the ranks of the whole; before, it is a
tensor of ranks. That tensor's values are in a list as well, so they need not be read from the file.
"""

import math
from collections.abc import Mapping, Sequence

from reshard.core.errors import LayoutError
from reshard.core.files.torch_file import text_fields
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.pickled import PickledObject
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape, row_major_strides

_MAX_AXES = 16
_NO_MESH = "its mesh of ranks is not one that PyTorch saves"


class Mesh(Record):
    """Ranks in a grid.

    Attributes:
        sizes: of each axis.
        coordinates: of the rank whose file it is from.
    """

    sizes: Shape
    coordinates: Shape


class _Axis(Record):
    """An axis, which may be several of the whole mesh in one: lengths, and strides in its list of ranks."""

    lengths: Shape
    strides: Shape

    @property
    def size(self) -> int:
        return math.prod(self.lengths)

    def coordinate_of(self, position: int) -> int:
        """Return the coordinate along it of the rank at a position of the list."""
        coordinate = 0
        for length, stride in zip(self.lengths, self.strides, strict=True):
            coordinate = coordinate * length + position // stride % length
        return coordinate


def parse_mesh(value: object, rank: int, world: int) -> Mesh:
    """Return the mesh in the file of a rank, of `world` ranks.

    Raises:
        LayoutError: it is damaged, or of other ranks; says what is wrong.
    """
    fields = _state(value)
    own = fields.get("_rank", rank)
    if type(own) is not int or own != rank:
        raise LayoutError(
            f"its mesh is that of rank {str(own)[:20]}, not of rank {rank}: the file was renamed, or copied over "
            "another"
        )
    is_tensor = isinstance(fields.get("mesh"), StoredTensor)
    axes = _tensor_axes(fields["mesh"]) if is_tensor else _layout_axes(fields.get("_layout"))
    if not 1 <= len(axes) <= _MAX_AXES or math.prod(axis.size for axis in axes) > world:
        raise LayoutError(f"its mesh has the sizes {[axis.size for axis in axes][:_MAX_AXES]}, with {world} ranks")
    sizes = tuple(axis.size for axis in axes)
    coordinates = _integers(fields.get("_coordinate_on_dim"))
    if len(coordinates) != len(axes) or any(c >= size for c, size in zip(coordinates, sizes, strict=True)):
        raise LayoutError(f"rank {rank} has the coordinates {list(coordinates)[:_MAX_AXES]} in a mesh of {list(sizes)}")
    ranks = fields.get("_flatten_mesh_list") if is_tensor else fields.get("_flatten_rank_map")
    if ranks is not None:
        position = _position(_integers(ranks), rank, world, math.prod(sizes) if is_tensor else world)
        expected = tuple(axis.coordinate_of(position) for axis in axes)
        if coordinates != expected:
            raise LayoutError(
                f"rank {rank} has the coordinates {list(coordinates)} in its mesh, where it stands at {list(expected)}"
            )
    return Mesh(sizes, coordinates)


def _position(ranks: Shape, rank: int, world: int, count: int) -> int:
    """The position of a rank in the list of a mesh."""
    if len(ranks) != count:
        raise LayoutError(f"its mesh has {len(ranks)} ranks, not {count}")
    if len(set(ranks)) != count or max(ranks) >= world:
        raise LayoutError(f"its mesh has ranks twice, or others than 0 to {world - 1}")
    if rank not in ranks:
        raise LayoutError(f"its mesh does not have rank {rank}")
    return ranks.index(rank)


def _tensor_axes(ranks: object) -> list[_Axis]:
    assert isinstance(ranks, StoredTensor)
    strides = row_major_strides(ranks.shape)
    if 0 in ranks.shape:
        raise LayoutError(_NO_MESH)
    return [_Axis((length,), (stride,)) for length, stride in zip(ranks.shape, strides, strict=True)]


def _layout_axes(layout: object) -> list[_Axis]:
    fields = _state(layout)
    axes = fields.get("axes")
    if axes is None:
        lengths, strides = _each(fields.get("shape")), _each(fields.get("stride"))
        if len(lengths) != len(strides):
            raise LayoutError(_NO_MESH)
        return [_axis(*pair) for pair in zip(lengths, strides, strict=True)]
    if not isinstance(axes, tuple | list):
        raise LayoutError(_NO_MESH)
    return [_axis(each.get("shape"), each.get("stride")) for each in map(_state, axes)]


def _axis(lengths: object, strides: object) -> _Axis:
    axis = _Axis(_integers(_each(lengths)), _integers(_each(strides)))
    if not len(axis.lengths) == len(axis.strides) <= _MAX_AXES or 0 in axis.lengths or 0 in axis.strides:
        raise LayoutError(_NO_MESH)
    return axis


def _each(value: object) -> Sequence[object]:
    return value if isinstance(value, tuple | list) else (value,)


def _integers(value: object) -> Shape:
    if not isinstance(value, tuple | list) or not all(type(each) is int and 0 <= each < 2**31 for each in value):
        raise LayoutError(_NO_MESH)
    return tuple(value)


def _state(value: object) -> Mapping[str, object]:
    fields = text_fields(value.state) if isinstance(value, PickledObject) else None
    if fields is None:
        raise LayoutError(_NO_MESH)
    return fields

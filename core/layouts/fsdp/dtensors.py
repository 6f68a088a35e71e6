"""DTensors in torch's pickles, as data: the shard that a rank has, and its box in the whole tensor.

    _rebuild_wrapper_subclass(DTensor, dtype, size, …), then set: {"_local_tensor": tensor, "_spec": DTensorSpec}

The spec has the mesh of ranks and a placement for each of its axes. Nothing is imported or run.
"""

from collections.abc import Mapping

from reshard.core.errors import CheckpointError, LayoutError
from reshard.core.files.torch_file import text_fields
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.fsdp.boxes import Placement, PlacementKind, shard_box
from reshard.core.layouts.fsdp.meshes import Mesh, parse_mesh
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType, dtype_from_torch
from reshard.core.tensor.slices import Shape, TensorSlice, is_countable

_DTENSORS = (("torch.distributed.tensor", "DTensor"), ("torch.distributed._tensor.api", "DTensor"))
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_OLD_PLACEMENTS = "torch.distributed._tensor.placement_types"
"""Of PyTorch before 2.5, which had no strided shards: it wrote tensor parallelism inside FSDP as two plain ones."""
_PARTIAL = "Partial"
KNOWN_NAMES = frozenset(
    [
        *_DTENSORS,
        *((_PLACEMENTS, name) for name in (*PlacementKind, _PARTIAL)),
        *((_OLD_PLACEMENTS, name) for name in ("Replicate", "Shard", _PARTIAL, "DTensorSpec", "TensorMeta")),
        *(("torch.distributed.tensor._dtensor_spec", n) for n in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")),
        ("torch.distributed.device_mesh", "DeviceMesh"),
        ("torch.distributed._mesh_layout", "_MeshLayout"),
        ("torch.distributed._mesh_layout", "_FlatLayout"),
        ("torch.serialization", "_get_layout"),
    ]
)
"""(module, name) that `read_torch_file` has to know."""
_MAX_SHOWN = 60
_MAX_DIMENSIONS = 64
"""As PyTorch and safetensors have it."""


class Cut(Record):
    """How a tensor is cut: the same on all ranks.

    Attributes:
        shape: of the whole tensor.
        placements: one for each axis of the mesh; none for a plain tensor, which is whole on each rank.
        sizes: of the mesh.
    """

    dtype: DType
    shape: Shape
    placements: tuple[Placement, ...] = ()
    sizes: Shape = ()

    def __str__(self) -> str:
        if not self.placements:
            return f"{self.dtype} {list(self.shape)}"
        return f"{self.dtype} {list(self.shape)} as ({', '.join(map(str, self.placements))}) on {list(self.sizes)}"


class LocalShard(Record):
    """What a rank has of a tensor: where its elements are in the rank's file, and which they are of the whole."""

    cut: Cut
    box: TensorSlice
    stored: StoredTensor

    @property
    def is_plain(self) -> bool:
        """True for a tensor that is no DTensor."""
        return not self.cut.placements


class ShardReader:
    """Reads the tensors of one file, whose meshes are few objects that many tensors refer to."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        self._meshes: dict[int, tuple[object, Mesh]] = {}

    def shard(self, value: object) -> LocalShard:
        """Return what the file has of a tensor.

        Raises:
            LayoutError: it is no tensor, or one that is not known; says what is wrong.
        """
        if isinstance(value, StoredTensor):
            return LocalShard(Cut(value.dtype, value.shape), TensorSlice.whole(value.shape), value)
        if not isinstance(value, PickledObject) or _name(value) not in _DTENSORS:
            what = str(value.made_by) if isinstance(value, PickledObject) else type(value).__name__
            raise LayoutError(f"it is not a tensor, but {what[:_MAX_SHOWN]!r}: save the checkpoint without it")
        dtype, shape = _whole(value.arguments)
        fields = _fields(value.state)
        local, spec = fields.get("_local_tensor"), fields.get("_spec")
        if not isinstance(local, StoredTensor) or not isinstance(spec, PickledObject):
            raise LayoutError("it is a DTensor without a local tensor and a spec")
        of_spec = _fields(spec.state)
        mesh = self._mesh(of_spec.get("mesh"))
        placements = _placements(of_spec, len(shape), len(mesh.sizes))
        _check_order(of_spec, placements)
        box = shard_box(shape, placements, mesh.sizes, mesh.coordinates)
        if local.shape != box.shape or local.dtype != dtype:
            raise LayoutError(
                f"its shard is {local.dtype} {list(local.shape)}, by its placements it is {dtype} {list(box.shape)}"
            )
        return LocalShard(Cut(dtype, shape, placements, mesh.sizes), box, local)

    def _mesh(self, value: object) -> Mesh:
        # a mesh lists all ranks, so it is not read again for each tensor; the object is kept, so its id stays its own
        known = self._meshes.get(id(value))
        if known is None:
            known = self._meshes[id(value)] = (value, parse_mesh(value, self._rank, self._world))
        return known[1]


def _whole(arguments: tuple[object, ...]) -> tuple[DType, Shape]:
    """The dtype and the shape of a whole DTensor."""
    match arguments:
        case (_, Global("torch", name), tuple(shape), *_) if all(
            type(each) is int and 0 <= each < 2**63 for each in shape
        ):
            try:
                dtype = dtype_from_torch(name)
            except CheckpointError as error:
                raise LayoutError(str(error)) from error
            whole: Shape = tuple(each for each in shape if isinstance(each, int))
            if len(whole) <= _MAX_DIMENSIONS and is_countable(whole, dtype.itemsize):
                return dtype, whole
    raise LayoutError("it is a DTensor without a dtype and a shape that a file can hold")


def _placements(spec: Mapping[str, object], axes: int, mesh_axes: int) -> tuple[Placement, ...]:
    found = spec.get("placements")
    if not isinstance(found, tuple | list) or len(found) != mesh_axes:
        raise LayoutError(f"it does not have one placement for each of the {mesh_axes} axes of its mesh")
    placements = tuple(_placement(each, axes) for each in found)
    sharded = [each.dim for each in placements if each.kind is PlacementKind.SHARD]
    is_old = any(isinstance(each, PickledObject) and each.made_by.module == _OLD_PLACEMENTS for each in found)
    if is_old and len(set(sharded)) < len(sharded):
        raise LayoutError(
            "one of its dimensions is sharded twice, by PyTorch before 2.5, which does not say in which order: load "
            "the checkpoint there, and save it with torch.distributed.checkpoint"
        )
    return placements


def _placement(value: object, axes: int) -> Placement:
    if isinstance(value, PickledObject) and value.made_by.module in (_PLACEMENTS, _OLD_PLACEMENTS):
        name = value.made_by.name
        if name == _PARTIAL:
            raise LayoutError("its ranks have summands of it (Partial): redistribute it before it is saved")
        if name == PlacementKind.REPLICATE:
            return Placement(PlacementKind.REPLICATE)
        fields = _fields(value.state)
        dim, factor = fields.get("dim"), fields.get("split_factor", 1)
        if type(dim) is int and 0 <= dim < axes and type(factor) is int and factor > 0:
            return Placement(PlacementKind(name), dim, factor if name == PlacementKind.STRIDED else 1)
    raise LayoutError(f"it has a placement that is not known for its {axes} dimensions")


def _check_order(spec: Mapping[str, object], placements: tuple[Placement, ...]) -> None:
    """Refuse an order of shards other than that of the placements."""
    order = spec.get("shard_order")
    has_strided = any(each.kind is PlacementKind.STRIDED for each in placements)
    if has_strided and (order is not None or spec.get("use_strided_shard_as_shard_order", True) is not True):
        raise LayoutError("its strided shards are not those of tensor parallelism inside FSDP")
    if order is None:
        return
    for entry in order if isinstance(order, tuple | list) else (order,):
        match entry:
            case PickledObject(arguments=(int(), tuple(axes))) if axes == tuple(sorted(axes, key=_number)):
                continue
        raise LayoutError("it is sharded in another order than its placements have (shard_order)")


def _number(value: object) -> int:
    if type(value) is not int:
        raise LayoutError("its shard_order has something else than numbers")
    return value


def _fields(state: object) -> Mapping[str, object]:
    """Attributes of an object: its state, which a tensor has behind that of its class."""
    match state:
        case (None, inner):
            state = inner
    fields = text_fields(state)
    if fields is None:
        raise LayoutError("its pickle has no attributes: damaged")
    return fields


def _name(value: PickledObject) -> tuple[str, str]:
    return value.made_by.module, value.made_by.name

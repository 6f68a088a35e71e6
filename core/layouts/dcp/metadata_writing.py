"""Builds `.metadata` of a DCP directory from a plan, without torch.

`reshard.core.layouts.dcp.metadata` describes the format. torch looks up a name of a state dict in it as it is; names
in nested state dicts are joined by dots.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from reshard.core.checkpoint.catalog import StatePath
from reshard.core.files.distcp import archive_extents
from reshard.core.files.model import OutputEntry
from reshard.core.layouts.dcp.metadata import TORCH_PACKAGE
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.pickle_writing import PickleWriter, attributes, integer, new_object
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType, torch_name
from reshard.core.tensor.slices import Extent, Shape, TensorSlice

_VERSION = "1.0.0"


class StoredPlace(Record):
    """Where a parameter is: the name and the shape of a stored tensor, and its index along the first axes of that."""

    name: str
    shape: Shape
    index: Shape = ()

    def box(self, planned: TensorSlice) -> TensorSlice:
        """Return the box in the stored tensor of a box of the parameter, which has one element along these axes."""
        axes = len(self.index)
        stop = tuple(number + 1 for number in self.index)
        return TensorSlice((*self.index, *planned.start[axes:]), (*stop, *planned.stop[axes:]))


def build_dcp_metadata(plan: ConversionPlan, paths: Mapping[str, StatePath]) -> bytes:
    """Return the bytes of `.metadata` for a plan's target; `paths` are those of the source's names."""
    places = {each.name: StoredPlace(each.name, each.shape) for each in plan.match.resharded}
    return build_metadata_of(plan, places, _state_paths(plan, paths))


def build_metadata_of(
    plan: ConversionPlan,
    stored: Mapping[str, StoredPlace],
    paths: Mapping[str, StatePath],
    objects: Mapping[str, tuple[str, Extent]] = MappingProxyType({}),
) -> bytes:
    """Return the bytes of `.metadata` for a plan's target.

    Args:
        stored: where the plan's parameters are.
        paths: stored tensor -> its keys in the state dict.
        objects: name -> file and place of an object of Python.
    """
    writer = _MetadataWriter(has_objects=bool(objects))
    boxes: dict[str, list[TensorSlice]] = {each.name: [] for each in stored.values()}
    writer.begin()
    for rank in plan.target_ranks:
        parameters = plan.rank_plan(rank).parameters
        places = archive_extents([OutputEntry(each.name, each.dtype, each.box.shape) for each in parameters])
        for parameter, place in zip(parameters, places, strict=True):
            where = stored[parameter.name]
            box, listed = where.box(parameter.box), boxes[where.name]
            writer.add_place(where.name, box.start, len(listed), plan.file_name(rank), place)
            listed.append(box)
    for name, (file, place) in objects.items():
        writer.add_place(name, None, None, file, place)
    writer.begin_tensors()
    dtypes = {each.name: each.dtype for each in plan.match.resharded}
    kinds = {where.name: (where.shape, dtypes[name]) for name, where in stored.items()}
    for name, (shape, dtype) in kinds.items():
        writer.add_tensor(name, dtype, shape, boxes[name])
    for name in objects:
        writer.add_object(name)
    return writer.finish(paths)


def _state_paths(plan: ConversionPlan, known: Mapping[str, StatePath]) -> dict[str, StatePath]:
    """Name -> keys in the state dict: those of the source, unless the tensor got a new name; else the name alone.

    Where a new name is that of a dict, what was in the dict has its name alone, too: both cannot be there.
    """
    paths: dict[str, StatePath] = {
        each.name: known.get(each.name, (each.name,)) if each.sources[0].name == each.name else (each.name,)
        for each in plan.match.resharded
    }
    taken = set(paths.values())
    return {
        name: (name,) if any(path[:length] in taken for length in range(1, len(path))) else path
        for name, path in paths.items()
    }


class _MetadataWriter:
    """The pickle, put together from fragments: as objects, that of a large job would take many times its bytes."""

    def __init__(self, *, has_objects: bool) -> None:
        self._pickle = PickleWriter()
        define = self._pickle.define
        names = ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties")
        self._made_by = {name: define(Global(f"{TORCH_PACKAGE}.metadata", name)) for name in names}
        if has_objects:
            self._made_by["BytesStorageMetadata"] = define(Global(f"{TORCH_PACKAGE}.metadata", "BytesStorageMetadata"))
        self._made_by["_StorageInfo"] = define(Global(f"{TORCH_PACKAGE}.filesystem", "_StorageInfo"))
        define(Global("torch", "Size"))
        # a tensor's properties as torch pickles them: dtype, layout, requires_grad, memory format, pin_memory
        self._layout = PickledObject(Global("torch.serialization", "_get_layout"), ("torch.strided",))
        self._memory_format = PickledObject(Global(f"{TORCH_PACKAGE}.metadata", "_MEM_FORMAT_ENCODING"), (0,))
        self._sizes = lru_cache(maxsize=1 << 16)(self._size)

    def begin(self) -> None:
        """Begin the metadata with the places of all chunks."""
        storage_data = self._pickle.define("storage_data")
        for name in ("fqn", "offset", "index", "relative_path", "length", "offsets", "sizes"):
            self._pickle.define(name)
        self._pickle.write(new_object(self._made_by["Metadata"]) + b"}(" + storage_data + b"}")

    def add_place(self, name: str, start: Shape | None, number: int | None, file: str, place: Extent) -> None:
        """Say where the chunk of a tensor is that begins at `start`, its `number` among all; both None of an object."""
        text = self._pickle.define
        index = self._object(
            "MetadataIndex",
            fqn=text(name),
            offset=self._pickle.fragment(None) if start is None else self._sizes(start),
            index=self._pickle.fragment(number),
        )
        info = self._object(
            "_StorageInfo",
            relative_path=text(file),
            offset=integer(place.offset),
            length=integer(place.length),
        )
        self._pickle.write(index + info + b"s")

    def begin_tensors(self) -> None:
        """Go on with the tensors."""
        self._pickle.write(self._pickle.fragment("state_dict_metadata") + b"}")

    def add_object(self, name: str) -> None:
        """Describe an object of Python."""
        self._pickle.write(self._pickle.define(name) + new_object(self._made_by["BytesStorageMetadata"]) + b"s")

    def add_tensor(self, name: str, dtype: DType, shape: Shape, boxes: Sequence[TensorSlice]) -> None:
        """Describe a tensor and its chunks."""
        state = (Global("torch", torch_name(dtype) or ""), self._layout, False, self._memory_format, False)
        properties = new_object(self._made_by["TensorProperties"]) + self._pickle.fragment(state) + b"b"
        chunks = b"".join(
            self._object("ChunkStorageMetadata", offsets=self._sizes(box.start), sizes=self._sizes(box.shape))
            for box in boxes
        )
        value = self._object(
            "TensorStorageMetadata",
            properties=properties,
            size=self._sizes(shape),
            chunks=b"](" + chunks + b"e",
        )
        self._pickle.write(self._pickle.define(name) + value + b"s")

    def finish(self, paths: Mapping[str, StatePath]) -> bytes:
        """End the metadata with the paths of the tensors; return its bytes."""
        self._pickle.write(self._pickle.fragment("planner_data") + b"}")
        for name, path in paths.items():
            self._pickle.write(self._pickle.fragment(name) + self._pickle.fragment(path) + b"s")
        rest = {"storage_meta": None, "version": _VERSION}
        self._pickle.write(b"".join(self._pickle.fragment(each) for item in rest.items() for each in item) + b"ub")
        return self._pickle.finish()

    def _object(self, made_by: str, **fields: bytes) -> bytes:
        names = map(self._pickle.fragment, fields)
        return new_object(self._made_by[made_by]) + attributes(zip(names, fields.values(), strict=True))

    def _size(self, shape: Shape) -> bytes:
        return self._pickle.fragment(PickledObject(Global("torch", "Size"), (shape,)))

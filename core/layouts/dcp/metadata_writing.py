"""Builds `.metadata` of a DCP directory from a plan, without torch.

`reshard.core.layouts.dcp.metadata` describes the format. torch looks up a name of a state dict in it as it is; names
in nested state dicts are joined by dots.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from reshard.core.checkpoint.catalog import StatePath
from reshard.core.files.distcp import archive_extents
from reshard.core.files.model import OutputEntry
from reshard.core.layouts.dcp.metadata import TORCH_PACKAGE
from reshard.core.plan.model import ReshardedParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.pickle_writing import PickleWriter, attributes, integer, new_object
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.tensor.dtypes import torch_name
from reshard.core.tensor.slices import Extent, Shape, TensorSlice

_VERSION = "1.0.0"


def build_dcp_metadata(plan: ConversionPlan, paths: Mapping[str, StatePath]) -> bytes:
    """Return the bytes of `.metadata` for a plan's target; `paths` are those of the source's names."""
    writer = _MetadataWriter()
    boxes: dict[str, list[TensorSlice]] = {each.name: [] for each in plan.match.resharded}
    writer.begin()
    for rank in plan.target_ranks:
        parameters = plan.rank_plan(rank).parameters
        places = archive_extents([OutputEntry(each.name, each.dtype, each.box.shape) for each in parameters])
        for parameter, place in zip(parameters, places, strict=True):
            listed = boxes[parameter.name]
            writer.add_place(parameter.name, parameter.box.start, len(listed), plan.file_name(rank), place)
            listed.append(parameter.box)
    writer.begin_tensors()
    for tensor in plan.match.resharded:
        writer.add_tensor(tensor, boxes[tensor.name])
    return writer.finish(_state_paths(plan, paths))


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

    def __init__(self) -> None:
        self._pickle = PickleWriter()
        define = self._pickle.define
        names = ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties")
        self._made_by = {name: define(Global(f"{TORCH_PACKAGE}.metadata", name)) for name in names}
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

    def add_place(self, name: str, start: Shape, number: int, file: str, place: Extent) -> None:
        """Say where the chunk of a tensor is that begins at `start`, its `number` among all."""
        text = self._pickle.define
        index = self._object("MetadataIndex", fqn=text(name), offset=self._sizes(start), index=integer(number))
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

    def add_tensor(self, tensor: ReshardedParameter, boxes: Sequence[TensorSlice]) -> None:
        """Describe a tensor and its chunks."""
        dtype = Global("torch", torch_name(tensor.dtype) or "")
        state = (dtype, self._layout, False, self._memory_format, False)
        properties = new_object(self._made_by["TensorProperties"]) + self._pickle.fragment(state) + b"b"
        chunks = b"".join(
            self._object("ChunkStorageMetadata", offsets=self._sizes(box.start), sizes=self._sizes(box.shape))
            for box in boxes
        )
        value = self._object(
            "TensorStorageMetadata",
            properties=properties,
            size=self._sizes(tensor.shape),
            chunks=b"](" + chunks + b"e",
        )
        self._pickle.write(self._pickle.define(tensor.name) + value + b"s")

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

"""`.metadata` of PyTorch's Distributed Checkpoint (DCP): the shards of each tensor, and where their bytes are.

A pickle of `torch.distributed.checkpoint.metadata.Metadata`, read without torch and without running any of it:

    state_dict_metadata    {name: TensorStorageMetadata(properties, size, chunks=[ChunkStorageMetadata(offsets, sizes)])
                            or BytesStorageMetadata()}, the latter for everything that is not a tensor
    storage_data           {MetadataIndex(name, offset): _StorageInfo(relative_path, offset, length)}

A chunk is a box of its tensor, and its offset is what the place is looked up by. Replicas are written once, by any of
the ranks that have them. hyper_parallel writes the same for MindSpore, in classes of its own: a place is a
`.safetensors` file without an offset, and the tensor in it is named `tensor_key`, or as the tensor itself.
"""

from collections.abc import Collection, Mapping
from typing import TypeGuard

from msgspec import field

from reshard.core.checkpoint.catalog import StatePath
from reshard.core.errors import CheckpointError, LayoutError, StrategyError
from reshard.core.layouts.dcp.names import is_inside
from reshard.core.runtime.metadata import Parse, parsing
from reshard.core.runtime.pickled import (
    OPCODE_BYTES,
    ForeignNameError,
    Global,
    Pairs,
    PickledObject,
    PickleError,
    read_pickle,
)
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.tensor.boxes import check_tiling
from reshard.core.tensor.dtypes import TORCH_DTYPES, DType, dtype_from_name, dtype_from_torch
from reshard.core.tensor.slices import TOO_LARGE, Shape, TensorSlice, is_countable

_MAX_AXES = 32
_MAX_ATTRIBUTES = 64
_MAX_INDEX = 1 << 16
_MAX_PATH_KEYS = 256
TORCH_PACKAGE = "torch.distributed.checkpoint"
_HYPER = ("hyper_parallel.core.distributed_checkpoint", "hyper_parallel.core.checkpoint")
_MEGATRON = "megatron."
_MODELS = (
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    "MetadataIndex",
)
_PLANS = ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData")
"""Megatron keeps the ranks' plans in it."""
_ALLOWED = frozenset(
    [
        *((f"{TORCH_PACKAGE}.metadata", name) for name in (*_MODELS, "StorageMeta", "_MEM_FORMAT_ENCODING")),
        (f"{TORCH_PACKAGE}.filesystem", "_StorageInfo"),
        *((f"{TORCH_PACKAGE}.planner", name) for name in _PLANS),
        ("torch", "Size"),
        *(("torch", name) for name in TORCH_DTYPES),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "WindowsPath"),
        *((f"{package}.metadata", name) for package in _HYPER for name in (*_MODELS, "ChunkInfo")),
        *((f"{package}.storage", "StorageInfo") for package in _HYPER),
    ]
)


_SIZE = Global("torch", "Size")


class Place(Record):
    """Where an item is.

    Attributes:
        path: its file, below the directory.
        offset: first byte; of a safetensors file, where that begins.
        length: bytes; -1 if unknown.
        key: its name in a safetensors file.
    """

    path: str
    offset: int
    length: int
    key: str


class StoredPart(Record):
    """A part of a stored chunk, as of one of the layers that are stacked in it.

    Attributes:
        name: the stored tensor.
        box: the stored chunk in it.
        index: the part's index in the chunk, along its first axes.
    """

    name: str
    box: TensorSlice
    index: Shape


class Chunk(Record):
    """A shard: its box in the whole tensor, and its place; it may be only a `part` of what is stored there."""

    box: TensorSlice
    place: Place
    part: StoredPart | None = None

    @property
    def stored_box(self) -> TensorSlice:
        """The box of what is stored at its place, in the tensor as it is stored."""
        return self.box if self.part is None else self.part.box


class ListedTensor(Record):
    """A tensor in the metadata; its chunks tile it, and only one of an empty tensor is empty.

    `dtype` is None if the metadata does not say it.
    """

    name: str
    dtype: DType | None
    shape: Shape
    chunks: tuple[Chunk, ...]


class DcpMetadata(Record):
    """What the metadata says.

    Attributes:
        tensors: name -> tensor, in the document's order.
        objects: name -> place of a pickled object, which is not read.
        paths: name -> keys of a tensor in the nested state dict, where it was in one.
    """

    origin: str
    tensors: Mapping[str, ListedTensor]
    objects: Mapping[str, Place]
    paths: Mapping[str, StatePath] = field(default_factory=dict)


def parse_dcp_metadata(data: bytes, origin: str) -> DcpMetadata:
    """Parse `.metadata`; `origin` names it in messages.

    Raises:
        StrategyError: it is damaged, contradicts itself, is of another kind, or asks for more than data.
        LimitError: parsing would exceed the memory limit.
    """
    with parsing(origin) as parse:
        try:
            return _parse(data, origin, parse)
        except ForeignNameError as error:
            if error.module.startswith(_MEGATRON):
                raise StrategyError(
                    f"{origin}: has classes of Megatron's own, as Megatron-Core 0.15 and earlier releases write them, "
                    f"which reshard does not read ({error}). Load the checkpoint with 0.16 or later, and save it again "
                    "as torch_dist"
                ) from None
            raise StrategyError(f"{origin}: is not the metadata of a DCP checkpoint: {error}") from None
        except PickleError as error:
            raise StrategyError(f"{origin}: is not the metadata of a DCP checkpoint: {error}") from None
        except LayoutError as error:
            raise StrategyError(f"{origin}: {error}") from None


def listed_tensor(name: str, dtype: DType | None, shape: Shape, chunks: list[Chunk]) -> ListedTensor:
    """Return a tensor whose chunks were found in files.

    Raises:
        LayoutError: they do not tile it.
    """
    filled = [chunk for chunk in chunks if chunk.box.size] or chunks[:1]
    if not filled:
        raise LayoutError(f"parameter {name!r} has no shards")
    try:
        check_tiling([chunk.box for chunk in filled], shape)
    except LayoutError as error:
        raise LayoutError(f"parameter {name!r}: {error.marked}") from None
    return ListedTensor(name, dtype, shape, tuple(filled))


def _parse(data: bytes, origin: str, parse: Parse) -> DcpMetadata:
    parse.take(len(data) * OPCODE_BYTES // 4)
    fields = _fields(read_pickle(data, _ALLOWED), "Metadata")
    named = _pairs(fields, "state_dict_metadata")
    places = _places(_pairs(fields, "storage_data"))
    tensors: dict[str, ListedTensor] = {}
    objects: dict[str, Place] = {}
    chunks_left = len(data)
    for name, value in named:
        if not isinstance(name, str) or not name:
            raise PickleError("names a parameter by something that is not text")
        if name in tensors or name in objects:
            raise PickleError(f"lists parameter {name[:200]!r} twice")
        of_name = places.pop(name, {})
        if isinstance(value, PickledObject) and value.made_by.name == "BytesStorageMetadata":
            if len(of_name) != 1:
                raise PickleError(f"gives {len(of_name)} places for the object {name[:200]!r}, which has one")
            [objects[name]] = of_name.values()
        else:
            listed_fields = _fields(value, "TensorStorageMetadata")
            chunks = listed_fields.get("chunks")
            if type(chunks) is not list:
                raise PickleError(f"lists no chunks of parameter {name[:200]!r}")
            chunks_left -= len(chunks)
            if chunks_left < 0:  # names may share one list
                raise PickleError(f"lists more chunks than its {len(data)} bytes can describe")
            tensors[name] = _tensor(name, listed_fields, chunks, of_name)
    if places:
        raise PickleError(
            f"places parameters that it does not list: {listed([repr(name[:200]) for name in places], 4)}"
        )
    if not tensors:
        raise PickleError("lists no tensor")
    return DcpMetadata(origin, tensors, objects, _paths(fields.get("planner_data"), tensors))


def _paths(planner_data: object, tensors: Collection[str]) -> dict[str, StatePath]:
    """Paths that torch keeps of names, `{"model.w": ("model", "w")}`, compared with these: nothing else has them."""
    paths: dict[str, StatePath] = {}
    for name, path in planner_data if isinstance(planner_data, Pairs) else ():
        if isinstance(name, str) and name in tensors and type(path) is tuple and len(path) <= _MAX_PATH_KEYS:
            spelled = ".".join(str(key) for key in path if isinstance(key, str | int))
            if spelled != name:
                raise PickleError(f"has {name[:200]!r} for the parameter {spelled[:200]!r}: damaged")
            if is_state_path(path) and len(path) > 1:
                paths[name] = path
    return paths


def is_state_path(value: object) -> TypeGuard[StatePath]:
    """True for keys and indices, of which torch makes lists no longer than a state dict may have them."""
    return type(value) is tuple and all(
        type(key) is str or (type(key) is int and 0 <= key < _MAX_INDEX) for key in value
    )


def _tensor(
    name: str, fields: Mapping[str, object], listed_chunks: list[object], places: Mapping[Shape | None, Place]
) -> ListedTensor:
    shape = _shape(fields.get("size"), "size", name)
    dtype = _dtype(fields.get("properties"))
    if not is_countable(shape, dtype.itemsize if dtype else 1):
        raise LayoutError(f"parameter {name[:200]!r}: its size {list(shape)} is {TOO_LARGE}")
    chunks: dict[TensorSlice, Chunk] = {}
    for each in listed_chunks:
        chunk = _fields(each, "ChunkStorageMetadata")
        start, sizes = _shape(chunk.get("offsets"), "offsets", name), _shape(chunk.get("sizes"), "sizes", name)
        if not len(start) == len(sizes) == len(shape):
            raise LayoutError(
                f"parameter {name[:200]!r}: a chunk has {len(start)} offsets and {len(sizes)} sizes, the tensor "
                f"{len(shape)} axes"
            )
        box = TensorSlice(start, tuple(low + length for low, length in zip(start, sizes, strict=True)))
        place = places.get(start)
        if place is None:
            raise LayoutError(f"parameter {name[:200]!r}: says nowhere which file holds its chunk {box}")
        chunks[box] = Chunk(box, place)
    strangers = places.keys() - {box.start for box in chunks}
    if strangers:
        raise LayoutError(f"parameter {name[:200]!r}: places chunks that it does not list: {_starts_text(strangers)}")
    return listed_tensor(name, dtype, shape, [*chunks.values()])


def _starts_text(starts: set[Shape | None]) -> str:
    return listed(sorted(str(list(start)) if start is not None else "nowhere" for start in starts), 4)


def _places(pairs: Pairs) -> dict[str, dict[Shape | None, Place]]:
    """Name -> first index of a chunk (None of an object) -> its place."""
    places: dict[str, dict[Shape | None, Place]] = {}
    for key, value in pairs:
        index = _fields(key, "MetadataIndex")
        name = index.get("fqn")
        if not isinstance(name, str):
            raise PickleError("places something that has no name")
        offset = index.get("offset")
        start = None if offset is None else _shape(offset, "offset", name)
        of_name = places.setdefault(name, {})
        if start in of_name:
            raise PickleError(f"gives two places for one chunk of parameter {name[:200]!r}")
        of_name[start] = _place(name, _fields(value, "_StorageInfo", "StorageInfo"))
    return places


def _place(name: str, fields: Mapping[str, object]) -> Place:
    path, offset, length = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if not isinstance(path, str) or not is_inside(path):
        shown = path[:200] if isinstance(path, str) else type(path).__name__
        raise PickleError(f"places parameter {name[:200]!r} in {shown!r}, which is not a file in the directory")
    if fields.get("transform_descriptors"):
        raise PickleError(
            f"says that parameter {name[:200]!r} was transformed when it was saved (transform_descriptors), as by "
            "compression: reshard reads only what was saved as it is"
        )
    if not (type(offset) is int and type(length) is int and 0 <= offset < 2**63 and -1 <= length < 2**63):
        raise PickleError(f"gives no offset and length for parameter {name[:200]!r}")
    key = fields.get("tensor_key")
    return Place(path, offset, length, key if isinstance(key, str) else name)


def _fields(value: object, *names: str) -> dict[str, object]:
    """The attributes of a record that is to be of a class with one of these names."""
    if not isinstance(value, PickledObject) or value.made_by.name not in names:
        found = str(value.made_by) if isinstance(value, PickledObject) else type(value).__name__
        raise PickleError(f"has a {found} where a {names[0]} belongs")
    state = value.state
    if state is None:
        return {}
    # records may share what they are made of: an unbounded part would be looked at as often as it is named
    if isinstance(state, Pairs) and len(state) <= _MAX_ATTRIBUTES:
        fields = {key: field for key, field in state if isinstance(key, str)}
        if len(fields) == len(state):
            return fields
    raise PickleError(f"has a {names[0]} without attributes, or with some that are not its own")


def _pairs(fields: Mapping[str, object], name: str) -> Pairs:
    value = fields.get(name)
    if not isinstance(value, Pairs):
        raise PickleError(f"has no {name}")
    return value


def _shape(value: object, what: str, name: str) -> Shape:
    """A `torch.Size`, or a tuple of numbers."""
    if isinstance(value, PickledObject) and value.made_by == _SIZE and len(value.arguments) == 1:
        value = value.arguments[0]
    if isinstance(value, tuple | list) and not isinstance(value, Pairs):
        if len(value) > _MAX_AXES:
            raise LayoutError(f"parameter {name[:200]!r}: has {len(value)} axes, reshard allows {_MAX_AXES}")
        for each in value:
            if type(each) is not int or not 0 <= each < 2**63:
                break
        else:
            return tuple(value)
    raise PickleError(f"has no {what} of parameter {name[:200]!r}")


def _dtype(properties: object) -> DType | None:
    """The dtype in a tensor's properties: torch's object, the first of its state; or hyper_parallel's text."""
    if not isinstance(properties, PickledObject) or properties.made_by.name != "TensorProperties":
        raise PickleError("has a tensor without properties")
    state = properties.state
    if isinstance(state, tuple):
        found = state[0] if state else None
    else:
        found = _fields(properties, "TensorProperties").get("dtype")
    if isinstance(found, Global) and found.module == "torch":
        return dtype_from_torch(found.name)
    if isinstance(found, str):
        return _dtype_from_text(found.rpartition(".")[2])
    raise PickleError("has a tensor without a dtype")


def _dtype_from_text(name: str) -> DType | None:
    try:
        return dtype_from_torch(name.lower()) if name.lower() in TORCH_DTYPES else dtype_from_name(name)
    except CheckpointError:
        return None

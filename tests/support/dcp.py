"""Directories that PyTorch's Distributed Checkpoint (DCP) wrote, changed copies of them, and pickles made by hand."""

import io
import math
import pickle
import shutil
import sys
import types
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.places import FIXTURES

DCP_FIXTURES = FIXTURES / "dcp"
CASES = sorted(path.name for path in DCP_FIXTURES.iterdir())
FOREIGN = "case_foreign_dtypes"


@dataclass(frozen=True)
class DcpCase:
    """A directory that torch wrote, and its whole tensors."""

    directory: Path

    @property
    def source(self) -> Path:
        """The directory with the shards."""
        source = self.directory / "src"
        return source / "sharded" if (source / "sharded").exists() else source

    @property
    def whole(self) -> Contents:
        """All whole tensors."""
        return read_safetensors(self.directory / "whole.safetensors")

    def request(self, target: Path | str, source: Path | str = "", **options: object) -> ConversionRequest:
        """The request for a conversion to one rank, unless options say otherwise."""
        given: dict[str, object] = {"source": str(source or self.source), "target": str(target), "workers": 2}
        return build_request(**given | options)

    def copied(self, to: Path) -> "DcpCase":
        """A copy that a test may change."""
        shutil.copytree(self.directory, to)
        return DcpCase(to)

    def change_metadata(self, change: Callable[[Any], object]) -> None:
        """Change the unpickled `.metadata`."""
        path = self.source / ".metadata"
        with torch_names():
            metadata = pickle.loads(path.read_bytes())
            change(metadata)
            path.write_bytes(pickle.dumps(metadata, protocol=4))


def dcp_case(name: str) -> DcpCase:
    """One of the cases, by its name without `case_`."""
    return DcpCase(DCP_FIXTURES / f"case_{name}")


class _Plain:
    """What a class of torch is here: any state."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __reduce__(self) -> tuple[Any, ...]:
        if set(self.__dict__) == {"arguments"}:
            return type(self), self.arguments
        state = {name: value for name, value in self.__dict__.items() if name != "arguments"}
        return type(self), (), state.get("state", state) if set(state) == {"state"} else state

    def __hash__(self) -> int:
        return id(self)


MODELS = (
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    "MetadataIndex",
)
TORCH_DTYPES = {
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float64": "Float64",
    "bool": "Bool",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    **{f"{kind}int{bits}": f"{kind.upper()}Int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
}
"""torch's dtypes, and their names in contents."""
_TORCH = {
    "torch.distributed.checkpoint.metadata": (*MODELS, "StorageMeta", "_MEM_FORMAT_ENCODING"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.checkpoint.planner": ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData"),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
}


class _NamedConstant:
    """A dtype: pickled by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


@contextmanager
def torch_names() -> Iterator[dict[str, Any]]:
    """Modules with torch's names, for pickles that torch wrote: name -> module."""
    modules: dict[str, Any] = {}
    for module in ("torch.distributed", "torch.distributed.checkpoint", *_TORCH):
        modules[module] = types.ModuleType(module)
    for module, names in _TORCH.items():
        for name in names:
            setattr(modules[module], name, type(name, (_Plain,), {"__module__": module}))
    for name in TORCH_DTYPES:
        constant = _NamedConstant(name)
        constant.__module__ = "torch"
        setattr(modules["torch"], name, constant)
    with mock.patch.dict(sys.modules, modules):
        yield modules


class Opcodes(io.BytesIO):
    """A pickle put together opcode by opcode."""

    def text(self, value: str) -> "Opcodes":
        """Push a text."""
        data = value.encode()
        self.write(b"X" + len(data).to_bytes(4, "little") + data)
        return self

    def of(self, *parts: bytes) -> "Opcodes":
        """Write opcodes."""
        for part in parts:
            self.write(part)
        return self

    def bytes(self) -> bytes:
        """The pickle."""
        return self.getvalue()


def archive(records: dict[str, bytes], *, compression: int = zipfile.ZIP_STORED, prefix: str = "archive/") -> bytes:
    """A zip archive with these records."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in records.items():
            file.writestr(prefix + name, content)
    return buffer.getvalue()


def tensor_pickle(
    storage: str, elements: int, shape: Sequence[int], strides: Sequence[int], start: int = 0, tail: bytes = b""
) -> bytes:
    """`data.pkl` of a view; `tail` are opcodes of further arguments."""
    opcodes = Opcodes().of(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((")
    opcodes.text("storage").of(f"ctorch\n{storage}\n".encode()).text("0").text("cpu").of(_number(elements), b"tQ")
    opcodes.of(_number(start), b"(", *map(_number, shape), b"t(", *map(_number, strides), b"t")
    return opcodes.of(b"\x89ccollections\nOrderedDict\n)R", tail, b"tR.").bytes()


def saved_tensor(
    data: bytes, storage: str, itemsize: int, shape: Sequence[int], strides: Sequence[int], start: int = 0
) -> bytes:
    """What torch.save makes of a view of a storage."""
    pickled = tensor_pickle(storage, len(data) // itemsize, shape, strides, start)
    return archive({"data.pkl": pickled, "byteorder": b"little", "data/0": data, "version": b"3\n"})


@dataclass(frozen=True)
class WrittenChunk:
    """A chunk of a directory: its file, where it begins in the tensor, and the bytes of its elements."""

    file: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    data: bytes


def read_written(directory: Path) -> dict[str, tuple[str, tuple[int, ...], list[WrittenChunk]]]:
    """Read a directory by Python's own unpickler and zip reader: name -> dtype, shape, chunks.

    The CRC of every record is checked. Only tensors in C order are known.
    """
    files = {path.name: path.read_bytes() for path in directory.glob("*.distcp")}
    with torch_names():
        metadata: Any = pickle.loads((directory / ".metadata").read_bytes())
        places = {
            (index.fqn, _size(index.offset)): (info.relative_path, info.offset, info.length)
            for index, info in metadata.storage_data.items()
        }
        assert len(places) == len(metadata.storage_data)
        found = {}
        for name, tensor in metadata.state_dict_metadata.items():
            dtype = TORCH_DTYPES[tensor.properties.state[0].name]
            chunks = []
            for chunk in tensor.chunks:
                offsets, sizes = _size(chunk.offsets), _size(chunk.sizes)
                file, offset, length = places.pop((name, offsets))
                with zipfile.ZipFile(io.BytesIO(files[file][offset : offset + length])) as stored:
                    assert stored.testzip() is None
                    chunks.append(WrittenChunk(file, offsets, sizes, stored.read("archive/data/0")))
            found[name] = dtype, _size(tensor.size), chunks
    assert not places
    return found


def read_dcp(directory: Path) -> Contents:
    """Read the whole tensors of a directory as `read_written` does; no element may be in two chunks."""
    whole: Contents = {}
    for name, (dtype, shape, chunks) in read_written(directory).items():
        itemsize = (
            next(len(each.data) // math.prod(each.sizes) for each in chunks if each.data) if chunks[0].data else 1
        )
        tensor = np.zeros((*shape, itemsize), np.uint8)
        filled = np.zeros(shape, np.int64)
        for chunk in chunks:
            box = tuple(slice(low, low + size) for low, size in zip(chunk.offsets, chunk.sizes, strict=True))
            tensor[box] = np.frombuffer(chunk.data, np.uint8).reshape(*chunk.sizes, itemsize)
            filled[box] += 1
        assert (filled == 1).all(), name
        whole[name] = dtype, shape, tensor.tobytes()
    return whole


def _size(value: Any) -> tuple[int, ...]:
    [sizes] = value.arguments
    return tuple(sizes)


def _number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)

"""Directories that PyTorch's Distributed Checkpoint (DCP) wrote, changed copies of them, and pickles made by hand."""

import io
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
_TORCH = {
    "torch.distributed.checkpoint.metadata": (*MODELS, "StorageMeta", "_MEM_FORMAT_ENCODING"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
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
    for name in ("float32", "float16", "bfloat16", "float64", "bool", "int64", "int32", "int8", "uint8"):
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


def _number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)

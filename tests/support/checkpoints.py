"""Checkpoint directories read by independent means, and the conversions that MindSpore 2.10.0 wrote."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.ckpt_writer import CheckpointMessage, checkpoint_bytes
from tests.support.places import FIXTURES

CONVERSIONS = FIXTURES / "conversions"
_NAMES = {
    "I8": "Int8",
    "U8": "UInt8",
    "I16": "Int16",
    "U16": "UInt16",
    "I32": "Int32",
    "U32": "UInt32",
    "I64": "Int64",
    "U64": "UInt64",
    "F16": "Float16",
    "BF16": "BFloat16",
    "F32": "Float32",
    "F64": "Float64",
    "BOOL": "Bool",
    **{name: name for name in ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")},
}

Contents = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Parameter name -> dtype, shape, raw bytes."""


def read_ckpt(path: Path) -> Contents:
    """A small `.ckpt` file, by protobuf's own classes; entries of one tag are joined, a CRC is checked."""
    data = path.read_bytes()
    if data[-17:-10] == b"crc_num":
        data, crc = data[:-17], int.from_bytes(data[-10:])
        assert zlib.crc32(data) == crc
    message = CheckpointMessage.FromString(data)
    contents: Contents = {}
    for value in message.value:
        tensor = value.tensor
        former = contents.get(value.tag, ("", (), b""))[2]
        contents[value.tag] = (tensor.tensor_type, tuple(tensor.dims), former + tensor.tensor_content)
    return contents


def read_safetensors(path: Path) -> Contents:
    """A `.safetensors` file, by the safetensors library, which has tensors in another order each time."""
    return {
        name: (_NAMES[entry["dtype"]], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in sorted(safetensors.deserialize(path.read_bytes()))
    }


def write_safetensors(path: Path, contents: Contents) -> None:
    """A `.safetensors` file, of any dtype."""
    short = {name: kind for kind, name in _NAMES.items()}
    header, offset = {}, 0
    for name, (dtype, shape, data) in contents.items():
        header[name] = {"dtype": short[dtype], "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    written = json.dumps(header).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + b"".join(each[2] for each in contents.values()))


def read_rank(directory: Path, rank: int) -> Contents:
    """The one checkpoint file of a rank folder."""
    [path] = [path for path in (directory / f"rank_{rank}").iterdir() if not path.name.startswith(".")]
    return read_safetensors(path) if path.suffix == ".safetensors" else read_ckpt(path)


def read_tree(directory: Path) -> dict[int, Contents]:
    """All rank folders of a checkpoint."""
    ranks = sorted(int(path.name.removeprefix("rank_")) for path in directory.glob("rank_*"))
    return {rank: read_rank(directory, rank) for rank in ranks}


@dataclass(frozen=True)
class Case:
    """A conversion: the source, both strategies and the target that is right."""

    directory: Path

    @property
    def info(self) -> dict[str, Any]:
        """Sizes, as written beside the files."""
        found: dict[str, Any] = json.loads((self.directory / "case.json").read_text())
        return found

    @property
    def want(self) -> dict[int, Contents]:
        """What the target is to hold."""
        return read_tree(self.directory / "want")

    def request(self, target: Path | str, **options: object) -> ConversionRequest:
        """The request for this conversion."""
        defaults: dict[str, object] = {
            "source": str(self.directory / "src"),
            "target": str(target),
            "source_strategy": str(self.directory / "src_strategy.ckpt"),
            "target_strategy": str(self.directory / "dst_strategy.ckpt"),
        }
        return build_request(**(defaults | options))


ALL_CASES = [Case(path) for path in sorted(CONVERSIONS.iterdir())]


def case(number: int) -> Case:
    """One of the conversions."""
    return Case(CONVERSIONS / f"case_{number}")


def check_crc_of(path: Path) -> None:
    """As MindSpore does, by other means than reshard's."""
    data = path.read_bytes()
    if path.suffix == ".ckpt":
        assert data[-17:-10] == b"crc_num"
        assert int.from_bytes(data[-10:]) == zlib.crc32(data[:-17])
        return
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    crc = 0
    for name, entry in sorted(safetensors.deserialize(data)):
        content = bytes(entry["data"])
        if not entry["shape"] and entry["dtype"].lstrip("U").startswith("I"):
            content = bytes(int.from_bytes(content, "little"))
        crc = zlib.crc32(content, zlib.crc32(name.encode(), crc))
    assert metadata["crc_num"] == str(crc)


def ckpt(path: Path, **arrays: np.ndarray) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    dtypes = {"float32": "Float32", "int32": "Int32"}
    entries = [(name, dtypes[array.dtype.name], array.shape, array.tobytes()) for name, array in arrays.items()]
    path.write_bytes(checkpoint_bytes(*entries))
    return str(path)

"""Files of Megatron's ranks, read by zipfile and pickle alone, and what Megatron-Core's own writers made of models."""

import io
import json
import math
import pickle
import zipfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.checkpoints import Contents, read_safetensors, write_safetensors
from tests.support.places import FIXTURES

MEGATRON_FIXTURES = FIXTURES / "megatron"
LEGACY_CASES = sorted(path.name for path in MEGATRON_FIXTURES.glob("legacy_*"))
_DTYPES = {
    "torch.BFloat16Storage": "BFloat16",
    "torch.FloatStorage": "Float32",
    "torch.HalfStorage": "Float16",
    "torch.LongStorage": "Int64",
}
_SIZES = {"BFloat16": 2, "Float16": 2, "Float32": 4, "Int64": 8}


@dataclass(frozen=True)
class StoredArray:
    """A tensor in a file: its dtype, its shape and its bytes; `storage` is the key of its storage."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    storage: str


class _Inert:
    """An object of any class of torch or Megatron."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{prefix}data.pkl")))
        self._read = lambda key: archive.read(f"{prefix}data/{key}")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if name == "_rebuild_from_type_v2":
            return lambda function, kind, arguments, state: function(*arguments)
        if module in ("collections", "argparse", "builtins"):
            return super().find_class(module, name)
        return f"torch.{name}" if module == "torch" else type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        _, kind, key, _, _ = pid
        return _DTYPES[kind], key

    def _tensor(self, storage: tuple[str, str], offset: int, shape: Any, strides: Any, *_: object) -> StoredArray:
        dtype, key = storage
        dense = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        assert all(length == 1 or stride == want for length, stride, want in zip(shape, strides, dense, strict=True))
        start = offset * _SIZES[dtype]
        data = self._read(key)[start : start + math.prod(shape) * _SIZES[dtype]]
        return StoredArray(dtype, tuple(shape), data, key)


def read_tree(path: Path) -> Any:
    """What torch.load returns."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        [name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return _Unpickler(archive, name.removesuffix("data.pkl")).load()


def read_rank_file(path: Path) -> dict[str, Any]:
    """The dict that torch.load returns of a rank's file."""
    found = read_tree(path)
    assert isinstance(found["args"], Namespace)
    return dict(found)


def models_of(rank_file: dict[str, Any]) -> dict[str, Contents]:
    """The tensors of each chunk of a file's model, by their names."""
    return {
        key: {
            name: (each.dtype, each.shape, each.data) for name, each in value.items() if isinstance(each, StoredArray)
        }
        for key, value in rank_file.items()
        if key.startswith("model")
    }


def read_models(directory: Path) -> dict[str, dict[str, Contents]]:
    """The models in all files of an iteration, by the names of their folders."""
    return {
        path.parent.name: models_of(read_rank_file(path)) for path in sorted(directory.glob("*/model_optim_rng.pt"))
    }


def whole_model(answer: Path) -> Contents:
    """The model beside a case's description; experts in one tensor have an axis of their own."""
    model = json.loads((answer / "case.json").read_text()).get("model", {})
    whole = read_safetensors(answer / "want.safetensors")
    for name, (dtype, shape, data) in whole.items():
        if name.endswith(".experts.weight1"):
            whole[name] = dtype, (model["experts"], model["hidden"], 2 * model["moe_ffn"]), data
        elif name.endswith(".experts.weight2"):
            whole[name] = dtype, (model["experts"], model["moe_ffn"], model["hidden"]), data
        assert math.prod(whole[name][1]) == math.prod(shape)
    return whole


@dataclass(frozen=True)
class MegatronCase:
    """A checkpoint that Megatron-Core wrote, and the whole model."""

    directory: Path

    @property
    def info(self) -> dict[str, Any]:
        """Sizes, as written beside the files."""
        found: dict[str, Any] = json.loads((self.directory / "case.json").read_text())
        return found

    @property
    def iteration(self) -> Path:
        """The directory of its only iteration."""
        [found] = (self.directory / "src").glob("iter_*")
        return found

    @property
    def want(self) -> Contents:
        """The whole model; experts in one tensor have an axis of their own."""
        return whole_model(self.directory)

    @property
    def options(self) -> dict[str, object]:
        """Options of a target with the sizes of its training."""
        sizes = self.info["parallel"]
        return {
            "tensor_parallel": sizes["tp"],
            "pipeline_parallel": sizes["pp"],
            "virtual_pipeline": sizes["vpp"] or 1,
            "expert_parallel": sizes["ep"],
            "expert_tensor_parallel": sizes["etp"] or 0,
            "pipeline_first_layers": sizes["first"] or 0,
            "pipeline_last_layers": sizes["last"] or 0,
            "attention_heads": 0 if self.info["model"].get("mla") else self.info["model"]["heads"],
        }

    def write_whole(self, path: Path) -> Path:
        """Write the whole model as one file."""
        write_safetensors(path, self.want)
        return path

    def request(self, source: Path | str, target: Path | str, **options: object) -> ConversionRequest:
        """The request for a target with the sizes of its training, unless options say otherwise."""
        given: dict[str, object] = {"source": str(source), "target": str(target), "layout": "megatron", "workers": 2}
        return build_request(**given | self.options | options)


def megatron_case(name: str) -> MegatronCase:
    """One of the cases, by its name."""
    return MegatronCase(MEGATRON_FIXTURES / name)

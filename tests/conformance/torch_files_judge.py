"""torch.save and torch.load, in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard, so that their agreement means something. A tree
is described as JSON has it: dicts as `["dict", [[key, value], …]]`, tensors as `["tensor", dtype, shape, hex bytes]`.
"""

import argparse
import collections
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def _sample() -> dict[Any, Any]:
    base = torch.arange(24, dtype=torch.float32)
    marked = torch.ones(2, dtype=torch.bfloat16)
    marked.tensor_model_parallel = True
    parameter = torch.nn.Parameter(torch.full((2, 2), 3.0, dtype=torch.float16))
    marked_parameter = torch.nn.Parameter(torch.full((3,), 4.0))
    marked_parameter.partition_dim = 0
    state = torch.nn.Linear(2, 3).state_dict()  # an OrderedDict with `_metadata`
    several: collections.defaultdict[str, dict[str, Any]] = collections.defaultdict(dict)
    several["group"]["w"] = torch.zeros(1)
    return {
        "model": state,
        "views": [base[4:10], base.view(4, 6).t(), base.view(4, 6)[:, 1:3], base[:1].expand(3), base],
        "tensors": {
            "marked": marked,
            "parameter": parameter,
            "marked parameter": marked_parameter,
            "scalar": torch.tensor(7, dtype=torch.int64),
            "empty": torch.zeros((0, 3), dtype=torch.uint8),
            "float8": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
            "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
            "bool": torch.tensor([True, False]),
            "channels last": torch.arange(16.0).view(1, 2, 2, 4).contiguous(memory_format=torch.channels_last),
        },
        "several": several,
        "args": argparse.Namespace(
            layers=2, dtype=torch.bfloat16, device=torch.device("cpu"), lr=1e-4, names=("a", None)
        ),
        "size": torch.Size((2, 3)),
        "stream": io.BytesIO(b"\x00\xff bytes"),
        "bytes": b"\x00\x80\xff",
        7: [True, -(2**40), float("inf")],
        (torch.bfloat16, torch.float32): "by dtypes",
    }


def save(directory: str) -> dict[str, Any]:
    """Save a tree of everything under several protocols; the tree's description."""
    sample = _sample()
    for protocol in (2, 4, 5):
        torch.save(sample, Path(directory) / f"protocol{protocol}.pt", pickle_protocol=protocol)
    return {"tree": _described(sample)}


def load(path: str, weights_only: bool) -> dict[str, Any]:
    """Load a file, and describe it."""
    return {"tree": _described(torch.load(path, weights_only=weights_only))}


def refused(path: str) -> dict[str, Any]:
    """Save what is refused, one file a kind: kind -> file."""
    kinds: dict[str, Any] = {
        "sparse": {"w": torch.eye(2).to_sparse()},
        "quantized": {"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)},
        "lazy": {"w": torch.ones(2, dtype=torch.complex64).conj()},
        "meta": {"w": torch.ones(2, device="meta")},
        "storage": {"w": torch.ones(2).untyped_storage()},
    }
    files = {}
    for kind, tree in kinds.items():
        files[kind] = str(Path(path) / f"{kind}.pt")
        torch.save(tree, files[kind])
    files["old"] = str(Path(path) / "old.pt")
    torch.save({"w": torch.ones(2)}, files["old"], _use_new_zipfile_serialization=False)
    files["program"] = str(Path(path) / "program.pt")
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), files["program"])
    return files


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), data.hex()]
    if isinstance(value, dict):
        return ["dict", [[_described(key), _described(each)] for key, each in value.items()]]
    if isinstance(value, argparse.Namespace):
        return ["object", "argparse.Namespace", _described(vars(value))]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [_described(each) for each in value]]
    if isinstance(value, torch.dtype):
        return ["name", str(value)]
    if isinstance(value, torch.device):
        return ["object", "torch.device", None]
    if isinstance(value, io.BytesIO):
        return ["object", "_io.BytesIO", _described((value.getvalue(), 0, None))]
    return ["bytes", value.hex()] if isinstance(value, bytes) else repr(value)


OPERATIONS: Mapping[str, Callable[..., Any]] = {"save": save, "load": load, "refused": refused}

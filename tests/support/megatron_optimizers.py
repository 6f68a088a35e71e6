"""Optimizers as Megatron-Core saves them, added to models that it saved without: each state follows from its weight."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reshard.core.files.model import OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.pickled import Global, Pairs
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import Shape
from tests.support.checkpoints import Contents
from tests.support.megatron_sources import MODEL_FILE, OPTIMIZER_FILE, MegatronSource
from tests.support.torch_files import content_of, items_of, read, written

_INERT = ("args", "rng_state", "opt_param_scheduler")
_SLOTS = ("param", "exp_avg", "exp_avg_sq")
_LOW_BITS = {"param": 0x6000, "exp_avg": 0x5000, "exp_avg_sq": 0x7000}
_SIGN = {"param": 0, "exp_avg": 0, "exp_avg_sq": 1 << 31}
_GAP = b"\xff"


def add_plain_optimizer(source: MegatronSource, *, full: bool = False) -> Contents:
    """Add an optimizer that is not distributed; return the whole model with it. `full`: weights become float32."""
    for rank in _ranks(source, full):
        rank.root["optimizer"] = _only(rank.optimizers(rank.numbered))
        rank.write()
    return _whole(source, full)


def add_distributed_optimizer(source: MegatronSource, *, full: bool = False) -> Contents:
    """Add a distributed optimizer; return the whole model with it. `full`: weights become float32.

    What expert-parallel ranks have in common is in the file of the first of them.
    """
    saved = set()
    for rank in _ranks(source, full):
        rank.root["optimizer"] = _only(rank.optimizers(lambda *_: {"optimizer": {"param_groups": []}}))
        rank.write()
        contents = _Contents()
        buffers = rank.optimizers(lambda chunks, _, into=contents: _buffers(chunks, full, into))
        common = rank.folder.rpartition("_")[0] if len(buffers) > 1 else rank.folder
        if common in saved:
            buffers[0] = None
            used = {place.name for place in _places(buffers)}
            contents = _Contents({name: each for name, each in contents.items() if name in used})
        saved.add(common)
        source.file(rank.folder, OPTIMIZER_FILE).write_bytes(written(_only(buffers), contents, "distrib_optim"))
    return _whole(source, full)


class _Contents(dict[str, tuple[OutputEntry, bytes]]):
    """The tensors of a file, which are named by numbers."""

    def add(self, dtype: str, shape: Shape, data: bytes) -> TensorPlace:
        entry = OutputEntry(str(len(self)), dtype_from_name(dtype), shape)
        self[entry.name] = entry, data
        return TensorPlace(entry.name)


_Chunk = Mapping[str, tuple[Shape, bytes]]
"""The parameters of a chunk in bfloat16, in the order of the model."""


class _Rank:
    def __init__(self, source: MegatronSource, folder: str, full: bool) -> None:
        self.folder = folder
        self._path = source.file(folder)
        data = self._path.read_bytes()
        self.root = items_of(read(self._path, *_INERT).root)
        self._full = full
        self._contents = _Contents()
        self._chunks: list[_Chunk] = []
        for key in [key for key in self.root if key.startswith("model")]:
            tensors = {
                name: (each.dtype.name, each.shape, content_of(data, each))
                for name, each in items_of(self.root[key]).items()
                if isinstance(each, StoredTensor)
            }
            self._chunks.append(
                {name: (shape, data) for name, (dtype, shape, data) in tensors.items() if dtype == "BFloat16"}
            )
            self.root[key] = {name: self._contents.add(*_weight(each, full)) for name, each in tensors.items()}
        self._expert_size = dict(self.root["args"].state)["expert_model_parallel_size"]

    def optimizers(self, make: Any) -> list[Any]:
        """What `make` makes of the parameters of all chunks; of experts apart, if not all ranks have them."""
        kinds = (False, True) if self._expert_size > 1 else (None,)
        return [
            make(
                [{n: each for n, each in chunk.items() if of in (None, ".experts." in n)} for chunk in self._chunks], of
            )
            for of in kinds
        ]

    def numbered(self, chunks: Sequence[_Chunk], of_experts: bool | None) -> dict[str, Any]:
        """A plain optimizer of some parameters."""
        parameters = {(number, name): each for number, chunk in enumerate(chunks) for name, each in chunk.items()}
        state: dict[int, Any] = {}
        groups, masters = [], []
        for decays in (True, False):
            members = [
                each for (_, name), each in parameters.items() if (len(each[0]) > 1 and name[-5:] != ".bias") is decays
            ]
            if members:
                numbers = [*range(len(state), len(state) + len(members))]
                groups.append({"params": numbers, "wd_mult": float(decays), "is_expert_parallel": bool(of_experts)})
                masters.append([self._add(each, "param") for each in members] if not self._full else [])
                for number, each in zip(numbers, members, strict=True):
                    state[number] = {slot: self._add(each, slot) for slot in _SLOTS[1:]} | {"step": 3.0}
        inner = {"state": state, "param_groups": groups}
        return inner if self._full else {"optimizer": inner, "fp32_from_fp16_params": masters}

    def _add(self, parameter: tuple[Shape, bytes], slot: str) -> TensorPlace:
        shape, data = parameter
        return self._contents.add("Float32", shape, _state(data, slot))

    def write(self) -> None:
        self._path.write_bytes(written(Pairs(self.root.items()), self._contents, "model_optim_rng"))


def _ranks(source: MegatronSource, full: bool) -> list[_Rank]:
    return [_Rank(source, path.parent.name, full) for path in sorted(source.iteration.glob(f"*/{MODEL_FILE}"))]


def _only(optimizers: list[Any]) -> Any:
    return optimizers if len(optimizers) > 1 else optimizers[0]


def _buffers(chunks: Sequence[_Chunk], full: bool, contents: _Contents) -> dict[Any, Any]:
    kind = Global("torch", "float32" if full else "bfloat16"), Global("torch", "float32")
    found: dict[Any, Any] = {"buckets_coalesced": True}
    for number, chunk in enumerate(chunks):
        flat = dict.fromkeys(_SLOTS, b"")
        for slot in _SLOTS:
            for _, data in reversed([*chunk.values()]):
                flat[slot] += _GAP * (-len(flat[slot]) % 256) + _state(data, slot)
        count = len(flat["param"]) // 4
        tensors = {slot: contents.add("Float32", (count,), data) for slot, data in flat.items()}
        found[number] = {kind: {**tensors, "numel_unpadded": count}}
    return found


def _places(value: Any) -> list[TensorPlace]:
    if isinstance(value, dict | list):
        return [place for each in (value.values() if isinstance(value, dict) else value) for place in _places(each)]
    return [value] if isinstance(value, TensorPlace) else []


def _state(weight: bytes, slot: str) -> bytes:
    """A state of a weight in bfloat16: float32 with some low bits. The second moment alone does not round to it."""
    bits = np.frombuffer(weight, "<u2").astype("<u4")
    return (((bits << 16) | (bits * 7 % _LOW_BITS[slot])) ^ _SIGN[slot]).astype("<u4").tobytes()


def _weight(weight: tuple[str, Shape, bytes], full: bool) -> tuple[str, Shape, bytes]:
    dtype, shape, data = weight
    return ("Float32", shape, _state(data, "param")) if full and dtype == "BFloat16" else weight


def _whole(source: MegatronSource, full: bool) -> Contents:
    whole = {name: _weight(each, full) for name, each in source.want.items()}
    for name, (dtype, shape, data) in source.want.items():
        if dtype == "BFloat16":
            whole |= {f"optimizer.state.{slot}.{name}": ("Float32", shape, _state(data, slot)) for slot in _SLOTS}
    return whole

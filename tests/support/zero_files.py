"""Writes the files that DeepSpeed's ZeRO saves, by its rules, of models of any shapes; all places are counted anew.

A row of a group in stages 1 and 2 is joined and cut with numpy; in stage 3 each parameter is padded and cut alone.
Padding is not zero, so that a reader that takes it for values gives wrong ones.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reshard.core.files.model import CheckpointFormat, Content, OutputEntry
from reshard.core.files.running_crc import ContentRange, running_crc
from reshard.core.files.torch_file_writing import TensorPlace, plan_torch_file
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.tensor.casting import cast_bits
from reshard.core.tensor.dtypes import dtype_from_name
from tests.support.checkpoints import Contents

PADDING = np.float32(-777.25)
FLOAT32 = dtype_from_name("Float32")
_VERSION = "0.19.8"
_FRAGMENT = Global("deepspeed.utils.tensor_fragment", "fragment_address")
_STAGE = Global("deepspeed.runtime.zero.config", "ZeroStageEnum")
_SCALER = Global("deepspeed.runtime.fp16.loss_scaler", "LossScaler")

Arrays = dict[str, np.ndarray]
"""Name -> float32 values."""
Tree = dict[str, Any]


@dataclass(frozen=True)
class ZeroModel:
    """A model and its optimizer.

    Attributes:
        groups: the parameters of each group: name -> master, in the order of the group.
        states: key, such as exp_avg -> name of a parameter -> its state.
        frozen: parameters without an optimizer.
        buffers: name -> values of any dtype that safetensors has.
        tied: another name -> the parameter.
    """

    groups: list[Arrays]
    states: dict[str, Arrays] = field(default_factory=dict)
    frozen: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)

    @property
    def masters(self) -> Arrays:
        """The parameters of all groups."""
        return {name: master for group in self.groups for name, master in group.items()}


def random_model(
    seed: int, shapes: Sequence[Mapping[str, tuple[int, ...]]], keys: Sequence[str] = ("exp_avg", "exp_avg_sq")
) -> ZeroModel:
    """A model of random values, with groups of these shapes."""
    random = np.random.default_rng(seed)

    def values(shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(random.standard_normal(shape), np.float32)

    groups = [{name: values(shape) for name, shape in group.items()} for group in shapes]
    names = {name: shape for group in shapes for name, shape in group.items()}
    return ZeroModel(groups, {key: {name: values(shape) for name, shape in names.items()} for key in keys})


@dataclass(frozen=True)
class ZeroTraining:
    """How a training with ZeRO saves a model.

    Attributes:
        dtype: of the module, BFloat16, Float16 or Float32.
        accumulates_float32: the optimizer of bf16 that accumulates in float32, of stage 1: it pads masters, too.
        alignment: each parameter of stage 1 or 2 but the first begins at a multiple of it.
        sub_group_size: in stage 3 a sub-group is closed by the parameter that makes it this long.
        is_elastic: states of stages 1 and 2 have no padding, and are a list.
        says_places: files say where parameters are, as newer versions do.
        step: steps of the training.
    """

    stage: int = 2
    ranks: int = 2
    dtype: str = "BFloat16"
    accumulates_float32: bool = False
    alignment: int = 1
    sub_group_size: int = 1 << 40
    is_elastic: bool = False
    says_places: bool = True
    step: int = 40
    version: str = _VERSION

    @property
    def prefix(self) -> str:
        """Before the names of the optimizer's files."""
        return "bf16_" if self.dtype == "BFloat16" else ""

    def model_name(self, rank: int) -> str:
        """The name of a file of the model."""
        return f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if self.stage == 3 else "mp_rank_00_model_states.pt"

    def optimizer_name(self, rank: int) -> str:
        """The name of a file of the optimizer."""
        return f"{self.prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


Change = Callable[[str, Tree], object]
"""Changes the tree of a file, whose name it is given, before the file is written."""


def write_zero(root: Path, model: ZeroModel, training: ZeroTraining, change: Change = lambda name, tree: None) -> Path:
    """Write a save below a training's directory, and `latest`; return the tag's directory."""
    tag = root / f"global_step{training.step}"
    tag.mkdir(parents=True)
    saved = _partitioned(model, training) if training.stage == 3 else _joined(model, training)
    for name, tree in saved.items():
        change(name, tree)
        write_torch_file(tag / name, tree)
    (root / "latest").write_text(tag.name)
    return tag


def expected(model: ZeroModel, training: ZeroTraining) -> Contents:
    """What a reader has to make of a save: masters, states, and all else as it is stored."""
    found: Arrays = model.masters | {tied: model.masters[name] for tied, name in model.tied.items()}
    for key, states in model.states.items():
        found |= {f"{key}.{name}": values for name, values in states.items()}
    contents: Contents = {name: ("Float32", each.shape, each.tobytes()) for name, each in found.items()}
    for name, values in model.frozen.items():
        contents[name] = (training.dtype, values.shape, _bits(values, training.dtype).tobytes())
    for name, values in model.buffers.items():
        contents[name] = (_dtype_name(values), values.shape, values.tobytes())
    return contents


@dataclass(frozen=True)
class Tensor:
    """A tensor in a tree: its bits, and its dtype; two places of one object share a storage."""

    bits: np.ndarray
    dtype: str


def write_torch_file(path: Path, root: object) -> None:
    """Write a tree with `Tensor`s as torch.save does, block by block."""
    tensors: dict[int, tuple[str, Tensor]] = {}

    def placed(value: Any) -> Any:
        match value:
            case Tensor():
                name, _ = tensors.setdefault(id(value), (str(len(tensors)), value))
                return TensorPlace(name)
            case dict():
                return Pairs((key, placed(each)) for key, each in value.items())
            case list():
                return [placed(each) for each in value]
        return value

    tree = placed(root)
    contents = dict(tensors.values())
    entries = [OutputEntry(name, dtype_from_name(each.dtype), each.bits.shape) for name, each in contents.items()]
    plan = plan_torch_file(tree, entries, path.name.removesuffix(".pt"))
    crc = running_crc(CheckpointFormat.DISTCP, plan, entries)
    with path.open("wb") as file:
        for segment in plan.segments:
            is_content = isinstance(segment, Content)
            block = bytearray(contents[segment.name].bits.tobytes() if isinstance(segment, Content) else segment)
            ranges = [ContentRange(segment.name, 0, len(block))] if isinstance(segment, Content) else []
            if crc is not None:  # else there are no tensors
                crc.add(memoryview(block), ranges, [zlib.crc32(block)] if is_content else [])
            file.write(block)


def _bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 values, rounded to a dtype."""
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view("<u4")
    return cast_bits(bits, FLOAT32, dtype_from_name(dtype)).reshape(values.shape)


def _float32(values: np.ndarray) -> Tensor:
    return Tensor(np.asarray(values, np.float32), "Float32")


def _dtype_name(values: np.ndarray) -> str:
    return {"float32": "Float32", "int64": "Int64", "uint8": "UInt8"}[values.dtype.name]


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    flat = values.reshape(-1)
    return np.concatenate([flat, np.full(length - flat.size, PADDING, np.float32)])


def _size(shape: tuple[int, ...]) -> PickledObject:
    return PickledObject(Global("torch", "Size"), (shape,))


def _shapes(arrays: Arrays) -> Tree:
    return {name: _size(values.shape) for name, values in arrays.items()}


def _model_tree(model: ZeroModel, training: ZeroTraining, groups: Sequence[Arrays], module: Tree) -> Tree:
    """A file of the model."""
    return {
        "module": module,
        "buffer_names": list(model.buffers),
        "optimizer": None,
        "param_shapes": [_shapes(group) for group in groups],
        "frozen_param_shapes": None,
        "shared_params": dict(model.tied),
        "frozen_param_fragments": None,
        "lr_scheduler": None,
        "skipped_steps": 0,
        "global_steps": training.step,
        "dp_world_size": training.ranks,
        "mp_world_size": 1,
        "ds_config": {"zero_optimization": {"stage": training.stage}},
        "ds_version": training.version,
    }


def _numbered_states(training: ZeroTraining, states: Sequence[Mapping[str, np.ndarray]]) -> Tree:
    step = np.asarray(training.step, np.float32)
    return {
        "state": {
            number: {"step": _float32(step)} | {key: _float32(row) for key, row in each.items()}
            for number, each in enumerate(states)
            if each
        },
        "param_groups": [{"lr": 0.01, "params": [number]} for number in range(len(states))],
    }


@dataclass(frozen=True)
class _Row:
    """A group in stages 1 and 2: where each parameter begins, and the length without and with padding."""

    starts: list[int]
    paddings: list[int]
    length: int
    part: int

    def filled(self, arrays: Sequence[np.ndarray], ranks: int) -> np.ndarray:
        row = np.full(self.part * ranks, PADDING, np.float32)
        for start, values in zip(self.starts, arrays, strict=True):
            row[start : start + values.size] = values.reshape(-1)
        return row


def _row(group: Arrays, training: ZeroTraining) -> _Row:
    starts, paddings, position = [], [], 0
    for number, values in enumerate(group.values()):
        starts.append(position)
        position += values.size
        padding = 0 if number == len(group) - 1 else -position % training.alignment
        paddings.append(padding)
        position += padding
    return _Row(starts, paddings, position, -(-position // (2 * training.ranks)) * 2)


def _joined(model: ZeroModel, training: ZeroTraining) -> dict[str, Tree]:
    """The files of stages 1 and 2."""
    stored = {name: Tensor(_bits(values, training.dtype), training.dtype) for name, values in model.masters.items()}
    stored |= {name: Tensor(_bits(values, training.dtype), training.dtype) for name, values in model.frozen.items()}
    module: Tree = {**stored, **{name: Tensor(each, _dtype_name(each)) for name, each in model.buffers.items()}}
    module |= {tied: stored[name] for tied, name in model.tied.items()}
    tree = _model_tree(model, training, model.groups, module)
    if training.stage == 2:
        tree["frozen_param_shapes"] = _shapes(model.frozen)
        tree["frozen_param_fragments"] = {name: stored[name] for name in model.frozen}
    rows = [_row(group, training) for group in model.groups]
    files = {training.model_name(0): tree}
    for rank in range(training.ranks):
        files[training.optimizer_name(rank)] = {
            "optimizer_state_dict": _joined_part(model, training, rows, rank),
            "ds_config": {},
            "ds_version": training.version,
        }
    return files


def _joined_part(model: ZeroModel, training: ZeroTraining, rows: Sequence[_Row], rank: int) -> Tree:
    masters, states, paddings, fragments = [], [], [], []
    for row, group in zip(rows, model.groups, strict=True):
        start, stop = rank * row.part, (rank + 1) * row.part
        used = min(max(row.length, start), stop)
        padding = stop - used
        if training.accumulates_float32:
            padding = row.part * training.ranks - row.length if rank == training.ranks - 1 else 0
        master = row.filled(list(group.values()), training.ranks)
        masters.append(_float32(master[start : stop if training.accumulates_float32 else used]))
        states.append(
            {
                key: row.filled([of_key[name] for name in group], training.ranks)[
                    start : used if training.is_elastic else stop
                ]
                for key, of_key in model.states.items()
            }
        )
        paddings.append(padding)
        fragments.append(
            {
                name: PickledObject(_FRAGMENT, (), Pairs([("numel", high - low), ("start", low - start)]))
                for name, values, first in zip(group, group.values(), row.starts, strict=True)
                if (low := max(first, start)) < (high := min(first + values.size, stop))
            }
        )
    tree: Tree = {
        "clip_grad": 1.0,
        "base_optimizer_state": (
            [{key: _float32(state) for key, state in each.items()} for each in states]
            if training.is_elastic
            else _numbered_states(training, states)
        ),
        "single_partition_of_fp32_groups": masters,
        "group_paddings": paddings,
        "partition_count": [training.ranks] * len(rows),
        "ds_version": training.version,
    }
    if not training.accumulates_float32:
        tree["loss_scaler"] = PickledObject(_SCALER, (), Pairs([("cur_scale", 1.0), ("dynamic", False)]))
        tree["zero_stage"] = PickledObject(_STAGE, (training.stage,))
        tree["param_alignment_paddings"] = [row.paddings for row in rows]
    if training.says_places:
        tree["param_slice_mappings"] = fragments
    return tree


def _sub_groups(model: ZeroModel, training: ZeroTraining) -> list[Arrays]:
    """The groups, divided where a sub-group is long enough."""
    found: list[Arrays] = []
    for group in model.groups:
        current: Arrays = {}
        for name, values in group.items():
            current[name] = values
            if sum(each.size for each in current.values()) >= training.sub_group_size:
                found.append(current)
                current = {}
        if current:
            found.append(current)
    return found


def _cut(values: np.ndarray, training: ZeroTraining, rank: int) -> np.ndarray:
    """A rank's part of a parameter in stage 3."""
    length = math.ceil(values.size / training.ranks)
    return _padded(values, length * training.ranks)[rank * length : (rank + 1) * length]


def _partitioned(model: ZeroModel, training: ZeroTraining) -> dict[str, Tree]:
    """The files of stage 3."""
    groups = _sub_groups(model, training)
    files: dict[str, Tree] = {}
    for rank in range(training.ranks):

        def parts(names: Sequence[str], arrays: Arrays, rank: int = rank) -> np.ndarray:
            found = [_cut(arrays[name], training, rank) for name in names]
            return np.concatenate(found or [np.zeros(0, np.float32)])

        module: Tree = {
            name: Tensor(_bits(np.zeros(0, np.float32), training.dtype), training.dtype)
            for name in (*model.masters, *model.frozen)
        }
        module |= {tied: module[name] for tied, name in model.tied.items()}
        module |= {name: Tensor(each, _dtype_name(each)) for name, each in model.buffers.items()}
        tree = _model_tree(model, training, groups, module)
        tree["frozen_param_shapes"] = _shapes(model.frozen)
        tree["frozen_param_fragments"] = {
            name: Tensor(_bits(_cut(values, training, rank), training.dtype), training.dtype)
            for name, values in model.frozen.items()
        }
        if rank:
            tree["shared_params"] = {}
        files[training.model_name(rank)] = tree
        states = [{key: parts([*group], arrays) for key, arrays in model.states.items()} for group in groups]
        files[training.optimizer_name(rank)] = {
            "optimizer_state_dict": {
                "zero_stage": PickledObject(_STAGE, (3,)),
                "partition_count": training.ranks,
                "optimizer_state_dict": _numbered_states(training, states),
                "fp32_flat_groups": [_float32(parts([*group], model.masters)) for group in groups],
            },
            "ds_config": {},
            "ds_version": training.version,
        }
    return files

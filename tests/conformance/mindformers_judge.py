"""MindFormers' Checkpoint 2.0 in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of MindFormers' environment. It knows nothing of reshard, so that their agreement means something. One
process plays every rank of a job: rank, number of ranks, barriers and compiled layouts are given to MindFormers' own
functions, which do the rest. A rank's layouts: name -> None, or the five values of metadata.json.
"""

import importlib.abc
import importlib.machinery
import logging
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import safetensors
from mindspore.common import np_dtype

Layouts = dict[str, dict[str, Any] | None]


class _HyperParallel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the package hyper_parallel, which no registry has, with empty classes."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_part = name.partition(".")[0] == "hyper_parallel"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_part else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)

        def empty_class(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda self, *positional, **named: None})

        module.__getattr__ = empty_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, _HyperParallel())
logging.disable(logging.INFO)

from mindformers.checkpoint import checkpoint as saving  # noqa: E402
from mindformers.checkpoint.layout_adapter import LayoutAdapter  # noqa: E402
from mindformers.checkpoint.metadata import _deserialize_sharded_tensor_layout  # noqa: E402
from mindformers.checkpoint.reshard import infer_slice_area_by_rank  # noqa: E402
from mindformers.checkpoint.sharded_tensor import get_all_sharded_tensor  # noqa: E402
from mindformers.checkpoint.utils import verify_ckpt_valid  # noqa: E402

_DTYPES = {
    "F32": ("float32", np.dtype("float32")),
    "F16": ("float16", np.dtype("float16")),
    "BF16": ("bfloat16", np_dtype.bfloat16),
    "I32": ("int32", np.dtype("int32")),
}
_GLOBAL_STEP = "global_step"


def save(
    whole: str,
    root: str,
    iteration: int,
    ranks: Sequence[Layouts],
    optimizer: Sequence[str],
    unwritten: Sequence[Sequence[str]],
    common: dict[str, Any],
    prefix: str | None = None,
    remove_redundancy: bool = False,
) -> None:
    """Save the whole tensors of a file as an iteration, every rank by its layouts.

    Args:
        optimizer: the tensors that are not the network's.
        unwritten: for each rank the tensors of which it holds a copy that the pipeline shares, so does not write.
    """
    tensors = _read(whole)
    with _playing(ranks, tensors) as play:
        for rank, layouts in enumerate(ranks):
            play(rank)
            written = {
                name: _shard(tensors[name], layout, rank)
                for name, layout in layouts.items()
                if name not in unwritten[rank]
            }
            network, others = _cells(list(tensors), written, optimizer)
            if optimizer:
                step = mindspore.Tensor(np.array([common["global_step"]], np.int32))
                others.insert_param_to_cell(_GLOBAL_STEP, mindspore.Parameter(step, name=_GLOBAL_STEP))
            saving.save_checkpoint(
                iteration,
                network,
                others if optimizer else None,
                common_info=saving.CommonInfo(**common),
                user_prefix=prefix,
                save_checkpoint_path=root,
                sharded_tensor_metas=get_all_sharded_tensor(network) if len(ranks) > 1 else None,
                remove_redundancy=remove_redundancy,
            )


def load(
    checkpoint: str, target: str, whole: str, optimizer: Sequence[str], ranks: Sequence[Layouts]
) -> dict[str, str]:
    """Load a checkpoint on every rank by its layouts, and write what each rank got.

    Args:
        target: where `RANK.safetensors` are written, with what was loaded and nothing else.
        whole: a file with the whole tensors, of which dtypes and shapes are taken.

    Returns:
        rank -> what was raised instead.
    """
    tensors, refusals = _read(whole), {}
    Path(target).mkdir(parents=True)
    with _playing(ranks, tensors) as play:
        for rank, layouts in enumerate(ranks):
            play(rank)
            blank = {name: _shard(np.zeros_like(tensors[name]), layout, rank) for name, layout in layouts.items()}
            network, others = _cells(list(blank), blank, optimizer)
            if optimizer:
                zero = mindspore.Tensor(np.zeros(1, np.int32))
                others.insert_param_to_cell(_GLOBAL_STEP, mindspore.Parameter(zero, name=_GLOBAL_STEP))
            try:
                loaded = _loaded(checkpoint, network, others if optimizer else None)
            except Exception as error:
                refusals[str(rank)] = f"{type(error).__name__}: {error}"
            else:
                _write(Path(target) / f"{rank}.safetensors", loaded)
    return refusals


def verify(iteration: str) -> None:
    """Have MindFormers call an iteration's directory valid, or raise."""
    verify_ckpt_valid(iteration)


OPERATIONS: dict[str, Callable[..., Any]] = {function.__name__: function for function in (save, load, verify)}


@contextmanager
def _playing(ranks: Sequence[Layouts], tensors: dict[str, np.ndarray]) -> Iterator[Callable[[int], None]]:
    """Make the process one of a job's ranks: the one that is named last."""
    playing = 0
    layouts = {
        rank: {name: [_layout(layout), _dtype(tensors[name]), tensors[name].shape] for name, layout in held.items()}
        for rank, held in enumerate(ranks)
    }
    parts: dict[str, Any] = {
        "get_real_rank": lambda: playing,
        "get_real_group_size": lambda: len(ranks),
        "get_group_size": lambda: len(ranks),
        "barrier_world": lambda action=None: None,
        "get_device_num_per_node": lambda: len(ranks),  # else it asks for a file system that nodes share
        "get_strategy_metadata": lambda network: layouts,
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("mindformers.")]
    replaced = [(module, name, vars(module)[name]) for module in modules for name in parts if name in vars(module)]
    graph_mode = LayoutAdapter.is_pynative_mode

    def play(rank: int) -> None:
        nonlocal playing
        playing = rank

    for module, name, _ in replaced:
        setattr(module, name, parts[name])
    LayoutAdapter.is_pynative_mode = staticmethod(lambda: False)
    try:
        yield play
    finally:
        LayoutAdapter.is_pynative_mode = graph_mode
        for module, name, function in replaced:
            setattr(module, name, function)


def _cells(
    names: Sequence[str], held: dict[str, np.ndarray], optimizer: Sequence[str]
) -> tuple[mindspore.nn.Cell, mindspore.nn.Cell]:
    """A network and an optimizer; the tensors that a rank does not hold are marked as those of other stages."""
    network, others = mindspore.nn.Cell(), mindspore.nn.Cell()
    for number, name in enumerate(names):
        tensor = mindspore.Tensor(held.get(name, np.zeros(1, np.float32)))
        parameter = mindspore.Parameter(tensor, name=name, requires_grad=False)
        parameter.param_info.is_pipeline_shared_param = name not in held
        for cell in [others] if name in optimizer else [network, others]:
            cell.insert_param_to_cell(f"parameter_{number}", parameter)
    return network, others


def _loaded(checkpoint: str, network: mindspore.nn.Cell, optimizer: mindspore.nn.Cell | None) -> dict[str, np.ndarray]:
    """What a rank has after loading, without what was not loaded."""
    names: set[str] = set()
    load_parameters = saving.load_parameters

    def noting(network: Any, state: dict[str, Any], *positional: Any, **named: Any) -> None:
        names.update(state)
        load_parameters(network, state, *positional, **named)

    saving.load_parameters = noting
    try:
        saving.load_checkpoint(checkpoint, network, optimizer)
    finally:
        saving.load_parameters = load_parameters
    cells = [cell for cell in (network, optimizer) if cell is not None]
    return {
        parameter.name: parameter for cell in cells for parameter in cell.get_parameters() if parameter.name in names
    }


def _layout(values: dict[str, Any] | None) -> Any:
    return None if values is None else _deserialize_sharded_tensor_layout(values)


def _shard(whole: np.ndarray, layout: dict[str, Any] | None, rank: int) -> np.ndarray:
    if layout is None:
        return whole
    area = infer_slice_area_by_rank(
        layout["device_matrix"], layout["tensor_map"], layout["rank_list"].index(rank), whole.shape
    )
    return whole[tuple(slice(start, stop) for start, stop in area)].copy()


def _dtype(array: np.ndarray) -> Any:
    return mindspore.Tensor(array.reshape(-1)[:1]).dtype


def _read(path: str) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(bytes(entry["data"]), _DTYPES[entry["dtype"]][1]).reshape(entry["shape"])
        for name, entry in safetensors.deserialize(Path(path).read_bytes())
    }


def _write(path: Path, parameters: dict[str, Any]) -> None:
    tensors: Any = {
        name: {
            "dtype": str(parameter.dtype).lower(),
            "shape": list(parameter.shape),
            "data": parameter.data.get_bytes(),
        }
        for name, parameter in parameters.items()
    }
    safetensors.serialize_file(tensors, path)

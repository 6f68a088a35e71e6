"""PyTorch's Distributed Checkpoint in processes of its own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard, so that their agreement means something. Four
processes in one gloo group carry out every request, as many of them as a case has ranks. A tensor's placements: per
mesh axis `R` or `S0`, `S1`, …; None: it is no DTensor, and every rank has all of it.
"""

import atexit
import datetime
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

RANKS = 4
_TIMEOUT = datetime.timedelta(seconds=60)


class _Workers:
    """The processes, which live as long as this one."""

    def __init__(self) -> None:
        store = Path(tempfile.mkdtemp(prefix="torch-judge-")) / "store"
        context = mp.get_context("fork")  # before this process computes anything
        self._pipes: list[Connection] = []
        for rank in range(RANKS):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(rank, str(store), there), daemon=True)
            process.start()
            self._pipes.append(here)
        atexit.register(self._close)

    def _close(self) -> None:
        for pipe in self._pipes:
            pipe.close()

    def each(self, task: str, arguments: Mapping[str, Any]) -> list[Any]:
        """What a task comes to in every process."""
        for pipe in self._pipes:
            pipe.send((task, arguments))
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


_workers: list[_Workers] = []


def _each(task: str, **arguments: Any) -> list[Any]:
    if not _workers:
        _workers.append(_Workers())
    return _workers[0].each(task, arguments)


def save(**arguments: Any) -> None:
    """Have the ranks of a mesh save; see `_save`."""
    _each("save", **arguments)


def load(**arguments: Any) -> None:
    """Have the ranks of a mesh load, and compare what they get; see `_load`."""
    _each("load", **arguments)


def join(source: str, whole: str, target: str) -> None:
    """Make one file of a checkpoint by torch's own tool, and compare it with the whole tensors of a file."""
    dcp_to_torch_save(source, target)
    found = _flat(torch.load(target, weights_only=True))
    expected = load_file(whole)
    if found.keys() != expected.keys():
        raise ValueError(f"{sorted(found.keys() ^ expected.keys())} are in one of both")
    for name, tensor in expected.items():
        _check_equal(name, found[name], tensor)


OPERATIONS: Mapping[str, Callable[..., Any]] = {"save": save, "load": load, "join": join}


def _work(rank: int, store: str, requests: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=_TIMEOUT)
    groups = [dist.new_group(list(range(count + 1))) for count in range(RANKS)]
    meshes: dict[tuple[int, ...], dist.DeviceMesh] = {}
    while True:
        try:
            task, arguments = requests.recv()
        except EOFError:
            return
        try:
            shape = tuple(arguments.pop("mesh"))
            count = math.prod(shape)
            if shape not in meshes:  # every process takes part in making it
                meshes[shape] = dist.DeviceMesh("cpu", torch.arange(count).reshape(shape))
            if rank < count:
                _TASKS[task](rank, meshes[shape], groups[count - 1], **arguments)
            requests.send(None)
        except BaseException as error:  # torch's CheckpointException is no Exception
            requests.send(RuntimeError(f"rank {rank}: {type(error).__name__}: {error}"))


def _save(
    rank: int,
    mesh: dist.DeviceMesh,
    group: Any,
    source: str,
    target: str,
    tensors: Mapping[str, Mapping[str, Any]],
    objects: Mapping[str, Any],
    writer: str,
) -> None:
    """Save whole tensors of a file, placed and stored as `tensors` says, with some objects."""
    contents = load_file(source)
    state: dict[str, Any] = {
        name: _placed(_formed(contents[name], how["form"]), mesh, how["placements"], how["form"])
        for name, how in tensors.items()
    }
    state |= objects
    nested: dict[str, Any] = {}
    for name, value in state.items():
        section, _, rest = name.partition(".")
        nested.setdefault(section, {})[rest] = value
    given: Any = state if writer in ("hf", "flat") else nested
    dcp.save(given, storage_writer=_writer(writer, target), process_group=group)


def _flat(state: Mapping[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _load(
    rank: int,
    mesh: dist.DeviceMesh,
    group: Any,
    source: str,
    whole: str,
    tensors: Mapping[str, Sequence[str] | None],
) -> None:
    """Load tensors with these placements, and compare them with the whole ones of a file."""
    expected = load_file(whole)
    state = {name: _placed(_other(expected[name]), mesh, places, "") for name, places in tensors.items()}
    dcp.load(state, checkpoint_id=source, process_group=group)
    for name, places in tensors.items():
        wanted = _placed(expected[name], mesh, places, "")
        if isinstance(wanted, DTensor):
            _check_equal(name, state[name].to_local(), wanted.to_local())
        else:
            _check_equal(name, state[name], wanted)


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same kind, in which every element has another value."""
    return (
        ~tensor if tensor.dtype == torch.bool else (_bytes_of(tensor) ^ 0x5A).view(tensor.dtype).reshape(tensor.shape)
    )


def _check_equal(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        raise ValueError(f"{name} is {found.dtype} {found.shape}, not {expected.dtype} {expected.shape}")
    # by bytes: a value that is no number equals none
    if not torch.equal(_bytes_of(found), _bytes_of(expected)):
        raise ValueError(f"{name} has other values")


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _writer(kind: str, target: str) -> Any:
    if kind == "hf":
        return dcp.HuggingFaceStorageWriter(target, save_distributed=True)
    if kind == "safetensors":
        return FileSystemWriter(target, serialization_format=SerializationFormat.SAFETENSORS)
    if kind == "threads":
        return FileSystemWriter(target, thread_count=2)
    return FileSystemWriter(target, single_file_per_rank=kind != "many")


def _formed(tensor: torch.Tensor, form: str) -> torch.Tensor:
    """The same values in other memory."""
    if form == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if form == "cut" and tensor.dim():
        wide = torch.zeros([length + 2 for length in tensor.shape], dtype=tensor.dtype)
        inner = wide[tuple(slice(1, length + 1) for length in tensor.shape)]
        inner.copy_(tensor)
        return inner
    return torch.nn.Parameter(tensor) if form == "parameter" and tensor.is_floating_point() else tensor


def _placed(tensor: torch.Tensor, mesh: dist.DeviceMesh, placements: Sequence[str] | None, form: str) -> torch.Tensor:
    if placements is None:
        return tensor
    places = [Replicate() if each == "R" else Shard(int(each[1:])) for each in placements]
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, places)
    local = tensor.detach()[tuple(slice(low, low + length) for low, length in zip(offset, shape, strict=True))]
    local = _formed(local.contiguous(), form).detach()
    return DTensor.from_local(
        local, mesh, places, run_check=False, shape=tensor.shape, stride=tensor.contiguous().stride()
    )


_TASKS: Mapping[str, Callable[..., None]] = {"save": _save, "load": _load}

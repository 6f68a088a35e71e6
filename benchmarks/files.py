"""Writes the source checkpoints of the benchmarks, and checks every byte of what was made of them.

Both are done by processes of their own: the memory that a measured command is said to have used can never be less than
what this process has used when it starts it.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import adapters
from benchmarks.errors import BenchmarkError
from benchmarks.models import (
    FLOAT,
    MEGATRON_STAGES,
    MEGATRON_TENSOR,
    Export,
    Exported,
    Model,
    Parameter,
    Side,
    blocks,
    whole_values,
)
from reshard.core.files.any_format import plan_file, read_index
from reshard.core.files.model import CheckpointFormat, OutputEntry, TensorEntry
from reshard.core.files.numpy_values import numpy_dtype
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import TensorSlice
from tests.support.megatron_files import models_of, read_rank_file

_PROCESSES = 2
_RELEASE = "release"
_LAYERS = "decoder.layers."


def write_checkpoint(model: Model, format: CheckpointFormat, directory: Path) -> None:
    """Writes `directory/rank_{r}/model.{format}`, the source; replicas are hard links to the first of them."""
    firsts = model.first_with_same_content(Side.SOURCE)
    for rank in firsts:
        _file(directory, rank, format).parent.mkdir(parents=True)
    _each(_write_rank, ((model, rank, _file(directory, rank, format)) for rank in sorted(set(firsts.values()))))
    for rank, first in firsts.items():
        if rank != first:
            os.link(_file(directory, first, format), _file(directory, rank, format))


def write_strategies(model: Model, directory: Path) -> None:
    """Writes `source_strategy.ckpt` and `target_strategy.ckpt`."""
    for side in Side:
        write_strategy(model.strategy(side), str(directory / f"{side}_strategy.ckpt"))


def write_config(export: Export, directory: Path) -> None:
    """Writes the `config.json` of a model's family, which is all that an export needs of its directory."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(export.config))


def check_target(model: Model, directory: Path, dtype: DType = FLOAT, *, merged: bool = False) -> None:
    """Compares a converted checkpoint with what it has to be: ranks, names, dtypes, shapes, every byte.

    What is exported may have been cast to `dtype`, and an adapter have been merged into it.

    Raises:
        BenchmarkError: something differs.
    """
    if (directory / _RELEASE).is_dir():
        _check_megatron(model, directory / _RELEASE)
        return
    if model.export:
        _check_export(model.export, directory, dtype, merged)
        return
    found = {path.name for path in directory.glob("rank_*")}
    wanted = {f"rank_{rank}" for rank in model.ranks(Side.TARGET)}
    if found != wanted:
        raise BenchmarkError(f"{directory.name}: holds {sorted(found)}, not {sorted(wanted)}")
    _each(_check_rank, ((model, rank, directory / f"rank_{rank}") for rank in model.ranks(Side.TARGET)))


class Contents:
    """What a box of a parameter holds, to be taken bit by bit."""

    def __init__(self, parameter: Parameter, box: TensorSlice) -> None:
        self._blocks = blocks(parameter, box)
        self._rest = np.empty(0, np.uint8)

    def take(self, count_bytes: int) -> Iterator[np.ndarray]:
        """The next bytes, in pieces."""
        while count_bytes:
            if not len(self._rest):
                self._rest = next(self._blocks)
            piece, self._rest = self._rest[:count_bytes], self._rest[count_bytes:]
            count_bytes -= len(piece)
            yield piece


def _file(directory: Path, rank: int, format: CheckpointFormat) -> Path:
    return directory / f"rank_{rank}" / f"model.{format}"


def _each(function: Any, calls: Iterable[tuple[object, ...]]) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=context, initializer=_leave_interrupts_to_parent) as pool:
        futures = [pool.submit(function, *arguments) for arguments in calls]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write_rank(model: Model, rank: int, path: Path) -> None:
    boxes = {parameter.name: parameter.box(Side.SOURCE, rank) for parameter in model.parameters}
    contents = {parameter.name: Contents(parameter, boxes[parameter.name]) for parameter in model.parameters}
    entries = [OutputEntry(name, FLOAT, box.shape) for name, box in boxes.items()]
    with path.open("wb") as file:
        for segment in plan_file(CheckpointFormat(path.suffix[1:]), entries).segments:
            if isinstance(segment, bytes):
                file.write(segment)
            else:
                file.writelines(piece.data for piece in contents[segment.name].take(segment.stop - segment.start))


def _check_rank(model: Model, rank: int, directory: Path) -> None:
    [path] = [path for path in directory.iterdir() if not path.name.startswith(".")]
    entries = _entries(path)
    names = {parameter.name for parameter in model.parameters}
    if entries.keys() != names:
        raise BenchmarkError(f"{_short(path)}: has other parameters: {sorted(entries.keys() ^ names)[:5]}")
    with path.open("rb") as file:
        for parameter in model.parameters:
            entry, box = entries[parameter.name], parameter.box(Side.TARGET, rank)
            if (entry.dtype, entry.shape) != (FLOAT, box.shape):
                raise BenchmarkError(
                    f"{_short(path)}: {parameter.name} is {entry.dtype.name} {entry.shape}, not {box.shape}"
                )
            contents = Contents(parameter, box)
            for extent in entry.extents:
                file.seek(extent.offset)
                for piece in contents.take(extent.length):
                    if not np.array_equal(np.frombuffer(file.read(len(piece)), np.uint8), piece):
                        raise BenchmarkError(f"{_short(path)}: {parameter.name} holds other values than it should")


def _check_export(export: Export, directory: Path, dtype: DType, merged: bool) -> None:
    wanted = {exported.name: exported for exported in export.parameters}
    paths = sorted(directory.glob("*.safetensors"))
    found = [name for path in paths for name in _entries(path)]
    if sorted(found) != sorted(wanted):
        raise BenchmarkError(f"{directory.name}: has other parameters: {sorted(wanted.keys() ^ found)[:5]}")
    _each(_check_exported, ((path, [wanted[name] for name in _entries(path)], dtype, merged) for path in paths))


def _check_exported(path: Path, wanted: Sequence[Exported], dtype: DType, merged: bool) -> None:
    entries = _entries(path)
    known: tuple[str, np.ndarray] | None = None
    with path.open("rb") as file:
        for exported in sorted(wanted, key=lambda exported: exported.source.name):
            if known is None or known[0] != exported.source.name:
                known = exported.source.name, whole_values(exported.source)
            values = exported.part(known[1]).astype(numpy_dtype(dtype), copy=False)
            if merged:
                values = adapters.merged(exported.name, values)
            entry = entries[exported.name]
            if (entry.dtype, entry.shape) != (dtype, values.shape):
                raise BenchmarkError(f"{exported.name} is {entry.dtype.name} {entry.shape}, not {values.shape}")
            [extent] = entry.extents
            file.seek(extent.offset)
            if file.read(extent.length) != values.tobytes():
                raise BenchmarkError(f"{path.name}: {exported.name} holds other values than it should")


def _check_megatron(model: Model, directory: Path) -> None:
    found = {path.name for path in directory.glob("mp_rank_*")}
    ranks = [(tensor, stage) for tensor in range(MEGATRON_TENSOR) for stage in range(MEGATRON_STAGES)]
    wanted = {f"mp_rank_{tensor:02d}_{stage:03d}" for tensor, stage in ranks}
    if found != wanted:
        raise BenchmarkError(f"{directory.name}: holds {sorted(found)}, not {sorted(wanted)}")
    _each(_check_megatron_rank, ((model, tensor, stage, directory) for tensor, stage in ranks))


def _check_megatron_rank(model: Model, tensor: int, stage: int, directory: Path) -> None:
    path = directory / f"mp_rank_{tensor:02d}_{stage:03d}" / "model_optim_rng.pt"
    tensors = models_of(read_rank_file(path))["model"]
    wanted = _of_stage(model, stage)
    if tensors.keys() != wanted.keys():
        raise BenchmarkError(f"{_short(path)}: has other parameters: {sorted(tensors.keys() ^ wanted.keys())[:5]}")
    for name, parameter in wanted.items():
        values, (dtype, shape, data) = _of_tensor_rank(parameter, tensor), tensors[name]
        if (dtype, shape) != (FLOAT.name, values.shape):
            raise BenchmarkError(f"{_short(path)}: {name} is {dtype} {shape}, not {values.shape}")
        if data != values.tobytes():
            raise BenchmarkError(f"{_short(path)}: {name} holds other values than it should")


def _of_stage(model: Model, stage: int) -> dict[str, Parameter]:
    """The parameters of a pipeline stage, by their names in it, where layers are numbered from 0."""
    layers = 1 + max(int(each.name.split(".")[2]) for each in model.parameters if each.name.startswith(_LAYERS))
    of_stage = layers // MEGATRON_STAGES
    wanted = {}
    for each in model.parameters:
        if each.name.startswith(_LAYERS):
            number, _, rest = each.name.removeprefix(_LAYERS).partition(".")
            if int(number) // of_stage == stage:
                wanted[f"{_LAYERS}{int(number) % of_stage}.{rest}"] = each
        elif each.name.startswith("embedding.") == (stage == 0):
            wanted[each.name] = each
    return wanted


def _of_tensor_rank(parameter: Parameter, rank: int) -> np.ndarray:
    """A rank's part of a parameter: of gates and ups its part of both."""
    whole = whole_values(parameter)
    if parameter.name.endswith(".linear_fc1.weight"):
        return np.concatenate([np.split(half, MEGATRON_TENSOR)[rank] for half in np.split(whole, 2)])
    box = parameter.box(Side.SOURCE, rank)
    return whole[tuple(slice(start, stop) for start, stop in zip(box.start, box.stop, strict=True))]


def _entries(path: Path) -> Mapping[str, TensorEntry]:
    source = open_source(parse_url(str(path)))
    try:
        return read_index(source).entries
    finally:
        source.close()


def _short(path: Path) -> str:
    """A file's name with its rank; where the tree was matters to nobody once it is gone."""
    return f"{path.parent.name}/{path.name}"

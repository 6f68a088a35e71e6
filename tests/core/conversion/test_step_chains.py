"""Chains of random steps: on names and pieces, and with real files, strategies and pipeline stages, against numpy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from reshard.core.changes.changes import Changes
from reshard.core.changes.inverse import inverted
from reshard.core.conversion.convert import convert
from reshard.core.files.any_format import plan_file
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat, OutputEntry, TensorEntry
from reshard.core.plan.model import ReshardedParameter
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.verification.compare import compare_checkpoints
from tests.support.changed_plans import changed
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import filled
from tests.support.composing import assembled
from tests.support.conversions import stop_before_commit
from tests.support.plans import as_layout, entry, make_strategy
from tests.support.reference import RandomLayout, device_matrices, shard_of
from tests.support.safetensors_files import write_safetensors
from tests.support.step_chains import Tensors, random_chain

_TAGS = {"Float32": ("F32", np.uint32), "BFloat16": ("BF16", np.uint16), "F8_E4M3": ("F8_E4M3", np.uint8)}


def composed(tensors: Tensors, changes: Changes) -> Tensors:
    """What the pieces of a plan make of tensors."""
    entries: list[TensorEntry] = [
        entry(name, array.shape, dtype_from_name(dtype)) for name, (dtype, array) in tensors.items()
    ]
    plan = changed(entries, steps=changes.steps)

    def made(each: ReshardedParameter) -> np.ndarray:
        return assembled(each.pieces, each.shape, [tensors[source.name][1].astype(np.int64) for source in each.sources])

    return {each.name: (each.dtype.name, made(each)) for each in plan.match.resharded}


def check_same(found: Tensors, wanted: Tensors) -> None:
    assert {*found} == {*wanted}
    for name, (dtype, array) in wanted.items():
        assert found[name][0] == dtype, name
        assert found[name][1].shape == array.shape, name
        assert np.array_equal(found[name][1], array), name


@pytest.mark.parametrize("seed", range(40))
def test_pieces_of_a_chain_are_what_numpy_makes(seed: int) -> None:
    _check_pieces(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1500, 25))
def test_pieces_of_many_chains(seed: int) -> None:
    for each in range(seed, seed + 25):
        _check_pieces(each)


def _check_pieces(seed: int) -> None:
    source, chain = random_chain(seed, length=4 + seed % 12)
    check_same(composed(source, chain.changes), chain.tensors)
    if chain.invertible:
        # copies that were left out come back, too
        check_same(composed(chain.tensors, inverted(chain.changes)), source)


@dataclass(frozen=True)
class Sharding:
    """How tensors are sharded: pipeline stage -> name -> layout; `devices` of each stage."""

    stages: Sequence[dict[str, RandomLayout]]
    devices: int

    def write_strategy(self, path: str) -> str:
        layouts = [{name: as_layout(layout) for name, layout in stage.items()} for stage in self.stages]
        write_strategy(make_strategy(*layouts), path)
        return path

    def shards(self, tensors: Tensors) -> dict[int, dict[str, tuple[str, tuple[int, ...], bytes]]]:
        """Rank -> name -> dtype, shape and bytes of its shard."""
        found: dict[int, dict[str, tuple[str, tuple[int, ...], bytes]]] = {}
        for number, stage in enumerate(self.stages):
            for device in range(self.devices):
                here = found[number * self.devices + device] = {}
                for name, layout in stage.items():
                    dtype, whole = tensors[name]
                    shard = shard_of(whole, layout, device)
                    here[name] = dtype, shard.shape, shard.tobytes()
        return found


def random_sharding(dice: Random, tensors: Tensors) -> Sharding:
    devices = dice.choice([1, 2, 3, 4, 6])
    stages: list[dict[str, RandomLayout]] = [{} for _ in range(dice.choice([1, 2, 3]))]
    # a strategy has no stage without parameters
    names = list(tensors)
    dice.shuffle(names)
    for place, name in enumerate(names):
        layout = _layout(dice, devices, tensors[name][1])
        first = place % len(stages)
        for number in {first, dice.randrange(len(stages))} if dice.random() < 0.1 else {first}:
            stages[number][name] = layout
    return Sharding(stages, devices)


def _layout(dice: Random, devices: int, whole: np.ndarray) -> RandomLayout:
    matrix = dice.choice(device_matrices(devices))
    tensor_map: list[list[int]] = [[] for _ in range(whole.ndim)]
    axes = list(range(len(matrix)))
    dice.shuffle(axes)
    for axis in axes:
        place = dice.randrange(whole.ndim + 1)
        if place < whole.ndim:
            tensor_map[place].append(axis)
    layout = RandomLayout(matrix, tuple(map(tuple, tensor_map)), ())
    parts = tuple(layout.device_matrix[axis] for axis in reversed(layout.repeated))
    for parts_used in (parts, ()) if whole.ndim and dice.random() < 0.5 else ((),):
        random = RandomLayout(matrix, layout.tensor_map, parts_used)
        try:
            for rank in range(devices):
                shard_of(whole, random, rank)
        except ValueError:
            continue
        return random
    return RandomLayout((devices,), ((),) * whole.ndim, ())


def write_ranks(directory: Path, tensors: Tensors, sharding: Sharding, format: CheckpointFormat) -> str:
    for rank, held in sharding.shards(tensors).items():
        path = directory / f"rank_{rank}" / f"m.{format}"
        path.parent.mkdir(parents=True)
        if format is CheckpointFormat.SAFETENSORS:
            bits = {
                name: (_TAGS[dtype][0], np.frombuffer(content, _TAGS[dtype][1]).reshape(shape))
                for name, (dtype, shape, content) in held.items()
            }
            write_safetensors(path, bits)
            continue
        entries = [OutputEntry(name, dtype_from_name(dtype), shape) for name, (dtype, shape, _) in held.items()]
        path.write_bytes(filled(plan_file(format, entries), lambda name, held=held: held[name][2]))  # type: ignore[misc]
    return str(directory)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 110, 111])
def test_files_of_a_chain_are_what_numpy_makes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_files(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_files_of_many_chains(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_files(seed, tmp_path, monkeypatch)


def _check_files(seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(seed)
    source_tensors, chain = random_chain(seed, length=4 + seed % 8, lossy=seed % 2 == 1)
    sides = [random_sharding(dice, each) for each in (source_tensors, chain.tensors)]
    formats = [dice.choice(SELF_CONTAINED) for _ in range(2)]
    if any(dtype == "F8_E4M3" for dtype, _ in source_tensors.values()):
        formats[0] = CheckpointFormat.SAFETENSORS
    source = write_ranks(directory / "source", source_tensors, sides[0], formats[0])
    strategies = [side.write_strategy(str(directory / f"strategy_{number}.ckpt")) for number, side in enumerate(sides)]
    document = directory / "changes.json"
    document.write_text(json.dumps({"variables": {"N": 11}, "steps": chain.steps}))
    options: dict[str, Any] = {
        "changes": str(document),
        "verify": "content",
        "memory_limit": "16MiB",
        "workers": dice.choice([1, 4]),
        "shared_parameters": dice.choice(["first", "fail"]),
    }
    target = directory / "target"
    request = build_request(
        source=source,
        target=str(target),
        source_strategy=strategies[0],
        target_strategy=strategies[1],
        format=str(formats[1]),
        **options,
    )
    if seed % 4 == 0:  # interrupted, and resumed
        stop_before_commit(monkeypatch, request)
    assert convert(request).committed
    assert read_tree(target) == sides[1].shards(chain.tensors)
    compared = {
        "a": source,
        "b": str(target),
        "strategy_a": strategies[0],
        "strategy_b": strategies[1],
        "changes": str(document),
    }
    report = compare_checkpoints(build_comparison(**compared))
    assert report.same, report.verdict
    if chain.invertible:
        document.write_text(inverted(chain.changes).model_dump_json(exclude_defaults=True))
        back = build_request(
            source=str(target),
            target=str(directory / "back"),
            source_strategy=strategies[1],
            target_strategy=strategies[0],
            format=str(formats[0]),
            **options,
        )
        assert convert(back).committed
        assert read_tree(directory / "back") == sides[0].shards(source_tensors)

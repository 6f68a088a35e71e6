"""Work grows no faster than the number of parameters; calls are counted, since times depend on the machine."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.cli.main import run
from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.plan.matching import match_parameters
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Extent
from tests.support.plans import inputs_of

FEW, MANY = 150, 300
MOST_GROWTH = 2.3
"""Limit for twice as many parameters; constant work makes the ratio smaller."""


def growth(work: Callable[[int], int]) -> float:
    return work(MANY) / work(FEW)


class _Calls:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


def calls_of(arguments: list[str]) -> int:
    """Number of function calls of a command, in all threads."""
    calls = _Calls()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        code = run(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0
    return calls.count


def write_source(directory: Path, count: int) -> None:
    names = [f"layers.{number}.weight" for number in range(count)]
    for rank in range(2):
        (directory / "source" / f"rank_{rank}").mkdir(parents=True)
        tensors = {name: np.full(4, 10 * place + rank, np.float32) for place, name in enumerate(names)}
        save_file(tensors, directory / "source" / f"rank_{rank}" / "model.safetensors", metadata={"format": "ms"})
    for ranks in (2, 4):
        layout = ParameterLayout((ranks,), ((0,),))
        stage = StageStrategy(0, dict.fromkeys(names, layout))
        write_strategy(Strategy((stage,), origin="test"), str(directory / f"{ranks}.ckpt"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("sources")
    for count in (FEW, MANY):
        write_source(directory / str(count), count)
        source, whole, strategy = (str(directory / str(count) / name) for name in ("source", "whole", "2.ckpt"))
        # also runs lazy imports, which would count for the first command measured
        assert run(["convert", source, whole, "--source-strategy", strategy, "--engine", "direct"]) == 0
        assert run(["verify", whole]) == 0
    yield directory
    shutil.rmtree(directory)


COMMANDS = {
    "plan": ["plan", "source", "--source-strategy", "2.ckpt", "--target-strategy", "4.ckpt"],
    "convert": ["convert", "source", "out", "--source-strategy", "2.ckpt", "--target-strategy", "4.ckpt"],
    "one rank": ["convert", "whole", "out"],
    "unified": ["convert", "source", "out", "--source-strategy", "2.ckpt", "--layout", "unified"],
    "inspect a strategy": ["inspect", "2.ckpt"],
    "verify": ["verify", "whole"],
    "diff": ["diff", "source", "whole", "--strategy-a", "2.ckpt"],
    "fingerprint": ["fingerprint", "source", "--source-strategy", "2.ckpt"],
    "doctor": ["doctor", "source", "--source-strategy", "2.ckpt"],
}
_NAMES = {"source", "out", "whole", "2.ckpt", "4.ckpt"}


@pytest.mark.parametrize("kind", COMMANDS)
def test_calls_grow_no_faster_than_the_number_of_parameters(
    sources: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(count: int) -> int:
        places = {name: str(sources / str(count) / name) for name in _NAMES} | {"out": str(tmp_path / str(count))}
        arguments = [places.get(argument, argument) for argument in COMMANDS[kind]]
        if kind in ("convert", "one rank", "unified"):
            arguments += ["--engine", "direct", "--workers", "1"]
        return calls_of(arguments)

    assert growth(work) < MOST_GROWTH


@dataclass(frozen=True)
class _Counted:
    """Counts how often names are hashed or compared: what building sets and searching tuples costs."""

    count: list[int]

    def name(self, text: str) -> str:
        count = self.count

        class Name(str):
            __slots__ = ()

            def __hash__(self) -> int:
                count[0] += 1
                return super().__hash__()

            def __eq__(self, other: object) -> bool:
                count[0] += 1
                return super().__eq__(other)

        return Name(text)


def _catalog(names: list[str], lost: dict[int, str]) -> CheckpointCatalog:
    entries = {name: TensorEntry(name, dtype_from_name("Float32"), (4,), (Extent(0, 16),)) for name in names}
    index = FileIndex(CheckpointFormat.CKPT, 16, entries)
    records = {rank: CatalogRecord(rank, f"rank_{rank}", 16, "1", index) for rank in range(2) if rank not in lost}
    return CheckpointCatalog("source", CheckpointFormat.CKPT, None, records, lost=lost)


def _strategy(names: list[str]) -> Strategy:
    layout: Any = ParameterLayout((2,), ((0,),))
    return Strategy((StageStrategy(0, dict.fromkeys(names, layout)),), origin="test")


def test_names_that_may_be_missing_are_not_searched_again_for_each_of_them() -> None:
    def work(count: int) -> int:
        counted = _Counted([0])
        held = [counted.name(f"layers.{number}.weight") for number in range(count)]
        excused = [counted.name(f"adam.{number}.weight") for number in range(count)]
        source, target = _strategy(held), _strategy(held + excused)
        counted.count[0] = 0
        match = match_parameters(inputs_of(_catalog(held, {}), source, target, allow_missing=("adam.*",)))
        assert len(match.missing) == count
        return counted.count[0]

    assert growth(work) < MOST_GROWTH


def test_names_that_damage_took_are_not_searched_again_for_each_of_them() -> None:
    def work(count: int) -> int:
        counted = _Counted([0])
        held = [counted.name(f"layers.{number}.weight") for number in range(count)]
        gone = [counted.name(f"head.{number}.weight") for number in range(count)]
        source = _strategy(held + gone)
        counted.count[0] = 0
        match = match_parameters(inputs_of(_catalog(held, {1: "no file"}), source, source))
        assert len(match.lost) >= count
        return counted.count[0]

    assert growth(work) < MOST_GROWTH

"""A strategy that is not the checkpoint's own: refused where contents contradict it, told where only a little does."""

import dataclasses
from pathlib import Path

import fsspec
import pytest

from core.convert import convert, make_plan
from core.errors import StrategyError
from core.layout import ParameterLayout
from core.report import plan_notes
from core.request import build_request
from core.strategy.files import read_strategy, write_strategy
from core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from tests.support.checkpoints import ALL_CASES, Case, case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes

ROWS_OF_FOUR = case(7015)


def misread(layout: ParameterLayout) -> ParameterLayout:
    """The layout of another arrangement of devices: the innermost axis is taken for the outermost."""
    last = len(layout.device_matrix) - 1
    return dataclasses.replace(
        layout, tensor_map=tuple(tuple(last - axis for axis in axes) for axes in layout.tensor_map)
    )


def misread_strategy(conversion: Case, path: Path, *names: str) -> str:
    """The source's strategy with the layouts of some parameters misread, or of all."""
    strategy = read_strategy(str(conversion.directory / "src_strategy.ckpt"))
    stages = [
        dataclasses.replace(
            stage,
            layouts={
                name: misread(layout) if not names or name in names else layout
                for name, layout in stage.layouts.items()
            },
        )
        for stage in strategy.stages
    ]
    write_strategy(dataclasses.replace(strategy, stages=tuple(stages)), str(path))
    return str(path)


def strategy_of_rows(*names: str) -> Strategy:
    """Of four ranks, each of which has a quarter of every parameter."""
    layouts = {name: ParameterLayout((4,), ((0,),)) for name in names}
    return Strategy((StageStrategy(0, layouts, (OperatorStrategy("op", 0, ((1, 1),)),)),), "test")


def doubts_of(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if note.startswith("is this strategy the checkpoint's own? ")]


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_nobody_doubts_the_right_one(conversion: Case, tmp_path: Path) -> None:
    assert doubts_of(plan_notes(make_plan(conversion.request(tmp_path / "out")))) == []


def test_one_that_most_contents_contradict_is_refused(tmp_path: Path) -> None:
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    with pytest.raises(StrategyError) as told:
        convert(ROWS_OF_FOUR.request(tmp_path / "out", source_strategy=wrong))
    first, *found, advice = str(told.value).splitlines()
    assert first == (
        f"{wrong}: is not the strategy of the checkpoint {ROWS_OF_FOUR.directory / 'src'}: 3 of 5 parameters whose "
        "contents were looked at contradict it:"
    )
    assert any("'layers.0.weight_0' differs on rank_0, rank_1, which should hold the same" in line for line in found)
    assert "'reshard doctor' tells more" in advice
    assert "--trust-strategy" in advice
    assert not list(tmp_path.glob("out*"))


def test_one_that_is_trusted_is_followed_and_what_contradicts_it_is_told(tmp_path: Path) -> None:
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    report = convert(ROWS_OF_FOUR.request(tmp_path / "out", source_strategy=wrong, trust_strategy=True))
    assert report.committed
    assert "'layers.0.weight_0' differs on rank_0, rank_1, which should hold the same" in doubts_of(report.notes)[0]
    assert read_tree(tmp_path / "out") != ROWS_OF_FOUR.want


def test_a_single_parameter_is_told_and_may_have_its_reasons(tmp_path: Path) -> None:
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt", "layers.0.weight_0")
    [doubt] = doubts_of(convert(ROWS_OF_FOUR.request(tmp_path / "out", source_strategy=wrong)).notes)
    assert "'layers.0.weight_0' differs on rank_0, rank_1" in doubt
    assert doubt.endswith("'reshard doctor' tells more")


@pytest.mark.parametrize(
    ("values", "doubted"), [([1, 1, 1, 1], False), ([0, 1, 0, 1], False), ([1, 2, 3, 4], True)], ids=str
)
def test_slices_of_few_different_values_may_well_be_the_same(tmp_path: Path, values: list[int], doubted: bool) -> None:
    own = strategy_of_rows("likely", "sure")
    write_strategy(own, str(tmp_path / "own.ckpt"))
    for rank in own.ranks:
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
        data = checkpoint_bytes(
            ("likely", "Int8", (4,), bytes(values)), ("sure", "Int8", (8,), bytes(range(rank, rank + 8)))
        )
        (tmp_path / f"src/rank_{rank}/net.ckpt").write_bytes(data)
    plan = make_plan(
        build_request(
            source=str(tmp_path / "src"), target=str(tmp_path / "out"), source_strategy=str(tmp_path / "own.ckpt")
        )
    )
    assert any("'likely' is the same on rank_0, rank_1" in note for note in doubts_of(plan_notes(plan))) == doubted


def test_files_that_are_not_at_hand_are_looked_at_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(ROWS_OF_FOUR.directory / "src"), "/doubted", recursive=True)
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    with pytest.raises(StrategyError, match="3 of 5 parameters whose contents were looked at contradict it"):
        make_plan(ROWS_OF_FOUR.request(tmp_path / "out", source="memory://doubted", source_strategy=wrong))

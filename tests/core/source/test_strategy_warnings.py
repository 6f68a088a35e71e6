"""Strategies that are not the checkpoint's own: refused if most contents contradict them, else a warning."""

from collections.abc import Mapping
from pathlib import Path

import fsspec
import numpy as np
import pytest
from msgspec.structs import replace

from demo.make_checkpoint import make_demo
from reshard.core.conversion.convert import convert
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import StrategyError
from reshard.core.plan.stage_shards import SourceShards
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.recovery import assess_recovery
from reshard.core.source.sample_checks import sample_findings
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from tests.support.checkpoints import ALL_CASES, Case, case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.source_directories import build_catalog

ROWS_OF_FOUR = case(7015)


def misread(layout: ParameterLayout) -> ParameterLayout:
    """The layout of another arrangement of devices: the innermost axis is taken for the outermost."""
    last = len(layout.device_matrix) - 1
    return replace(layout, tensor_map=tuple(tuple(last - axis for axis in axes) for axes in layout.tensor_map))


def misread_strategy(conversion: Case, path: Path, *names: str) -> str:
    """The source's strategy with the layouts of some parameters misread, or of all."""
    strategy = read_strategy(str(conversion.directory / "src_strategy.ckpt"))
    stages = [
        replace(
            stage,
            layouts={
                name: misread(layout) if not names or name in names else layout
                for name, layout in stage.layouts.items()
            },
        )
        for stage in strategy.stages
    ]
    write_strategy(replace(strategy, stages=tuple(stages)), str(path))
    return str(path)


def strategy_of_rows(*names: str) -> Strategy:
    """Of four ranks, each of which has a quarter of every parameter."""
    layouts = {name: ParameterLayout((4,), ((0,),)) for name in names}
    return Strategy((StageStrategy(0, layouts, (OperatorStrategy("op", 0, ((1, 1),)),)),), "test")


def warnings_of(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if note.startswith("is this strategy the checkpoint's own? ")]


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_the_right_strategy_gives_no_warning(conversion: Case, tmp_path: Path) -> None:
    assert warnings_of(plan_notes(make_plan(conversion.request(tmp_path / "out")))) == []


def test_a_strategy_that_most_contents_contradict_is_refused(tmp_path: Path) -> None:
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    with pytest.raises(StrategyError) as message:
        convert(ROWS_OF_FOUR.request(tmp_path / "out", source_strategy=wrong))
    first, *found, advice = str(message.value).splitlines()
    assert first == (
        f"{wrong}: is not the strategy of the checkpoint {ROWS_OF_FOUR.directory / 'src'}: 3 of 5 parameters whose "
        "contents were looked at contradict it:"
    )
    assert any("'layers.0.weight_0' differs on rank_0, rank_1, which should hold the same" in line for line in found)
    assert "'reshard doctor' tells more" in advice
    assert "trust_strategy=True" in advice
    assert not list(tmp_path.glob("out*"))


def test_every_command_that_reads_by_it_refuses_it_too(tmp_path: Path) -> None:
    source, wrong = str(ROWS_OF_FOUR.directory / "src"), misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    for command in (
        lambda: assess_recovery(SourceRequest(source=source, source_strategy=wrong)),
        lambda: fingerprint_checkpoint(FingerprintRequest(source=source, source_strategy=wrong)),
        lambda: compare_checkpoints(build_comparison(a=source, strategy_a=wrong, b=source, strategy_b=wrong)),
    ):
        with pytest.raises(StrategyError, match="is not the strategy of the checkpoint .* contents were looked at"):
            command()


def test_a_trusted_strategy_is_followed_with_a_warning_of_contradictions(tmp_path: Path) -> None:
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    report = convert(ROWS_OF_FOUR.request(tmp_path / "out", source_strategy=wrong, trust_strategy=True))
    assert report.committed
    assert "'layers.0.weight_0' differs on rank_0, rank_1, which should hold the same" in warnings_of(report.notes)[0]
    assert read_tree(tmp_path / "out") != ROWS_OF_FOUR.want


def test_a_single_parameter_is_a_warning_alone(tmp_path: Path) -> None:
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt", "layers.0.weight_0")
    [warning] = warnings_of(convert(ROWS_OF_FOUR.request(tmp_path / "out", source_strategy=wrong)).notes)
    assert "'layers.0.weight_0' differs on rank_0, rank_1" in warning
    assert warning.endswith("'reshard doctor' tells more")


@pytest.mark.parametrize(
    ("values", "warned"), [([1, 1, 1, 1], False), ([0, 1, 0, 1], False), ([1, 2, 3, 4], True)], ids=str
)
def test_slices_of_few_different_values_may_well_be_the_same(tmp_path: Path, values: list[int], warned: bool) -> None:
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
    assert any("'likely' is the same on rank_0, rank_1" in note for note in warnings_of(plan_notes(plan))) == warned


def test_remote_files_are_sampled_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(ROWS_OF_FOUR.directory / "src"), "/doubted", recursive=True)
    wrong = misread_strategy(ROWS_OF_FOUR, tmp_path / "wrong.ckpt")
    with pytest.raises(StrategyError, match="3 of 5 parameters whose contents were looked at contradict it"):
        make_plan(ROWS_OF_FOUR.request(tmp_path / "out", source="memory://doubted", source_strategy=wrong))


def save(directory: Path, own: Strategy, wholes: Mapping[str, np.ndarray]) -> Path:
    """The checkpoint in `src` that a job of such a strategy saves; the path of its strategy."""
    for rank in own.ranks:
        shards = {
            name: wholes[name][
                layout.shard_grid(wholes[name].ndim).box_of(rank % own.devices_per_stage, wholes[name].shape).as_index()
            ]
            for name, layout in own.stage_of(rank).layouts.items()
        }
        (directory / f"src/rank_{rank}").mkdir(parents=True)
        data = checkpoint_bytes(*((name, "Float32", shard.shape, shard.tobytes()) for name, shard in shards.items()))
        (directory / f"src/rank_{rank}/net.ckpt").write_bytes(data)
    write_strategy(own, str(directory / "own.ckpt"))
    return directory / "own.ckpt"


def values_of(*names: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.random((8, 8), np.float32) for name in names}


def in_stages(*names: tuple[str, ...], layout: ParameterLayout) -> Strategy:
    return Strategy(
        tuple(
            StageStrategy(stage, dict.fromkeys(of_stage, layout), (OperatorStrategy("op", stage, ((1, 1),)),))
            for stage, of_stage in enumerate(names)
        ),
        "test",
    )


def test_a_refusal_of_remote_files_rests_on_more_than_the_largest_parameters(tmp_path: Path) -> None:
    wholes = values_of("q", "k", "v", "o")
    # experts that were copied of one: larger than all else
    wholes |= {name: np.tile(values_of(name)[name], (4, 2)) for name in ("up", "gate", "down")}
    own = save(tmp_path, in_stages(tuple(wholes), layout=ParameterLayout((4,), ((0,), ()))), wholes)
    fsspec.filesystem("memory").put(str(tmp_path / "src"), "/copied", recursive=True)
    plan = make_plan(build_request(source="memory://copied", target=str(tmp_path / "out"), source_strategy=str(own)))
    [warning] = warnings_of(plan_notes(plan))
    for name in ("up", "gate", "down"):
        assert f"{name!r} is the same on rank_0, rank_1" in warning


def test_some_of_many_stages_may_be_sampled(tmp_path: Path) -> None:
    rows, wrong = ParameterLayout((2, 2), ((0,), ())), ParameterLayout((2, 2), ((1,), ()))
    names = [(f"layers.{stage}.w",) for stage in range(5)]
    own = in_stages(*names, layout=rows)
    save(tmp_path, own, values_of(*own.parameters))
    for misread_stage, seen in ((1, False), (2, True), (4, True)):
        stages = list(own.stages)
        stages[misread_stage] = replace(
            stages[misread_stage], layouts=dict.fromkeys(stages[misread_stage].layouts, wrong)
        )
        source = replace(own, stages=tuple(stages))
        catalog = build_catalog(str(tmp_path / "src"), source.ranks, digest=lambda rank, entry: False)
        held = SourceShards(catalog, source).by_name
        assert sample_findings(catalog, held, limit=4).found
        assert bool(sample_findings(catalog, held, limit=4, stage_limit=3).found) == seen


def test_stages_that_the_job_did_not_have_are_a_warning(tmp_path: Path) -> None:
    names = ("layers.0.w", "layers.1.w")
    save(tmp_path, in_stages(names, layout=ParameterLayout((4,), ((0,), ()))), values_of(*names))
    wrong = in_stages(names[:1], names[1:], layout=ParameterLayout((2,), ((0,), ())))
    write_strategy(wrong, str(tmp_path / "wrong.ckpt"))
    plan = make_plan(
        build_request(
            source=str(tmp_path / "src"), target=str(tmp_path / "out"), source_strategy=str(tmp_path / "wrong.ckpt")
        )
    )
    first, second = warnings_of(plan_notes(plan))
    assert "stage 0 (ranks 0-1) holds 'layers.1.w', which the strategy gives to stage 1 only" in first
    assert "stage 1 (ranks 2-3) holds 'layers.0.w', which the strategy gives to stage 0 only" in second


def test_ranks_that_changed_places_in_one_of_the_stages(tmp_path: Path) -> None:
    make_demo(parse_url(str(tmp_path)))
    source = tmp_path / "checkpoint"
    (source / "rank_4").rename(source / "away")
    (source / "rank_5").rename(source / "rank_4")
    (source / "away").rename(source / "rank_5")
    request = build_request(
        source=str(source), target=str(tmp_path / "out"), source_strategy=str(tmp_path / "strategy")
    )
    with pytest.raises(StrategyError, match=r"[0-9]+ of [0-9]+ parameters of stage 1 whose contents were looked at"):
        make_plan(request)

"""Findings: checkpoints and strategies that belong together, and each way in which they may not."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, StrategyError
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from tests.support.checkpoints import ALL_CASES, Case
from tests.support.diagnosed import diagnose, looked_at, only, problems, shaped
from tests.support.places import FIXTURES
from tests.support.splitting import split_strategy
from tests.support.two_stages import STAGES, put, strategy, whole, write


def test_they_belong_together(tmp_path: Path) -> None:
    write(tmp_path / "src")
    diagnosis = looked_at(tmp_path)
    assert (diagnosis.fits, diagnosis.findings, diagnosis.not_checked) == (True, (), ())
    assert ("strategy", f"{tmp_path}/strategy.ckpt: 2 stages of 4 devices, 8 parameters") in diagnosis.facts
    assert looked_at(tmp_path, shaped(STAGES), "strategy.json").findings == ()


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_all_fixtures_fit(conversion: Case) -> None:
    for checkpoint, side in (("src", "src"), ("want", "dst")):
        path = conversion.directory / f"{side}_strategy.ckpt"
        diagnosis = diagnose(str(conversion.directory / checkpoint), str(path))
        assert (diagnosis.fits, diagnosis.findings) == (True, ())


def test_a_stage_alone(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in range(4):
        shutil.rmtree(tmp_path / f"src/rank_{rank}")
    [_, own] = split_strategy(strategy())
    diagnosis = looked_at(tmp_path, own)
    assert (diagnosis.fits, diagnosis.findings) == (True, ())
    assert dict(diagnosis.facts)["no files"] == "ranks 0-3, which come before others"


def test_files_of_different_steps(tmp_path: Path) -> None:
    write(tmp_path / "src")
    other = [("global_step", "Int32", (1,), np.int32(8).tobytes())]
    stage = STAGES[0]
    for name, layout in stage.items():
        tensor = whole(name)
        shard = tensor[layout.shard_grid(tensor.ndim).box_of(0, tensor.shape).as_index()]
        other.append((name, "Float32", shard.shape, shard.tobytes()))
    put(tmp_path / "src", 0, *other)
    assert "DIFFERENT STEPS, by their 'global_step'" in only(looked_at(tmp_path), "files").found


def test_a_slice_that_no_rank_has(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in (0, 2):
        entries = [
            (name, "Float32", whole(name)[layout.shard_grid(whole(name).ndim).box_of(0, whole(name).shape).as_index()])
            for name, layout in STAGES[0].items()
            if name != "net.l.0.wo"
        ]
        put(tmp_path / "src", rank, *((name, dtype, shard.shape, shard.tobytes()) for name, dtype, shard in entries))
    finding = problems(looked_at(tmp_path))[-1]
    assert finding.found == "'net.l.0.wo': [0:8, 0:4] of the whole tensor has no holder; it should be on rank_0, rank_2"


def test_what_a_checkpoint_needs(tmp_path: Path) -> None:
    write(tmp_path / "src")
    diagnosis = diagnose(str(tmp_path / "src"))
    assert (diagnosis.fits, diagnosis.strategy) == (None, "")
    assert dict(diagnosis.facts) == {
        "checkpoint": f"{tmp_path}/src: 8 ranks, 9 parameters",
        "holding": "ranks 0-3: 5 parameters; ranks 4-7: 5 parameters",
        "needs": "a strategy of 8 ranks, of 2 stages it seems: 'source_strategy', the directory that the job's ranks "
        "wrote",
    }


def test_one_rank_needs_none() -> None:
    diagnosis = diagnose(str(FIXTURES / "formats/plain.ckpt"))
    assert "no strategy" in dict(diagnosis.facts)["needs"]
    assert diagnosis.fits


def test_unified_needs_none(tmp_path: Path) -> None:
    source = write(tmp_path / "full")
    write_strategy(strategy(), str(tmp_path / "strategy.ckpt"))
    options = {"source_strategy": str(tmp_path / "strategy.ckpt"), "layout": "unified"}
    convert(build_request(source=str(source), target=str(tmp_path / "src"), **options))
    assert dict(diagnose(str(tmp_path / "src")).facts)["needs"] == "no strategy: its tensors are whole"
    assert "leave out 'source_strategy'" in only(looked_at(tmp_path), "ranks").advice
    with pytest.raises(CatalogError, match="without steps or prefixes"):
        diagnose(str(tmp_path / "src"), step="3_4")


def test_an_index_that_is_not_of_its_files_is_no_all_clear(tmp_path: Path) -> None:
    write_strategy(strategy(), str(tmp_path / "strategy.ckpt"))
    options = {"source_strategy": str(tmp_path / "strategy.ckpt"), "layout": "unified", "max_shard_size": "300B"}
    convert(build_request(source=str(write(tmp_path / "full")), target=str(tmp_path / "src"), **options))
    assert dict(diagnose(str(tmp_path / "src")).facts)["checkpoint"].endswith("unified, 6 files, 9 parameters")
    (tmp_path / "src/model-00002-of-00006.safetensors").unlink()
    with pytest.raises(CatalogError, match=r"model-00002-of-00006\.safetensors is missing, where the index places"):
        diagnose(str(tmp_path / "src"))


def test_neither_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        diagnose(str(tmp_path / "nothing"))
    with pytest.raises(StrategyError):
        diagnose(str(write(tmp_path / "src")), str(tmp_path / "nothing"))

"""`reshard scan`: its exit codes, its table and its JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

from reshard.cli.main import run
from reshard.core.files.model import SELF_CONTAINED
from tests.support.checkpoints import case
from tests.support.comparing import file_of
from tests.support.models import Model

NAN, INF = 0x7FC00000, 0x7F800000


def test_a_checkpoint_without_nan_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    found = case(7010).directory
    assert run(["scan", str(found / "src"), "--source-strategy", str(found / "src_strategy.ckpt")]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "no NaN or Inf in 7 floating-point parameters, 8 files"
    assert "405.8 KiB read" in printed.err


def test_nan_is_listed_with_its_place_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.ones((2, 3), np.float32).view(np.uint32)
    values[1, 0], values[1, 2] = NAN, INF
    path = file_of(tmp_path / "a.ckpt", ("w", "Float32", values), ("b", "Float32", np.zeros(2, np.float32)))
    assert run(["scan", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 NaN and 1 Inf in 1 of 2 floating-point parameters, 1 place in 1 file"
    assert lines[2].split() == ["parameter", "file", "NaN", "Inf", "first", "at", "of", "the", "whole"]
    assert lines[3].split() == ["w", str(path), "1", "1", "[1,", "0]", "[1,", "0]"]
    assert "note: zero throughout: b" in lines
    assert run(["scan", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["finite"] is False
    assert document["non_finite"][0]["places"][0]["first"] == [1, 0]


def test_long_tables_are_cut_with_a_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"w{number}" for number in range(30)]
    model = Model({name: ("Float32", np.full((2,), NAN, np.uint32)) for name in names}, {}, 20)
    source, _ = model.write(tmp_path, SELF_CONTAINED[1])
    assert run(["scan", source]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1200 NaN and 0 Inf in 30 of 30 floating-point parameters, 600 places in 20 files" in lines[0]
    assert "and 550 more; the JSON report lists the first 16 files of each parameter" in lines


def test_wrong_input_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path / "a.ckpt", ("w", "Int32", np.arange(3, dtype=np.int32)))
    assert run(["scan", str(path)]) == 2
    assert "nothing to scan: no floating-point parameter is included" in capsys.readouterr().err
    assert run(["scan", str(tmp_path / "none")]) == 2

"""`reshard diff`: the answer first, what differs as a table, and the exit code."""

import json
from pathlib import Path

import numpy as np
import pytest

from reshard.cli.main import run
from reshard.core.files.model import CheckpointFormat
from tests.support.checkpoints import case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.models import Model, random_bits
from tests.support.reference import RandomLayout

CASE = case(7009).directory
SIDES = [
    *(str(CASE / "src"), str(CASE / "want")),
    *("--strategy-a", str(CASE / "src_strategy.ckpt"), "--strategy-b", str(CASE / "dst_strategy.ckpt")),
]


def model(path: Path, **values: float) -> str:
    entries = [(name, "Float32", (1,), np.float32(value).tobytes()) for name, value in values.items()]
    path.write_bytes(checkpoint_bytes(*entries))
    return str(path)


def test_the_same_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", *SIDES]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "the same model: 7 parameters, 205.5 KiB, 4 and 3 ranks",
        "note on A: using files whose names have no step number (checkpoint_0.ckpt on rank_0, 4 ranks)",
        "note on B: using files whose names have no step number (checkpoint_0.ckpt on rank_0, 3 ranks)",
    ]
    assert "of contents read in" in printed.err


def test_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = model(tmp_path / "a.ckpt", w=1, gone=1, same=3)
    b = model(tmp_path / "b.ckpt", w=1.5, new=1, same=3)
    assert run(["diff", a, b]) == 1
    assert capsys.readouterr().out.splitlines()[:6] == [
        "NOT the same: 1 parameter only in A, 1 parameter only in B, 1 parameter of different content",
        "",
        "parameter  differs in  what",
        "gone       only in A",
        "new        only in B",
        "w          content     1 of 1 element; by 0.5 at most, at [0]: 1.0 and 1.5",
    ]
    assert run(["diff", a, b, "--include", "same"]) == 0
    assert run(["diff", a, b, "--exclude", "w", "--exclude", "gone", "--exclude", "new"]) == 0


def test_long_tables_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = model(tmp_path / "a.ckpt", **{f"w{number}": 1 for number in range(60)})
    b = model(tmp_path / "b.ckpt", other=1)
    assert run(["diff", a, b]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NOT the same: 60 parameters only in A, 1 parameter only in B"
    assert lines[53] == "and 11 more; --json lists all"
    assert sum(line.endswith("only in A") for line in lines) == 49
    assert lines[52].split() == ["other", "only", "in", "B"]


def test_copies_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layouts = {"w": RandomLayout((2,), ((),), ())}
    changed = Model({"w": ("Float32", random_bits("Float32", (4,), 1))}, layouts, 2)
    changed.shards[1]["w"][2] ^= 1
    checkpoint, strategy = changed.write(tmp_path, CheckpointFormat.SAFETENSORS)
    assert run(["diff", checkpoint, checkpoint, "--strategy-a", strategy, "--strategy-b", strategy]) == 1
    [headers, of_a, of_b] = capsys.readouterr().out.splitlines()[2:5]
    assert headers.split() == ["parameter", "differs", "in", "what"]
    for letter, row in (("A", of_a), ("B", of_b)):
        message = f"replicas in {letter}  parameter 'w', [0:4]: one content on rank_0, another on rank_1"
        assert row.strip() == message


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", *SIDES, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["same"] is True
    assert answer["a"]["parameters"] == answer["b"]["parameters"] == 7
    assert answer["differences"] == []


def test_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", str(CASE / "src"), str(CASE / "nothing")]) == 2
    assert run(["diff", str(CASE / "src"), str(CASE / "want")]) == 2
    assert "several ranks need a source strategy" in capsys.readouterr().err
    assert run(["diff", "a", "b", "--step-a", "last"]) == 2
    assert "--step-a 'last': must be EPOCH_STEP" in capsys.readouterr().err


def test_what_a_document_of_changes_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = model(tmp_path / "a.ckpt", w=1, v=2), model(tmp_path / "b.ckpt", both=0)
    (tmp_path / "b.ckpt").write_bytes(
        checkpoint_bytes(("both", "Float32", (2,), np.array([1, 2], np.float32).tobytes()))
    )
    document = tmp_path / "changes.yaml"
    document.write_text("steps:\n  - join: {parameters: [w, v], into: both}\n")
    assert run(["diff", one, other, "--changes", str(document)]) == 0
    assert capsys.readouterr().out.startswith("the same model: 1 parameter")
    document.write_text("steps:\n  - join: {parameters: [v, w], into: both}\n")
    assert run(["diff", one, other, "--changes", str(document)]) == 1
    assert capsys.readouterr().out.startswith("NOT the same: 1 parameter of different content")
    document.write_text("exclude: [v]\nrename:\n  - {name: w, to: both}\n")
    assert run(["diff", one, other, "--changes", str(document)]) == 1
    assert capsys.readouterr().out.startswith("NOT the same: 1 parameter of different shape")

"""`reshard fingerprint`: lines that 'diff' can compare, JSON that 'reshard diff' can."""

import json
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.files.model import CheckpointFormat
from tests.support.checkpoints import case
from tests.support.models import Model, random_bits
from tests.support.places import FIXTURES
from tests.support.reference import RandomLayout

CASE = case(7010).directory
SOURCE = [str(CASE / "src"), "--source-strategy", str(CASE / "src_strategy.ckpt")]
TARGET = [str(CASE / "want"), "--source-strategy", str(CASE / "dst_strategy.ckpt")]


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["fingerprint", *arguments]) == 0
    return capsys.readouterr().out


def test_lines_do_not_depend_on_the_cut(capsys: pytest.CaptureFixture[str]) -> None:
    source = printed_by(capsys, *SOURCE)
    assert printed_by(capsys, *TARGET) == source
    assert printed_by(capsys, str(CASE / "full")) == source
    lines = source.splitlines()
    assert lines[0].endswith("  the whole model: 8 parameters, 333.2 KiB")
    assert lines[1].split()[1:] == ["Float32", "adam_m.layers.4.weight_4", "[96,", "4,", "4,", "4]"]
    assert len(lines[0].split()[0]) == 32
    assert {len(line.split()[0]) for line in lines[1:]} == {16}
    weights = printed_by(capsys, *SOURCE, "--select", "weights-only")
    assert set(weights.splitlines()[1:]) < set(lines)


def test_json_is_a_side_of_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "there.json"
    document.write_text(printed_by(capsys, *SOURCE, "--json"))
    assert run(["diff", str(CASE / "full"), str(document)]) == 0
    assert "the same model: 8 parameters, 333.2 KiB, 1 and 8 ranks" in capsys.readouterr().out
    assert run(["diff", str(case(7009).directory / "full"), str(document)]) == 1
    assert json.loads(document.read_text())["ranks"] == 8


def test_of_an_encrypted_checkpoint_it_is_said_what_they_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = FIXTURES / "formats"
    monkeypatch.setenv("KEY", json.loads((formats / "expect.json").read_text())["keys"]["AES-GCM"])
    chosen = ["--include", "dense.*"]
    assert run(["fingerprint", str(formats / "encrypted_AES-GCM.ckpt"), "--decrypt-key", "env:KEY", *chosen]) == 0
    printed = capsys.readouterr()
    assert "note: the fingerprints of this encrypted checkpoint are not encrypted" in printed.err
    assert printed.out == printed_by(capsys, str(formats / "plain.ckpt"), *chosen)


def test_copies_that_differ_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = Model({"w": ("Int8", random_bits("Int8", (4,), 1))}, {"w": RandomLayout((2,), ((),), ())}, 2)
    changed.shards[1]["w"][2] ^= 1
    checkpoint, strategy = changed.write(tmp_path, CheckpointFormat.CKPT)
    assert run(["fingerprint", checkpoint, "--source-strategy", strategy]) == 1
    message = "reshard: replicas differ: parameter 'w', [0:4]: one content on rank_0, another on rank_1"
    assert message in capsys.readouterr().err

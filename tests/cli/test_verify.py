from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.convert import convert
from core.report import VerificationReport
from tests.support.checkpoints import case


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    convert(case(7010).request(tmp_path / "out"))
    return tmp_path / "out"


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_all_is_right(reshard: Callable[..., Any], converted: Path) -> None:
    shown = reshard("verify", converted)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"{converted}: 2 ranks checked (checksum), 333.2 KiB of contents read in ")
    assert shown.out.endswith(": all is as written\n")


def test_a_flipped_byte_is_found(reshard: Callable[..., Any], converted: Path) -> None:
    flip_a_byte(converted / "rank_1/checkpoint_1.ckpt")
    shown = reshard("verify", converted)
    assert shown.code == 1
    problem, summary = shown.out.splitlines()
    assert problem.startswith(f"{converted}/rank_1/checkpoint_1.ckpt: parameter 'learning_rate': its bytes are not")
    assert summary.endswith(": 1 problem")
    assert reshard("verify", converted, "--level", "structure").code == 0


def test_a_missing_file_is_found(reshard: Callable[..., Any], converted: Path) -> None:
    (converted / "rank_0/checkpoint_0.ckpt").unlink()
    shown = reshard("verify", converted, "--level", "structure", "--json")
    assert shown.code == 1
    report = VerificationReport.model_validate(shown.json)
    assert (report.ranks, report.level) == (2, "structure")
    assert [problem.partition(":")[0] for problem in report.problems] == [f"{converted}/rank_0/checkpoint_0.ckpt"]


def test_json_of_what_is_right(reshard: Callable[..., Any], converted: Path) -> None:
    shown = reshard("verify", converted, "--json")
    assert shown.code == 0
    assert set(shown.json) == set(VerificationReport.model_fields)
    assert shown.json["problems"] == []


def test_what_was_not_converted(reshard: Callable[..., Any]) -> None:
    shown = reshard("verify", case(7010).directory / "src")
    assert (shown.code, shown.out) == (2, "")
    assert "has no .reshard/manifest.json" in shown.err

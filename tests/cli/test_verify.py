import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.verification.report import VerificationReport
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
    assert shown.out.endswith(": all files intact\n")


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


def test_values_are_compared_with_the_sources(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard(
        "convert",
        case(7010).directory / "src",
        tmp_path / "out",
        "--source-strategy",
        case(7010).directory / "src_strategy.ckpt",
        "--target-strategy",
        case(7010).directory / "dst_strategy.ckpt",
        *("--verify", "content", "--engine", "direct"),
    )
    assert shown.code == 0
    assert re.search(
        r"verified +content: the values of \d+ parameters equal the source's; .* read back, .* of the", shown.out
    )
    shown = reshard("verify", tmp_path / "out", "--level", "content")
    assert shown.code == 0
    assert re.search(
        r"; the values of \d+ parameters compared, .* of the source's read: all files intact, and equal to the source",
        shown.out,
    )


def test_a_source_that_is_gone(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(case(7010).directory / "src", tmp_path / "src")
    convert(case(7010).request(tmp_path / "out", source=str(tmp_path / "src")))
    for path in sorted((tmp_path / "src").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    shown = reshard("verify", tmp_path / "out", "--level", "content")
    assert (shown.code, shown.out) == (2, "")
    assert f"{tmp_path}/src, which no longer exists: restore it, or use `--level checksum`" in shown.err


def test_names_of_what_opens_the_source(reshard: Callable[..., Any], converted: Path) -> None:
    shown = reshard("verify", converted, "--level", "content", "--source-decrypt-mode", "SM4-CBC")
    assert shown.code == 2
    assert "needs a key: name it with --source-decrypt-key" in shown.err
    shown = reshard("verify", converted, "--level", "content", "--source-decrypt-key", "env:NOT_THERE")
    assert shown.code == 2
    assert "env:NOT_THERE: there is no such variable in the environment" in shown.err


def test_an_encrypted_source_is_read_with_its_key(
    reshard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "0123456789abcdef")
    monkeypatch.setenv("OTHER", "fedcba9876543210")
    found = case(7009)
    convert(found.request(tmp_path / "src", encrypt_key="env:KEY", encrypt_mode="AES-CBC"))
    convert(
        build_request(
            source=str(tmp_path / "src"),
            target=str(tmp_path / "out"),
            source_strategy=str(found.directory / "dst_strategy.ckpt"),
            decrypt_key="env:KEY",
            decrypt_mode="AES-CBC",
        )
    )
    command = ("verify", tmp_path / "out", "--level", "content")
    mode = ("--source-decrypt-mode", "AES-CBC")
    assert reshard(*command, "--source-decrypt-key", "env:KEY", *mode).code == 0
    for wrong in ((), ("--source-decrypt-key", "env:OTHER", *mode)):
        shown = reshard(*command, *wrong)
        assert (shown.code, shown.out) == (2, "")
        assert "If it is encrypted, name its key with --source-decrypt-key" in shown.err


def test_what_was_not_converted(reshard: Callable[..., Any]) -> None:
    shown = reshard("verify", case(7010).directory / "src")
    assert (shown.code, shown.out) == (2, "")
    assert "has no .reshard/manifest.json" in shown.err


@pytest.mark.parametrize("level", ["structure", "content"])
def test_what_does_not_exist(reshard: Callable[..., Any], tmp_path: Path, level: str) -> None:
    for url in (f"{tmp_path}/nowhere", "memory:///nowhere/at-all"):
        shown = reshard("verify", url, "--level", level)
        assert (shown.code, shown.out) == (2, "")
        assert shown.err == f"reshard: error: {url}: does not exist: name the directory of a finished conversion\n"

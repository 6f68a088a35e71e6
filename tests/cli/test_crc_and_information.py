"""--write-crc and --append-info, and what `reshard inspect` shows of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import check_crc_of
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.places import FIXTURES

PLAIN = FIXTURES / "formats/plain.ckpt"
DIRECT = ("--engine", "direct")
SHOWN = """
information  value
scalar       2.5
epoch_num    3
step_num     1875
lr           0.5
flag         true
note         'héllo 昇思'
"""


@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_converting_with_both(reshard: Callable[..., Any], tmp_path: Path, format: str) -> None:
    out = tmp_path / "out"
    given = ("--append-info", "epoch_num=4", "--append-info", "note=text:5", "--append-info", "done=false")
    shown = reshard("convert", PLAIN, out, "--format", format, "--write-crc", *given, *DIRECT).out
    assert "epoch_num=4 (in place of the source's Int64 [])" in " ".join(shown.split())
    path = out / f"rank_0/checkpoint_0.{format}"
    check_crc_of(path)
    found = reshard("inspect", path, "--json").json
    assert found["has_crc"]
    assert found["information"] == {
        "scalar": 2.5,
        "epoch_num": 4,
        "step_num": 1875,
        "lr": 0.5,
        "flag": True,
        "note": "5",
        "done": False,
    }
    assert "all files intact" in reshard("verify", out).out


def test_information_is_shown(reshard: Callable[..., Any]) -> None:
    assert reshard("inspect", PLAIN).out.endswith(SHOWN)


def test_there_may_be_none(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "net.ckpt").write_bytes(checkpoint_bytes(("w", "Int8", [1], b"\1")))
    assert "information" not in reshard("inspect", tmp_path / "net.ckpt").out
    assert reshard("inspect", tmp_path / "net.ckpt", "--json").json["information"] == {}


def test_what_is_no_finite_number_is_json_all_the_same(reshard: Callable[..., Any], tmp_path: Path) -> None:
    values: tuple[tuple[str, str, list[int], bytes], ...] = (
        ("a", "Float32", [], b"\0\0\x80\x7f"),
        ("b", "Float16", [], b"\0\x7e"),
    )
    (tmp_path / "net.ckpt").write_bytes(checkpoint_bytes(*values))
    assert reshard("inspect", tmp_path / "net.ckpt", "--json").json["information"] == {"a": "inf", "b": "nan"}


def test_the_plan_says_what_is_appended(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", PLAIN, "--append-info", "epoch_num=4").out
    assert "appended to every target file: epoch_num=4" in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--append-info", "epoch_num"), "must be NAME=VALUE, such as epoch_num=5, not 'epoch_num'"),
        (("--append-info", "a=1", "--append-info", "a=2"), "gives 'a' twice"),
        (("--append-info", "dense.weight=5"), "'dense.weight' cannot be appended: the source has a parameter of"),
        (("--write-crc", "--encrypt-key", "env:KEY"), "an encrypted file has no CRC"),
    ],
)
def test_what_is_refused(reshard: Callable[..., Any], tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    result = reshard("convert", PLAIN, tmp_path / "out", *given, *DIRECT)
    assert result.code == 2
    assert message in result.err

"""Commands and encrypted checkpoints: the key by its name, and what is said without it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.cli.main import run
from tests.support.checkpoints import case, read_tree
from tests.support.places import FIXTURES

FOUR_TO_THREE = case(7009)
SECRET = "a secret of 16 b"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def reshard(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`reshard(*arguments)`: the exit code, and what was printed where."""
    monkeypatch.setenv("KEY", SECRET)
    monkeypatch.setenv("OTHER", SECRET[::-1])

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        assert SECRET[::-1] not in out + err
        return code, out, err

    return call


def conversion(target: Path, *options: object) -> list[object]:
    strategies = ["--source-strategy", FOUR_TO_THREE.directory / "src_strategy.ckpt"]
    strategies += ["--target-strategy", FOUR_TO_THREE.directory / "dst_strategy.ckpt"]
    return ["convert", FOUR_TO_THREE.directory / "src", target, *strategies, "--engine", "direct", *options]


@pytest.fixture
def encrypted(reshard: Command, tmp_path: Path) -> Path:
    code, _, err = reshard(*conversion(tmp_path / "out", "--encrypt-key", "env:KEY", "--encrypt-mode", "SM4-CBC"))
    assert code == 0, err
    return tmp_path / "out"


KEY = ("--decrypt-key", "env:KEY", "--decrypt-mode", "SM4-CBC")


def test_there_and_back(reshard: Command, encrypted: Path, tmp_path: Path) -> None:
    strategy = FOUR_TO_THREE.directory / "dst_strategy.ckpt"
    back = ["convert", encrypted, tmp_path / "back", "--source-strategy", strategy, "--target-strategy", strategy]
    code, _, err = reshard(*back, "--engine", "direct", *KEY)
    assert code == 0, err
    assert read_tree(tmp_path / "back") == FOUR_TO_THREE.want
    code, out, _ = reshard("plan", encrypted, "--source-strategy", strategy, *KEY)
    assert (code, "3 -> 1" in out) == (0, True)
    code, _, err = reshard("plan", encrypted, "--source-strategy", strategy)
    assert code == 2
    assert "is encrypted with SM4-CBC: name its key with --decrypt-key, and --decrypt-mode SM4-CBC" in err


def test_verify(reshard: Command, encrypted: Path) -> None:
    assert reshard("verify", encrypted, *KEY)[0] == 0
    code, _, err = reshard("verify", encrypted)
    assert code == 2
    assert f"{encrypted}: is encrypted with SM4-CBC: name its key with --decrypt-key" in err
    code, _, err = reshard("verify", encrypted, "--decrypt-key", "env:OTHER", "--decrypt-mode", "SM4-CBC")
    assert code == 2
    assert "env:OTHER is not the key that it was written with" in err


def test_inspect_a_converted_checkpoint(reshard: Command, encrypted: Path) -> None:
    code, out, _ = reshard("inspect", encrypted)
    assert code == 0
    assert "with SM4-CBC; parameters' names are encrypted, and need --decrypt-key" in out
    assert "copied unchanged" not in out
    code, out, _ = reshard("inspect", encrypted, *KEY)
    assert code == 0
    assert "with SM4-CBC\n" in out


def test_inspect_a_file(reshard: Command, encrypted: Path) -> None:
    path = encrypted / "rank_0" / "checkpoint_0.ckpt"
    code, out, _ = reshard("inspect", path, *KEY)
    assert code == 0
    assert "with SM4-CBC" in out
    assert all(name in out for name in FOUR_TO_THREE.want[0])
    code, _, err = reshard("inspect", path)
    assert code == 2
    assert f"{path}: is encrypted with SM4-CBC: name its key with --decrypt-key" in err
    plain = FIXTURES / "formats" / "plain.ckpt"
    code, _, err = reshard("inspect", plain, *KEY)
    assert code == 2
    assert f"{plain}: is not encrypted, but env:KEY is named as its key: name none" in err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_names_of_keys(reshard: Command, encrypted: Path, command: str) -> None:
    for arguments, message in [
        (("--decrypt-mode", "SM4-CBC"), "needs a key"),
        (("--decrypt-key", "no-name-at-all!!"), "--decrypt-key: must be env:NAME, file:PATH or block:NAME"),
        (("--decrypt-key", "env:NOT_THERE"), "env:NOT_THERE: there is no such variable in the environment"),
    ]:
        code, _, err = reshard(command, encrypted, *arguments)
        assert code == 2
        assert message in err
        assert "no-name-at-all!!" not in err


def test_a_key_of_the_wrong_length(reshard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "0123456789")
    code, _, err = reshard(*conversion(tmp_path / "out", "--encrypt-key", "env:SHORT"))
    assert code == 2
    assert "env:SHORT: the key has 10 bytes; AES takes 16, 24 or 32" in err
    assert "0123456789" not in err


def test_a_converted_checkpoint_that_is_not_encrypted(reshard: Command, tmp_path: Path) -> None:
    assert reshard(*conversion(tmp_path / "plain"))[0] == 0
    for command in ("inspect", "verify"):
        code, _, err = reshard(command, tmp_path / "plain", *KEY)
        assert code == 2
        assert f"{tmp_path}/plain: is not encrypted, but env:KEY is named as its key: name none" in err

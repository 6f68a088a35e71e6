"""Encrypted checkpoints in an object store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.encryption.encrypted_output import EncryptedOutput
from reshard.core.runtime.keys import EncryptionMode, Key
from tests.support.checkpoints import Case, case, read_tree
from tests.support.columns import column_case
from tests.support.stores import Store

FOUR_TO_THREE = case(7009)
SECRET = "a secret of 16 b"
BLOCK_BYTES = 20_000

Reshard = Callable[..., str]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    monkeypatch.setenv("OTHER", SECRET[::-1])
    # blocks of 4 MiB would hold each file of these cases whole
    monkeypatch.setattr(
        "reshard.core.files.encryption.encrypted_output.EncryptedOutput.__init__.__defaults__", (BLOCK_BYTES,)
    )
    monkeypatch.setattr("reshard.core.files.encryption.encrypted_output.encrypted_bytes.__defaults__", (BLOCK_BYTES,))


def key_options(mode: EncryptionMode, name: str = "env:KEY") -> dict[str, object]:
    return {"encrypt_key": name, "encrypt_mode": str(mode)}


def back(conversion: Case, source: str, mode: EncryptionMode, name: str = "env:KEY") -> dict[str, object]:
    """Of what a conversion gave, to the same strategy, decrypted."""
    strategy = str(conversion.directory / "dst_strategy.ckpt")
    strategies = {"source_strategy": strategy, "target_strategy": strategy}
    return {"source": source, **strategies, "decrypt_key": name, "decrypt_mode": str(mode)}


@pytest.mark.parametrize("mode", EncryptionMode)
def test_there_and_back(store: Store, mode: EncryptionMode, tmp_path: Path, reshard: Reshard) -> None:
    target = store.url("out")
    report = convert(FOUR_TO_THREE.request(target, memory_limit="64MiB", **key_options(mode)))
    for rank in report.ranks:
        assert (store.files("out") / rank.file).stat().st_size == rank.size_bytes > BLOCK_BYTES
    assert "all files intact" in reshard("verify", target, "--decrypt-key", "env:KEY", "--decrypt-mode", str(mode))
    convert(FOUR_TO_THREE.request(tmp_path / "back", **back(FOUR_TO_THREE, target, mode)))
    assert read_tree(tmp_path / "back") == FOUR_TO_THREE.want
    assert [rank.outcome.value for rank in convert(FOUR_TO_THREE.request(target, **key_options(mode))).ranks] == [
        "resumed"
    ] * 3


def test_a_killed_run_is_resumed(store: Store, tmp_path: Path) -> None:
    target = store.url("out")
    options = key_options(EncryptionMode.AES_GCM)
    convert(FOUR_TO_THREE.request(target, **options))
    (store.files("out") / ".reshard" / "manifest.json").unlink()
    (store.files("out") / "rank_1" / "checkpoint_1.ckpt").unlink()
    store.server.look_again()
    report = convert(FOUR_TO_THREE.request(target, **options))
    assert [rank.outcome.value for rank in report.ranks] == ["resumed", "written", "resumed"]
    convert(FOUR_TO_THREE.request(tmp_path / "back", **back(FOUR_TO_THREE, target, EncryptionMode.AES_GCM)))
    assert read_tree(tmp_path / "back") == FOUR_TO_THREE.want


@pytest.mark.parametrize("mode", [EncryptionMode.AES_GCM, EncryptionMode.AES_CBC])
def test_shared_reads_of_encrypted_columns(store: Store, mode: EncryptionMode, tmp_path: Path) -> None:
    (tmp_path / "columns").mkdir()
    columns = column_case(tmp_path / "columns")
    with (tmp_path / "encrypted").open("wb") as file:
        output = EncryptedOutput(file, Key(SECRET.encode(), mode), 50_001)  # type: ignore[arg-type]
        output.write((columns.directory / "whole.ckpt").read_bytes())
        output.finish()
    source = store.add(tmp_path / "encrypted", "whole.ckpt")
    request = columns.request(source=source, decrypt_key="env:KEY", decrypt_mode=str(mode))
    assert convert(request).committed
    assert read_tree(columns.target) == columns.want


def test_a_wrong_key(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = store.url("out")
    convert(FOUR_TO_THREE.request(target, **key_options(EncryptionMode.AES_GCM)))
    request = FOUR_TO_THREE.request(
        tmp_path / "back", **back(FOUR_TO_THREE, target, EncryptionMode.AES_GCM, "env:OTHER")
    )
    with pytest.raises(CatalogError, match="3 of 3 checkpoint files cannot be used") as caught:
        convert(request)
    assert str(caught.value).count("env:OTHER is not the key that it was encrypted with") == 3
    assert run(["verify", target, "--decrypt-key", "env:OTHER"]) == 2
    assert f"{target}: cannot be decrypted: env:OTHER is not the key" in capsys.readouterr().err


def test_a_tampered_block(store: Store, tmp_path: Path) -> None:
    target = store.url("out")
    convert(FOUR_TO_THREE.request(target, **key_options(EncryptionMode.AES_GCM)))
    path = store.files("out") / "rank_1" / "checkpoint_1.ckpt"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    store.server.look_again()
    request = FOUR_TO_THREE.request(tmp_path / "back", **back(FOUR_TO_THREE, target, EncryptionMode.AES_GCM))
    with pytest.raises(CheckpointError, match=r"rank_1/checkpoint_1.ckpt: cannot be decrypted \(the block at byte"):
        convert(request)

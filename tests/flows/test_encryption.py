"""Keys in blocks of Prefect: runs, and Dask's workers, decrypt and encrypt with them, and hold their names only."""

from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.blocks.system import Secret

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.keys import EncryptionMode
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.verify_checkpoint import verify_checkpoint
from tests.support.checkpoints import case, read_tree

FOUR_TO_THREE = case(7009)
SECRET, OTHER = "a secret of 16 b", "1234567890123456"
NEW_KEY = {"encrypt_key": "block:new-key", "encrypt_mode": "AES-CBC"}


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    keep("old-key", SECRET)
    keep("new-key", OTHER)


def keep(name: str, value: Any) -> None:
    Secret(value=value).save(name, overwrite=True)


@pytest.fixture
def source(tmp_path: Path) -> dict[str, object]:
    """The target's strategy, and a source of it that is encrypted."""
    convert(FOUR_TO_THREE.request(tmp_path / "src", encrypt_key="env:KEY"))
    strategy = str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    return {
        "source": str(tmp_path / "src"),
        "source_strategy": strategy,
        "target_strategy": strategy,
        "decrypt_key": "block:old-key",
    }


def check_decrypted(target: Path, source: dict[str, object], tmp_path: Path) -> None:
    """The new key is one that the environment can hold as well."""
    (tmp_path / "new-key").write_text(OTHER)
    keys = {"decrypt_key": f"file:{tmp_path}/new-key", "decrypt_mode": "AES-CBC"}
    convert(FOUR_TO_THREE.request(tmp_path / "back", **(source | {"source": str(target)} | keys)))
    assert read_tree(tmp_path / "back") == FOUR_TO_THREE.want


def test_keys_in_blocks_are_nowhere_repeated(
    source: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "out"
    with caplog.at_level("DEBUG"):
        state: Any = convert_checkpoint(FOUR_TO_THREE.request(target, **(source | NEW_KEY)), return_state=True)
    report = state.result()
    assert report.committed
    check_decrypted(target, source, tmp_path)
    run_id = state.state_details.flow_run_id
    ours = {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}}}
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id).model_dump_json()
        artifacts = client.request("POST", "/artifacts/filter", json=ours).text
    assert "block:new-key" in run
    for left in (run, artifacts, caplog.text, report.model_dump_json()):
        assert SECRET not in left
        assert OTHER not in left

    mode = EncryptionMode.AES_CBC
    asked = VerificationRequest(target=str(target), decrypt_key="block:new-key", decrypt_mode=mode)
    assert verify_checkpoint(asked).level is VerifyLevel.CHECKSUM
    with pytest.raises(InputError, match="is encrypted with AES-CBC: name its key with 'decrypt_key'"):
        verify_checkpoint(VerificationRequest(target=str(target)))
    with pytest.raises(InputError, match="block:old-key is not the key that it was written with"):
        verify_checkpoint(asked.model_copy(update={"decrypt_key": "block:old-key"}))


def test_a_block_that_holds_no_text(source: dict[str, object], tmp_path: Path) -> None:
    for value in ({"key": SECRET}, "1234567890.12345"):
        keep("new-key", value)
        request = FOUR_TO_THREE.request(tmp_path / "out", **(source | NEW_KEY))
        state: Any = convert_checkpoint(request, return_state=True)
        assert state.message.startswith("block:new-key: is not the text of a key (of what looks like JSON")
        assert state.message.endswith("give it as hex: or base64:")


@pytest.mark.slow
def test_on_a_dask_cluster(source: dict[str, object], tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out", dask_scheduler="local", **(source | NEW_KEY))
    assert convert_checkpoint(request).committed
    check_decrypted(tmp_path / "out", source, tmp_path)

"""Signatures in flows: keys from blocks, what a run's page says, every step signed, sources that have to be signed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.blocks.system import Secret

from reshard.core.signing.bundle import parse_bundle
from reshard.core.signing.verifier import Identity, parse_verifier
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.convert_latest_checkpoint import convert_latest_checkpoint
from tests.support.checkpoints import case
from tests.support.flow_runs import Run
from tests.support.run_events import event_of
from tests.support.signed_sources import Keys, copy_of_source
from tests.support.signing import new_key, private_pem, public_pem
from tests.support.training import latest_request, save_step

FOUR_TO_THREE = case(7009)
PASSPHRASE = "31415926535897"
"""Digits, which Prefect takes for a number."""
SIGNING = {"sign": "block:release-key", "sign_passphrase": "block:release-passphrase"}
KEY = new_key()
PEM = private_pem(KEY, PASSPHRASE)


@pytest.fixture(autouse=True)
def blocks() -> None:
    keep("release-key", PEM.decode())
    keep("release-passphrase", PASSPHRASE)


def keep(name: str, value: Any) -> None:
    Secret(value=value).save(name, overwrite=True)


def signer_of(target: Path) -> Identity:
    """Who signed a target, by the key above alone."""
    bundle = parse_bundle((target / "model.sig").read_bytes(), "it")
    return bundle.check(parse_verifier(public_pem(KEY), "the key"), "it")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_key_from_a_block_signs_and_is_nowhere_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "out"
    with caplog.at_level("DEBUG"):
        run = Run(convert_checkpoint, FOUR_TO_THREE.request(target, **SIGNING))
    report = run.state.result()
    hint = signer_of(target).hint
    provenance = target / ".reshard/provenance.intoto.json"
    page = run.artifacts["conversion-summary"]
    assert f"the key with SHA-256 {hint}" in page
    assert f"reshard verify {target} --provenance --signed-by PUBLIC_KEY" in page
    for shown in (sha256(target / "model.sig"), sha256(provenance), "taken of 3 files of the target, 0 of the source"):
        assert shown in page
    custody = event_of(run.id, "reshard.conversion.completed")["payload"]["custody"]
    assert custody["signed_by"] == f"the key with SHA-256 {hint}"
    assert custody["signature_sha256"] == sha256(target / "model.sig")
    stored = run.stored_run.model_dump_json()
    assert "block:release-key" in stored
    written = [path.read_text(errors="replace") for path in (target / ".reshard").rglob("*.json")]
    secret = PEM.decode().splitlines()[1]
    with get_client(sync_client=True) as client:
        ours = {"flow_runs": {"id": {"any_": [str(run.id)]}}}
        tasks = client.request("POST", "/task_runs/filter", json=ours).text
    for left in (stored, tasks, caplog.text, report.model_dump_json(), json.dumps(run.artifacts), *written):
        assert secret not in left
        assert PASSPHRASE not in left


def test_a_wrong_passphrase_ends_the_run_before_anything_is_written(tmp_path: Path) -> None:
    keep("release-passphrase", "another one")
    run = Run(convert_checkpoint, FOUR_TO_THREE.request(tmp_path / "out", **SIGNING))
    assert run.state.is_failed()
    assert "the passphrase block:release-passphrase is wrong" in str(run.state.message)
    assert "another one" not in str(run.state.message)
    assert not list(tmp_path.iterdir())


def test_every_step_is_signed(tmp_path: Path) -> None:
    for step in ("1_0", "1_1"):
        save_step(tmp_path / "training", step)
        request = latest_request(tmp_path / "training", tmp_path / "out", **SIGNING)
        assert Run(convert_latest_checkpoint, request).state.is_completed()
        assert signer_of(tmp_path / "out" / step).hint


def test_a_step_that_is_not_signed_is_refused_by_name(tmp_path: Path) -> None:
    keys, training = Keys(tmp_path / "keys"), tmp_path / "training"
    save_step(training, "1_0")
    keys.sign(training)
    request = latest_request(training, tmp_path / "out", require_signed_by=str(keys.public))
    assert Run(convert_latest_checkpoint, request).state.is_completed()
    save_step(training, "1_1")
    refused = Run(convert_latest_checkpoint, request)
    assert refused.state.is_failed()
    assert "rank_0/CKP-1_1.ckpt: would be read, but is not covered" in str(refused.state.message)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["1_0"]
    keys.sign(training)
    assert Run(convert_latest_checkpoint, request).state.is_completed()


def test_a_source_is_checked_by_a_key_from_a_block(tmp_path: Path) -> None:
    keys, source = Keys(tmp_path / "keys"), copy_of_source(FOUR_TO_THREE, tmp_path)
    keys.sign(source)
    asked = FOUR_TO_THREE.request(tmp_path / "out", source=str(source), require_signed_by="block:training-key")
    keep("training-key", Keys(tmp_path / "others").public.read_text())
    refused = Run(convert_checkpoint, asked)
    assert "model.sig: signed by another key" in str(refused.state.message)
    keep("training-key", keys.public.read_text())
    assert Run(convert_checkpoint, asked).state.is_completed()


def test_a_source_by_another_signer_is_refused_before_a_byte_moves(tmp_path: Path) -> None:
    signed_by, wanted = Keys(tmp_path / "one"), Keys(tmp_path / "two")
    source = copy_of_source(FOUR_TO_THREE, tmp_path)
    signed_by.sign(source)
    asked = {"source": str(source), "require_signed_by": str(wanted.public)}
    run = Run(convert_checkpoint, FOUR_TO_THREE.request(tmp_path / "out", **asked))
    assert run.state.is_failed()
    assert "model.sig: signed by another key" in str(run.state.message)
    assert "Nothing was published." in run.artifacts["conversion-summary"]
    assert not (tmp_path / "out").exists()

"""What `make conformance` asks model-signing about signatures."""

import subprocess
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.storage.listing import find_entries
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from tests.conformance.mindspore_process import SIGNING_PYTHON
from tests.conformance.signing import CURVES, LENGTHS, TAMPERING, build_case
from tests.support.checkpoints import case
from tests.support.signing import kept, new_key, private_pem, public_pem

CASES = [build_case(seed) for seed in range(100)]
needs_model_signing = pytest.mark.skipif(not SIGNING_PYTHON.exists(), reason="make .venv-signing/installed")


def test_cases_cover_what_can_be_signed_with() -> None:
    assert {(each.curve, each.encrypted) for each in CASES} == {(curve, on) for curve in CURVES for on in (False, True)}
    assert {each.certificates for each in CASES} == set(LENGTHS)
    assert {(each.tampered, each.joined) for each in CASES} == {
        (what, on) for what in TAMPERING for on in (False, True)
    }


@pytest.mark.slow
@needs_model_signing
def test_the_command_checks_what_was_downloaded_from_an_object_store(tmp_path: Path) -> None:
    key, url = new_key(), f"memory://{tmp_path.name}/out"
    convert(case(7009).request(url, sign=kept(tmp_path / "key.pem", private_pem(key))))
    (tmp_path / "key.pub").write_bytes(public_pem(key))
    final, target = parse_url(url), tmp_path / "out"
    for path in find_entries(final):
        copy = target / path.removeprefix(f"{final.path}/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(read_small_file(Location(final.store, path), 2**30))
    program = str(SIGNING_PYTHON.with_name("model_signing"))
    command = [program, "verify", "key", "--public_key", str(tmp_path / "key.pub")]
    files = ["--signature", str(target / "model.sig"), str(target)]
    done = subprocess.run([*command, *files], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n")

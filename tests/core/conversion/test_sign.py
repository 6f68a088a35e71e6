"""A checkpoint that is there already is checked, and then signed as it is."""

import json
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.core.checkpoint.manifest import dump_record
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, TargetBusyError, VerificationError
from reshard.core.request.target import Sha256Level
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.target.claim import leases_of
from tests.core.conversion.test_sha256 import LAYOUTS
from tests.support.checkpoints import case
from tests.support.conversions import damage
from tests.support.sha256 import manifest_at, recorded_sha256
from tests.support.signing import authority, digests_of, new_key, owner, private_pem, public_pem, signed_digests

KEY, OTHER = new_key(), new_key()


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    monkeypatch.setenv("SIGNING", private_pem(KEY).decode())
    monkeypatch.setenv("OTHER", private_pem(OTHER).decode())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    convert(case(7009).request(tmp_path / "out"))
    return tmp_path / "out"


def check_signed(target: Path, key=KEY) -> None:
    assert signed_digests((target / "model.sig").read_bytes(), key) == digests_of(target)


@pytest.mark.parametrize("name", ["ranks", "ranks encrypted", "unified", "checkpoint2", "dcp"])
def test_a_target_without_sha256(name: str, tmp_path: Path) -> None:
    asked = LAYOUTS[name](tmp_path).model_copy(update={"sha256": Sha256Level.NONE})
    target = Path(convert(asked).target)
    opening: dict[str, Any] = {}
    if asked.encrypt_key:
        opening = {"decrypt_key": asked.encrypt_key, "decrypt_mode": asked.encrypt_mode}
    report = reshard.sign(target, key="env:SIGNING", **opening)
    assert report.signed_now
    check_signed(target)
    assert recorded_sha256(target).items() <= digests_of(target).items()
    before = (target / "model.sig").read_bytes()
    assert not reshard.sign(target, key="env:SIGNING", **opening).signed_now
    convert(asked)  # and it stays the target of the same conversion
    assert (target / "model.sig").read_bytes() == before


def test_the_report(target: Path) -> None:
    report = reshard.sign(target, key="env:SIGNING")
    assert report.files == len(digests_of(target))
    lines = str(report).splitlines()
    assert lines[0].startswith(f"{target}: signed {report.files} files, ")
    assert lines[-1].split() == ["signature", f"{target}/model.sig"]
    assert str(reshard.sign(target, key="env:SIGNING")).startswith(f"{target}: is signed already: {report.files} files")


def test_a_damaged_target_is_not_signed(target: Path) -> None:
    damage(next((target / "rank_1").iterdir()))
    before = digests_of(target)
    with pytest.raises(VerificationError, match="out: is not as it was written, and was not signed:\n .*rank_1"):
        reshard.sign(target, key="env:SIGNING")
    assert not (target / "model.sig").exists()
    assert digests_of(target) == before


def test_files_added_by_others_are_signed_links_are_not(target: Path) -> None:
    (target / "README.md").write_text("about this model")
    reshard.sign(target, key="env:SIGNING")
    check_signed(target)
    (target / "model.sig").unlink()
    (target / "link").symlink_to(target / "README.md")
    with pytest.raises(InputError, match="out/link: is a link, or in a linked directory: put the file there"):
        reshard.sign(target, key="env:SIGNING")


def test_files_added_since_are_signed_and_named(target: Path) -> None:
    assert not reshard.sign(target, key="env:SIGNING").notes
    (target / "README.md").write_text("about this model")
    report = reshard.sign(target, key="env:SIGNING")
    assert report.notes == (f"{target}: not covered by its earlier signature, but by this one: README.md",)
    check_signed(target)


@pytest.mark.parametrize("name", [".reshard/manifest.json", "README.md", "removed"])
def test_what_was_changed_since_the_same_key_signed_it_is_not_signed_again(target: Path, name: str) -> None:
    """With a manifest to match, a changed file looks as it was written: only the signature knows better."""
    file = target / ("README.md" if name == "removed" else name)
    (target / "README.md").write_text("about this model")
    reshard.sign(target, key="env:SIGNING")
    if name == "removed":
        file.unlink()
    elif name == "README.md":
        file.write_text("about another model")
    else:
        file.write_bytes(dump_record(manifest_at(target).model_copy(update={"notes": ("nothing was changed",)})))
    before = (target / "model.sig").read_bytes()
    with pytest.raises(VerificationError, match=rf"signed with this key, .* since:\n  {file}\n.*pass overwrite=True"):
        reshard.sign(target, key="env:SIGNING")
    assert (target / "model.sig").read_bytes() == before
    assert reshard.sign(target, key="env:SIGNING", overwrite=True).signed_now
    check_signed(target)


def test_a_signature_that_only_names_this_key_is_not_replaced(target: Path) -> None:
    reshard.sign(target, key="env:SIGNING")
    document = json.loads((target / "model.sig").read_text())
    [signature] = document["dsseEnvelope"]["signatures"]
    signature["sig"] = signature["sig"][:-8] + "AAAAAAA="
    (target / "model.sig").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"the signature is not valid: .*: pass overwrite=True to replace it"):
        reshard.sign(target, key="env:SIGNING")


def test_another_keys_signature_is_replaced_only_on_request(target: Path) -> None:
    reshard.sign(target, key="env:SIGNING")
    with pytest.raises(InputError, match=r"signed by another key: SHA-256 .*: pass overwrite=True to replace its sig"):
        reshard.sign(target, key="env:OTHER")
    check_signed(target)
    reshard.sign(target, key="env:OTHER", overwrite=True)
    check_signed(target, OTHER)
    (target / "model.sig").write_text("{}")
    with pytest.raises(InputError, match="it has no media type. It may be another key's: pass overwrite=True"):
        reshard.sign(target, key="env:OTHER")


def test_certificates(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certified = owner(authority())
    monkeypatch.setenv("SIGNING", private_pem(certified.key, "open sesame").decode())
    monkeypatch.setenv("PASSPHRASE", "open sesame")
    (tmp_path / "chain.pem").write_bytes(certified.chain_pem)
    certificate = str(tmp_path / "chain.pem")
    report = reshard.sign(target, key="env:SIGNING", passphrase="env:PASSPHRASE", certificate=certificate)
    assert report.subject == "CN=release"
    with pytest.raises(InputError, match="env:SIGNING: is encrypted: name its passphrase with 'passphrase'"):
        reshard.sign(target, key="env:SIGNING")
    check_signed(target, certified.key)
    # without its certificate it is another signature
    assert reshard.sign(target, key="env:SIGNING", passphrase="env:PASSPHRASE").signed_now


def test_what_cannot_be_signed(target: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is needed: env:NAME, file:PATH or block:NAME"):
        reshard.sign(target)
    with pytest.raises(InputError, match="does not exist: name the directory of a finished conversion"):
        reshard.sign(tmp_path / "nothing", key="env:SIGNING")
    with held_lease(leases_of(parse_url(str(target))), new_holder((1,), "x")), pytest.raises(TargetBusyError):
        reshard.sign(target, key="env:SIGNING")


def test_the_mark_of_a_run_that_was_killed_is_removed(target: Path, tmp_path: Path) -> None:
    """Nothing would cover it."""
    public = tmp_path / "key.pub"
    public.write_bytes(public_pem(KEY))
    for signed_now in (True, False):
        mark = target / ".reshard/withdrawn"
        mark.write_text("x")
        assert reshard.sign(target, key="env:SIGNING").signed_now is signed_now
        assert not mark.exists()
        assert not reshard.verify(target, signed_by=public).problems

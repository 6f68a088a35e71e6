"""A signature covers every file of a target as it is, and goes before one of them changes."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import reshard
from reshard.core.checkpoint.manifest import dump_record
from reshard.core.conversion.convert import convert
from reshard.core.conversion.report import Outcome
from reshard.core.errors import (
    InputError,
    StorageError,
    TargetBusyError,
    TargetError,
    VerificationError,
    text_with_notes,
)
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.listing import find_entries
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leases_of
from reshard.core.target.cleaning import clean
from tests.core.conversion.test_sha256 import LAYOUTS
from tests.support.checkpoints import case
from tests.support.notes import Notes
from tests.support.sha256 import manifest_at
from tests.support.signing import authority, digests_of, new_key, owner, private_pem, signed_digests

KEY, OTHER = new_key(), new_key()
RANKS = case(7009)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    monkeypatch.setenv("SIGNING", private_pem(KEY).decode())
    monkeypatch.setenv("OTHER", private_pem(OTHER).decode())


def request(path: Path, target: str = "", **options: object) -> ConversionRequest:
    return RANKS.request(target or path / "out", **{"sign": "env:SIGNING", **options})


def signature(target: Path) -> Path:
    return target / "model.sig"


def check_signed(target: Path, key=KEY) -> None:
    assert signed_digests(signature(target).read_bytes(), key) == digests_of(target)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_file_is_signed_whatever_the_layout(name: str, tmp_path: Path) -> None:
    asked = LAYOUTS[name](tmp_path)
    target = Path(convert(asked.model_copy(update={"sign": "env:SIGNING"})).target)
    check_signed(target)
    # it is a source again, and nothing is done again
    opening: dict[str, Any] = {}
    if asked.encrypt_key:
        opening = {"decrypt_key": asked.encrypt_key, "decrypt_mode": asked.encrypt_mode}
    with reshard.open(asked.target, **opening) as opened:
        assert list(opened.keys())
    before = signature(target).read_bytes()
    convert(asked)
    convert(asked.model_copy(update={"sign": "env:SIGNING"}))
    assert signature(target).read_bytes() == before


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_a_key_that_is_wrong_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch, curve) -> None:
    monkeypatch.setenv("SIGNING", private_pem(new_key(curve), "open sesame").decode())
    monkeypatch.setenv("WRONG", "open barley")
    with pytest.raises(InputError, match="env:SIGNING: the passphrase env:WRONG is wrong, or the key is damaged"):
        convert(request(tmp_path, source=str(tmp_path / "nothing"), sign_passphrase="env:WRONG"))
    assert not list(tmp_path.iterdir())


def test_a_certificate_of_another_key_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").write_bytes(owner(authority()).pem)
    with pytest.raises(InputError, match="the certificate of CN=release is not that of env:SIGNING"):
        convert(request(tmp_path, source=str(tmp_path / "nothing"), sign_certificate=str(tmp_path / "chain.pem")))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sign": "pkcs11:token=x"}, "PKCS#11 tokens are not supported"),
        ({"sign": "-----BEGIN PRIVATE KEY-----"}, "must be env:NAME, file:PATH or block:NAME"),
        ({"sign": "", "sign_passphrase": "env:P"}, "needs a key: name it with 'sign'"),
        ({"sign": "", "sign_certificate": "/c.pem"}, "needs a key: name it with 'sign'"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(InputError, match=expected) as refused:
        build_request(source="/a", target="/b", **options)
    assert "PRIVATE KEY" not in str(refused.value)


def test_on_a_storage_without_renames_everything_there_is_signed(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/out"
    final = parse_url(url)
    convert(request(tmp_path, target=url, sign="", sha256="target"))
    write_bytes(final.child("notes", "README.md"), b"about this model")  # by another program
    convert(request(tmp_path, target=url))
    start = len(final.path) + 1
    contents = {path[start:]: read_small_file(Location(final.store, path), 2**30) for path in find_entries(final)}
    names = signed_digests(contents.pop("model.sig"), KEY)
    assert names.keys() == {name for name in contents if "/leases/" not in name}
    assert "notes/README.md" in names


@pytest.fixture(params=["disk", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "out") if request.param == "disk" else f"memory://{tmp_path.name}/out"


def contents(target: str) -> dict[str, bytes]:
    final = parse_url(target)
    start = len(final.path) + 1
    found = {path[start:]: read_small_file(Location(final.store, path), 2**30) for path in find_entries(final)}
    return {name: content for name, content in found.items() if "/leases/" not in name}


def check_signed_at(target: str, key=KEY) -> None:
    found = contents(target)
    digests = signed_digests(found.pop("model.sig"), key)
    assert digests == {name: sha256(content).hexdigest() for name, content in found.items()}


def spoil(target: str, name: str) -> None:
    file = parse_url(target).child(*name.split("/"))
    content = read_small_file(file, 2**30)
    write_bytes(file, content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    "spoiled", ["rank_1/checkpoint_1.ckpt", ".reshard/plan.json.gz", ".reshard/records/rank_2.json"]
)
def test_a_signed_target_is_repaired_only_by_who_signs_it(target: str, tmp_path: Path, spoiled: str) -> None:
    convert(request(tmp_path, target))
    name = next(name for name in contents(target) if name.startswith(spoiled))
    spoil(target, name)
    before = contents(target)
    with pytest.raises(TargetError, match="is signed, and has to be repaired, .* name the key with 'sign' to rep"):
        convert(request(tmp_path, target, sign=""))
    assert contents(target) == before
    convert(request(tmp_path, target))
    check_signed_at(target)


def test_a_closer_verification_is_recorded_only_by_who_signs(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target, verify="structure"))
    before, notes = contents(target), Notes()
    convert(request(tmp_path, target, sign="", verify="checksum"), notes)
    assert any("is signed, so its manifest stays as it is: that it was verified" in note for note in notes.notes)
    with pytest.raises(TargetError, match="is signed, and its records lack what a comparison of values needs"):
        convert(request(tmp_path, target, sign="", verify="content"))
    assert contents(target) == before
    convert(request(tmp_path, target, verify="content"))
    check_signed_at(target)
    assert contents(target) != before


def test_a_finished_target_is_signed_later(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target, sign=""))
    report = convert(request(tmp_path, target))
    assert {rank.outcome for rank in report.ranks} == {Outcome.RESUMED}
    check_signed_at(target)


def test_another_keys_signature_is_replaced_only_on_request(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target))
    before = contents(target)
    with pytest.raises(InputError, match=r"signed by another key: SHA-256 .*: pass overwrite=True to replace its sig"):
        convert(request(tmp_path, target, sign="env:OTHER"))
    assert contents(target) == before
    convert(request(tmp_path, target, sign="env:OTHER", overwrite=True))
    check_signed_at(target, OTHER)


def test_a_manifest_that_was_changed_since_is_not_signed_again(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target))
    changed = dump_record(manifest_at(target).model_copy(update={"notes": ("nothing was changed",)}))
    write_bytes(parse_url(target).child(".reshard", "manifest.json"), changed)
    before, message = contents(target), r"out: is signed with this key, but not as .*\n  .*manifest.json\n"
    for options in {}, {"verify": "content"}:  # it would be recorded
        with pytest.raises(VerificationError, match=message) as refused:
            convert(request(tmp_path, target, **options))
        assert "final name" not in text_with_notes(refused.value)
    assert contents(target) == before
    convert(request(tmp_path, target, overwrite=True))
    check_signed_at(target)


def test_a_foreign_file_among_the_records_is_not_signed(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target))
    write_bytes(parse_url(target).child(".reshard", "README"), b"")
    with pytest.raises(TargetError, match="README: does not belong to this checkpoint's records"):
        convert(request(tmp_path, target))


@pytest.mark.parametrize("sign", ["", "env:OTHER"])
def test_a_replaced_target_does_not_keep_the_old_signature(target: str, tmp_path: Path, sign: str) -> None:
    convert(request(tmp_path, target))
    convert(request(tmp_path, target, format="safetensors", overwrite=True, sign=sign))
    if sign:
        check_signed_at(target, OTHER)
    else:
        assert "model.sig" not in contents(target)


@pytest.mark.parametrize("mends", [False, True])
def test_a_run_that_is_killed_when_it_has_signed(target: str, tmp_path: Path, monkeypatch, mends: bool) -> None:
    if mends:
        convert(request(tmp_path, target))
        spoil(target, next(name for name in contents(target) if name.startswith("rank_1/")))
    kill_at_the_manifest(monkeypatch, request(tmp_path, target))
    convert(request(tmp_path, target, sign=""))
    assert "model.sig" not in contents(target)
    convert(request(tmp_path, target))
    check_signed_at(target)


def kill_at_the_manifest(monkeypatch: pytest.MonkeyPatch, request: ConversionRequest) -> None:
    def die(*_: object) -> None:
        raise StorageError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("reshard.core.target.target.publish_manifest", die)
        with pytest.raises(StorageError, match="killed"):
            convert(request)


def test_runs_of_some_ranks_each(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target, sign="", ranks="0-1"))
    assert convert(request(tmp_path, target, ranks="2")).committed
    check_signed_at(target)


def test_a_run_without_the_key_says_that_another_was_to_sign(target: str, tmp_path: Path) -> None:
    assert not convert(request(tmp_path, target, ranks="0-1")).committed
    report = convert(request(tmp_path, target, sign="", ranks="2"))
    assert report.committed
    assert "model.sig" not in contents(target)
    [note] = [each for each in report.notes if "signed" in each]
    assert note.endswith("this one has published it without a key. The same conversion with 'sign' signs it")
    assert not any("signed" in each for each in convert(request(tmp_path, target)).notes)
    check_signed_at(target)


def test_nothing_is_signed_while_another_run_may_change_it(target: str, tmp_path: Path) -> None:
    convert(request(tmp_path, target, sign="", ranks="0-1"))
    final = parse_url(target)
    identity = contents(target + ".reshard-partial" if target.startswith("/") else target)[".reshard/identity"].decode()
    busy = pytest.raises(TargetBusyError, match="is working on other ranks, and what is signed must not change")
    with held_lease(leases_of(final), new_holder((1,), identity)), busy:
        convert(request(tmp_path, target, ranks="2"))
    assert "model.sig" not in contents(target)
    assert convert(request(tmp_path, target)).committed
    check_signed_at(target)


def test_a_signature_stays_while_another_run_holds_the_target(tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    convert(request(tmp_path, target))
    before, other = contents(target), new_holder((0,), "another plan")
    with held_lease(leases_of(parse_url(target)), other), pytest.raises(TargetBusyError):
        convert(request(tmp_path, target, sha256="source"))
    assert {name: each for name, each in contents(target).items() if "leases" not in name} == before


def test_the_signature_of_a_run_that_was_killed_is_removed_with_its_files(tmp_path: Path, monkeypatch) -> None:
    target = f"memory://{tmp_path.name}/out"
    kill_at_the_manifest(monkeypatch, request(tmp_path, target))
    assert "model.sig" in contents(target)
    clean(target, remove=True)
    assert not contents(target)

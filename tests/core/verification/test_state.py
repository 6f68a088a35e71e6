"""`verify` finds any changed byte beside a finished conversion, not only in its files."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from reshard.cli.main import run
from reshard.core.checkpoint.self_digest import split_digest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.request.conversion import build_request
from reshard.core.runtime.keys import EncryptionMode, KeyNames, named_keys
from reshard.core.storage.urls import parse_url
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import CONVERSIONS
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.joining import join_parts
from tests.support.records import as_record

STEM = ".reshard"
PARTS = CONVERSIONS / "case_7010"


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "src/rank_0/net-1_2.ckpt"
    file.parent.mkdir(parents=True)
    file.write_bytes(checkpoint_bytes(("w", "Int8", [4], b"four")))
    return str(tmp_path / "src")


@pytest.fixture
def target(source: str, tmp_path: Path) -> Path:
    convert(build_request(source=source, target=str(tmp_path / "out")))
    return tmp_path / "out"


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    parts = []
    for stage in (0, 1):
        parts.append(str(tmp_path / f"stage{stage}"))
        strategies = {
            "source_strategy": str(PARTS / f"src_stages/strategy_{4 * stage}.ckpt"),
            "target_strategy": str(PARTS / "dst_strategy.ckpt"),
        }
        convert(build_request(source=str(PARTS / "src"), target=parts[-1], **strategies))
    join_parts(parts, str(tmp_path / "joined"))
    return tmp_path / "joined"


@pytest.fixture
def encrypted(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KEY", "0123456789abcdef")
    request = build_request(source=source, target=str(tmp_path / "secret"), encrypt_key="env:KEY")
    with named_keys(KeyNames("", EncryptionMode.AES_GCM, "env:KEY", EncryptionMode.AES_GCM)):
        convert(request)
        yield tmp_path / "secret"


def is_found(target: Path) -> bool:
    """Whether a check at the quickest level finds a problem."""
    try:
        return bool(verify_target(str(target), VerifyLevel.STRUCTURE).problems)
    except InputError:
        return True


def state_files(target: Path) -> list[Path]:
    return sorted(path for path in (target / STEM).rglob("*") if path.is_file())


def check_changes_are_found(target: Path, every: int) -> None:
    """Flips a bit in one of `every` bytes of each file; also removes, doubles and moves some of them."""
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    bits = np.random.default_rng(0)
    for path in state_files(target):
        data = path.read_bytes()

        def check(place: int, instead: bytes, path: Path = path, data: bytes = data) -> None:
            path.write_bytes(data[:place] + instead + data[place + 1 :])
            assert is_found(target), (path.name, place, instead)

        for place in range(0, len(data), every):
            byte = data[place]
            check(place, bytes([byte ^ 1 << int(bits.integers(8))]))
            if place % 11 == 0:
                check(place, b"")
                check(place, bytes([byte, byte]))
                check(place, bytes([32, byte]))
        check(len(data), b"\n")
        check(len(data) - 1, b"")
        path.write_bytes(data)
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


def test_any_changed_byte_is_found(target: Path) -> None:
    assert {path.name for path in state_files(target)} == {"identity", "manifest.json", "plan.json.gz", "rank_0.json"}
    check_changes_are_found(target, every=3)


def test_any_changed_byte_beside_joined_parts_is_found(joined: Path) -> None:
    check_changes_are_found(joined, every=29)


def test_any_changed_byte_beside_an_encrypted_target_is_found(encrypted: Path) -> None:
    check_changes_are_found(encrypted, every=7)


def test_a_missing_file_is_found(target: Path) -> None:
    for path in state_files(target):
        data = path.read_bytes()
        path.unlink()
        assert is_found(target), path.name
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["notes.txt", "records/rank_1.json", "records/x/rank_0.json", "more/plan.json.gz"])
def test_a_file_too_many_is_found(target: Path, name: str) -> None:
    path = target / STEM / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    assert verify_target(str(target), VerifyLevel.STRUCTURE).problems == (
        f"{path}: does not belong to this checkpoint's records",
    )


def test_messages(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = target / STEM
    (state / "identity").write_text("0" * 32)
    plan = bytearray((state / "plan.json.gz").read_bytes())
    plan[4] ^= 1  # the time in gzip's header, which no one reads
    (state / "plan.json.gz").write_bytes(plan)
    record = (state / "records/rank_0.json").read_bytes()
    (state / "records/rank_0.json").write_bytes(record.replace(b'"checksum"', b'"contents"', 1))
    assert run(["verify", str(target)]) == 1
    shown = capsys.readouterr().out
    assert f"{state}/records/rank_0.json: not a readable record: it was changed: its bytes do not match the" in shown
    identity = json.loads((state / "manifest.json").read_text())["identity"]
    assert f"{state}/identity: is not {identity}, as the manifest says" in shown
    assert f"{state}/plan.json.gz: is not the plan that was written" in shown
    manifest = (state / "manifest.json").read_text()
    (state / "manifest.json").write_text(manifest.replace('"source_world_size": 1', '"source_world_size": 2'))
    assert run(["verify", str(target)]) == 2
    assert f"{state}/manifest.json: not a readable manifest: it was changed: its bytes" in capsys.readouterr().err


def test_a_digest_cannot_be_taken_out(target: Path) -> None:
    record, manifest = (target / STEM / name for name in ("records/rank_0.json", "manifest.json"))
    for path in (record, manifest):
        data = path.read_bytes()
        path.write_bytes(split_digest(data)[0])
        with pytest.raises(TargetError, match="it was changed: the digest that it should end in is missing"):
            raise TargetError(*verify_target(str(target), VerifyLevel.STRUCTURE).problems)
        path.write_bytes(data)


def as_earlier_versions_wrote_it(target: Path) -> None:
    for path in [target / STEM / "manifest.json", *(target / STEM / "records").iterdir()]:
        fields = json.loads(path.read_bytes())
        path.write_text(json.dumps({name: fields[name] for name in fields if name not in ("digest", "plan_digest")}))


def test_what_an_earlier_version_wrote_is_as_right_as_it_was(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_earlier_versions_wrote_it(target)
    assert run(["verify", str(target)]) == 0
    shown = capsys.readouterr().out
    assert f"{target}: written by an earlier version of reshard, without digests of the manifest, the records" in shown
    assert verify_target(str(target), VerifyLevel.CONTENT).notes
    (target / STEM / "identity").write_text("another")
    assert is_found(target)


def test_an_earlier_version_of_an_encrypted_target(encrypted: Path) -> None:
    manifest = encrypted / STEM / "manifest.json"
    fields = json.loads(manifest.read_bytes())
    del fields["plan_digest"]
    manifest.write_bytes(as_record(fields))
    with pytest.raises(InputError, match="cannot be decrypted"):  # the digest of the plan is sealed with the rest
        verify_target(str(encrypted), VerifyLevel.STRUCTURE)


def test_the_same_conversion_mends_plan_and_identity(target: Path, source: str) -> None:
    before = read_manifest(parse_url(str(target)))
    for name in ("identity", "plan.json.gz"):
        for change in (lambda path: path.write_bytes(b"x"), Path.unlink):
            change(target / STEM / name)
            assert is_found(target)
            [rank] = convert(build_request(source=source, target=str(target))).ranks
            assert rank.outcome == "resumed"
            assert not is_found(target)
    assert read_manifest(parse_url(str(target))) == before
    assert {path.name for path in target.parent.iterdir()} == {"src", "out"}


def test_the_same_conversion_mends_an_encrypted_targets_plan(encrypted: Path, source: str) -> None:
    (encrypted / STEM / "plan.json.gz").write_bytes(b"x")
    convert(build_request(source=source, target=str(encrypted), encrypt_key="env:KEY"))
    assert not verify_target(str(encrypted), VerifyLevel.CHECKSUM).problems


def test_the_same_conversion_names_what_does_not_belong_there(target: Path, source: str) -> None:
    (target / STEM / "notes.txt").touch()
    with pytest.raises(TargetError, match=r"notes\.txt: does not belong to this checkpoint's records\. Move it away"):
        convert(build_request(source=source, target=str(target)))


def test_a_higher_level_keeps_the_records_right(target: Path, source: str) -> None:
    convert(build_request(source=source, target=str(target), verify="content"))
    assert json.loads((target / STEM / "manifest.json").read_bytes())["verified"] == "content"
    assert not verify_target(str(target), VerifyLevel.CONTENT).problems


def test_on_an_object_store(source: str) -> None:
    fs = fsspec.filesystem("memory")
    target = "memory://state/out"
    try:
        for options in ({}, {"prefix": "other_", "overwrite": True}):
            fs.pipe_file("/state/out/.reshard/removing.json", b"{}")  # a removal that was killed
            convert(build_request(source=source, target=target, **options))
            assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        fs.pipe_file("/state/out/.reshard/identity", b"x")
        assert verify_target(target, VerifyLevel.CHECKSUM).problems
        convert(build_request(source=source, target=target, prefix="other_"))
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
    finally:
        fs.rm("/state", recursive=True)


def test_parts_whose_plan_was_changed_are_not_joined(joined: Path, tmp_path: Path) -> None:
    parts = [tmp_path / "stage0", tmp_path / "stage1"]
    plan = parts[0] / STEM / "plan.json.gz"
    plan.write_bytes(plan.read_bytes()[:4] + b"\1" + plan.read_bytes()[5:])
    shutil.rmtree(joined)
    with pytest.raises(TargetError, match=r"plan\.json\.gz: is not the plan that was written: it was changed"):
        join_parts([str(part) for part in parts], str(joined))


def test_a_target_converted_again_after_a_killed_removal_is_sound(source: str, target: Path) -> None:
    (target / ".reshard/manifest.json").rename(target / ".reshard/removing.json")
    shutil.rmtree(target / "rank_0")
    assert convert(build_request(source=source, target=str(target))).committed
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert convert(build_request(source=source, target=str(target))).committed


def test_files_that_a_network_file_system_keeps_for_others_do_not_count(source: str, target: Path) -> None:
    (target / ".reshard/records/.nfs0000000000d4c3c6").write_bytes(b"replaced while it was open")
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert convert(build_request(source=source, target=str(target))).committed


def test_a_finished_target_where_nothing_can_be_written_any_more(
    source: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.target.place.os.access", lambda *_: False)
    assert convert(build_request(source=source, target=str(target))).committed
    with pytest.raises(TargetError, match="is not writable"):
        convert(build_request(source=source, target=f"{target}2"))

"""Conversions from and to encrypted files: bytes, resuming, verifying; nothing beside them is in plain text."""

import gzip
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import LatestOutcome, convert_latest
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import (
    CatalogError,
    CheckpointError,
    ConversionError,
    InputError,
    PlanError,
    StorageError,
    TargetError,
)
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.encrypted_output import EncryptedOutput
from reshard.core.options.validation import build_options
from reshard.core.records.plan_file import load_sources
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.keys import EncryptionMode, Key, KeyNames, named_keys
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.published import verify_target
from reshard.core.verification.report import VerificationReport
from tests.support.checkpoints import Case, case, read_ckpt, read_tree
from tests.support.conversions import damage, outcomes
from tests.support.records import as_record

FOUR_TO_THREE = case(7009)
PIPELINES = case(7011)
SECRET, OTHER = "a secret of 16 b", "16 other letters"
MODES = list(EncryptionMode)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    monkeypatch.setenv("OTHER", OTHER)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def partial(target: Path) -> Path:
    return target.with_name(target.name + ".reshard-partial")


def to_key(mode: EncryptionMode = EncryptionMode.AES_GCM, name: str = "env:KEY") -> dict[str, object]:
    return {"encrypt_key": name, "encrypt_mode": str(mode)}


def from_key(mode: EncryptionMode = EncryptionMode.AES_GCM, name: str = "env:KEY") -> dict[str, object]:
    return {"decrypt_key": name, "decrypt_mode": str(mode)}


def encrypted_source(conversion: Case, directory: Path, mode: EncryptionMode = EncryptionMode.AES_GCM) -> str:
    """The source of a conversion, in blocks of an odd length."""
    key = Key(SECRET.encode(), mode)
    for path in (conversion.directory / "src").glob("rank_*/*.ckpt"):
        place = directory / path.parent.name / path.name
        place.parent.mkdir(parents=True)
        with place.open("wb") as file:
            output = EncryptedOutput(file, key, 1001)  # type: ignore[arg-type]
            output.write(path.read_bytes())
            output.finish()
    return str(directory)


def decrypted_tree(target: Path, mode: EncryptionMode, tmp_path: Path) -> Any:
    """An encrypted target's ranks, decrypted and read by independent means."""
    found = {}
    for path in target.glob("rank_*/*"):
        file = DecryptedSource(open_source(parse_url(str(path))), Key(SECRET.encode(), mode))
        plain = tmp_path / "plain"
        plain.write_bytes(read_bytes(file, 0, file.size_bytes))
        file.close()
        found[int(path.parent.name.removeprefix("rank_"))] = read_ckpt(plain)
    return found


def verified(target: Path, name: str = "env:KEY", mode: EncryptionMode = EncryptionMode.AES_GCM) -> VerificationReport:
    with named_keys(KeyNames(target=name, target_mode=mode)):
        return verify_target(str(target), VerifyLevel.CHECKSUM)


# ---- bytes ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("conversion", [FOUR_TO_THREE, PIPELINES], ids=["4-3", "pipelines"])
def test_an_encrypted_source(conversion: Case, mode: EncryptionMode, target: Path, tmp_path: Path) -> None:
    source = encrypted_source(conversion, tmp_path / "src", mode)
    assert convert(conversion.request(target, source=source, **from_key(mode))).committed
    assert read_tree(target) == conversion.want


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("conversion", [FOUR_TO_THREE, PIPELINES], ids=["4-3", "pipelines"])
def test_an_encrypted_target(conversion: Case, mode: EncryptionMode, target: Path, tmp_path: Path) -> None:
    report = convert(conversion.request(target, **to_key(mode)))
    assert decrypted_tree(target, mode, tmp_path) == conversion.want
    assert {rank.file: rank.size_bytes for rank in report.ranks} == {
        str(path.relative_to(target)): path.stat().st_size for path in target.glob("rank_*/*")
    }
    assert verified(target, mode=mode).problems == ()


def test_from_one_key_to_another(target: Path, tmp_path: Path) -> None:
    source = encrypted_source(FOUR_TO_THREE, tmp_path / "src", EncryptionMode.SM4_CBC)
    keys = from_key(EncryptionMode.SM4_CBC) | to_key(EncryptionMode.AES_CBC, "env:OTHER")
    convert(FOUR_TO_THREE.request(target, source=source, workers=3, **keys))
    strategy = str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    back = FOUR_TO_THREE.request(
        tmp_path / "back",
        source=str(target),
        source_strategy=strategy,
        target_strategy=strategy,
        **from_key(EncryptionMode.AES_CBC, "env:OTHER"),
    )
    convert(back)
    assert read_tree(tmp_path / "back") == FOUR_TO_THREE.want


def repeated_on_two_ranks(directory: Path) -> str:
    """A strategy under which both of two ranks hold all of FOUR_TO_THREE's parameters."""
    strategy = read_strategy(str(FOUR_TO_THREE.directory / "dst_strategy.ckpt"))
    [stage] = strategy.stages
    layouts = {name: whole_layout(len(layout.tensor_map), 2) for name, layout in stage.layouts.items()}
    repeated = replace(strategy, stages=(replace(stage, layouts=layouts),))
    path = str(directory / "repeated.ckpt")
    write_strategy(repeated, path)
    return path


def test_ranks_with_the_same_content_are_copied_as_they_are(target: Path, tmp_path: Path) -> None:
    report = convert(FOUR_TO_THREE.request(target, target_strategy=repeated_on_two_ranks(tmp_path), **to_key()))
    assert outcomes(report) == ["written", "copied"]
    first, second = ((target / rank.file).read_bytes() for rank in report.ranks)
    assert first == second
    assert verified(target).problems == ()


# ---- what is wrong ----


def test_a_wrong_key_is_one_error_before_anything_is_written(target: Path, tmp_path: Path) -> None:
    for mode in MODES:
        source = encrypted_source(FOUR_TO_THREE, tmp_path / f"src_{mode}", mode)
        with pytest.raises(CatalogError) as caught:
            convert(FOUR_TO_THREE.request(target, source=source, **from_key(mode, "env:OTHER")))
        first, *lines = str(caught.value).splitlines()
        assert first == f"{source}: 4 of 4 checkpoint files cannot be used:"
        assert all("env:OTHER is not the key that it was encrypted with" in line for line in lines)
        assert SECRET not in str(caught.value)
        assert OTHER not in str(caught.value)
        assert not target.exists()
        assert not partial(target).exists()


def test_a_tampered_block_is_one_error_before_anything_is_written(target: Path, tmp_path: Path) -> None:
    source = encrypted_source(FOUR_TO_THREE, tmp_path / "src")
    [path] = (tmp_path / "src" / "rank_2").iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the last parameter's contents: no header tells
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        convert(FOUR_TO_THREE.request(target, source=source, **from_key()))
    assert str(caught.value).startswith(f"{path}: cannot be decrypted (the block at byte ")
    assert not partial(target).exists()


def test_the_key_is_missing_or_one_too_many(target: Path, tmp_path: Path) -> None:
    source = encrypted_source(FOUR_TO_THREE, tmp_path / "src")
    with pytest.raises(CatalogError, match=r"rank_0/\S+: is encrypted with AES-GCM: name its key with 'decrypt_key'"):
        convert(FOUR_TO_THREE.request(target, source=source))
    with pytest.raises(CatalogError, match=r"rank_0/\S+: is not encrypted, but env:KEY is named as its key"):
        convert(FOUR_TO_THREE.request(target, **from_key()))
    with pytest.raises(CatalogError, match="is encrypted with AES-GCM, not with SM4-CBC: name that mode"):
        convert(FOUR_TO_THREE.request(target, source=source, **from_key(EncryptionMode.SM4_CBC)))


def test_safetensors_cannot_be_encrypted(target: Path, tmp_path: Path) -> None:
    convert(FOUR_TO_THREE.request(tmp_path / "plain", format="safetensors", target_strategy=""))
    request = FOUR_TO_THREE.request(target, source=str(tmp_path / "plain"), source_strategy="", **to_key())
    with pytest.raises(PlanError, match=r"holds .safetensors files, .* MindSpore knows no encrypted ones: format="):
        convert(request)
    with pytest.raises(InputError, match=r"is not encrypted, but env:KEY is named as its key"):
        convert(FOUR_TO_THREE.request(target, source=str(tmp_path / "plain"), source_strategy="", **from_key()))


def test_what_excludes_what() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"format": "safetensors"}, "encrypt_key: MindSpore cannot encrypt .safetensors files"),
        ({"write_crc": True}, "write_crc True: an encrypted file has no CRC"),
    ]
    for options, reason in cases:
        with pytest.raises(InputError, match=reason):
            FOUR_TO_THREE.request("out", **(to_key() | options))
    for side in ("decrypt", "encrypt"):
        with pytest.raises(InputError, match=f"{side}_mode .*needs a key: name it with '{side}_key'"):
            FOUR_TO_THREE.request("out", **{f"{side}_mode": "AES-CBC"})


def test_the_key_itself_for_its_name_is_refused_and_not_repeated() -> None:
    for name in (SECRET, f"env:{SECRET}", f"block:{SECRET}"):
        with pytest.raises(InputError) as caught:
            FOUR_TO_THREE.request("out", encrypt_key=name)
        assert str(caught.value).startswith(
            "encrypt_key: must be env:NAME, file:PATH or block:NAME, which says where the key is kept; "
            "never the key itself. "
        )
        assert SECRET not in str(caught.value)


def test_early_files_without_a_tag_are_said_to_be(target: Path, tmp_path: Path) -> None:
    source = Path(encrypted_source(FOUR_TO_THREE, tmp_path / "src"))
    for path in source.glob("rank_*/*"):
        data, stripped = path.read_bytes(), b""
        while data:
            size = 48 + int.from_bytes(data[44:48], "little")
            stripped += data[:4] + data[20:size]
            data = data[size:]
        path.write_bytes(stripped)
    report = convert(FOUR_TO_THREE.request(target, source=str(source), **from_key()))
    assert read_tree(target) == FOUR_TO_THREE.want
    assert any("AES-GCM without a tag: changes to it cannot be detected" in note for note in report.notes)


# ---- resuming, mending, verifying ----


def test_a_rerun_does_only_what_is_missing(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(plan: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        if 1 in ranks:
            raise StorageError("rank 1's disk is broken")
        return transform_ranks(plan, ranks, *args, **kwargs)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(ConversionError, match="rank 1's disk is broken"):
        convert(FOUR_TO_THREE.request(target, **to_key()))
    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", transform_ranks)
    for other in (to_key(name="env:OTHER"), to_key(EncryptionMode.AES_CBC), {}):
        with pytest.raises(TargetError, match="unfinished conversion by another plan"):
            convert(FOUR_TO_THREE.request(target, **other))
    report = convert(FOUR_TO_THREE.request(target, **to_key()))
    assert outcomes(report) == ["resumed", "written", "resumed"]
    assert decrypted_tree(target, EncryptionMode.AES_GCM, tmp_path) == FOUR_TO_THREE.want


@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_target_is_found_and_mended(mode: EncryptionMode, target: Path, tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(target, **to_key(mode))
    convert(request)
    [path] = (target / "rank_1").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = verified(target, mode=mode)
    assert report.problems
    assert all(problem.startswith(f"{path}: ") and "digest" not in problem for problem in report.problems)
    assert outcomes(convert(request)) == ["resumed", "written", "resumed"]
    assert verified(target, mode=mode).problems == ()


def test_a_tag_that_was_changed_is_found(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, **to_key()))
    [path] = (target / "rank_1").iterdir()
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    [problem] = verified(target).problems
    assert problem.startswith(f"{path}: cannot be decrypted (the block at byte 0 fails its tag)")


def test_a_file_that_was_decrypted_in_place_is_found(target: Path, tmp_path: Path) -> None:
    convert(FOUR_TO_THREE.request(target, **to_key()))
    convert(FOUR_TO_THREE.request(tmp_path / "plain"))
    [path] = (target / "rank_1").iterdir()
    shutil.copyfile(tmp_path / "plain" / "rank_1" / path.name, path)
    assert verified(target).problems == (f"{path}: is not encrypted, but env:KEY is named as its key: name none",)


def test_verifying_takes_the_key(target: Path, tmp_path: Path) -> None:
    convert(FOUR_TO_THREE.request(target, **to_key(EncryptionMode.AES_CBC)))
    advice = "name its key with 'decrypt_key', and decrypt_mode='AES-CBC'"
    for name, reason in [
        ("", f"{target}: is encrypted with AES-CBC: {advice}"),
        ("env:KEY", f"{target}: is encrypted with AES-CBC, not with AES-GCM: {advice}"),
    ]:
        with pytest.raises(InputError) as caught:
            verified(target, name)
        assert str(caught.value) == reason
    with pytest.raises(InputError, match=f"{target}: cannot be decrypted: env:OTHER is not the key"):
        verified(target, "env:OTHER", EncryptionMode.AES_CBC)
    convert(FOUR_TO_THREE.request(tmp_path / "plain"))
    with pytest.raises(InputError, match="is not encrypted, but env:KEY is named as its key: name none"):
        verified(tmp_path / "plain")


def test_a_record_that_was_changed_counts_as_none(target: Path) -> None:
    request = FOUR_TO_THREE.request(target, **to_key())
    convert(request)
    record = target / ".reshard" / "records" / "rank_1.json"
    record.write_bytes(record.read_bytes()[:-1] + b"x")
    [problem] = verified(target).problems
    assert "cannot be decrypted: env:KEY is not the key that it was written with, or it was changed" in problem
    assert outcomes(convert(request)) == ["resumed", "written", "resumed"]


def test_a_manifest_that_was_changed_is_found(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, **to_key()))
    path = target / ".reshard" / "manifest.json"
    manifest = json.loads(path.read_text())
    shutil.rmtree(target / "rank_2")
    reason = f"{target}: cannot be decrypted: env:KEY is not the key that it was written with, or it was changed"
    damaged = f"{target}: not a readable manifest: its sealed fields are damaged"
    for change, message in [
        ({"ranks": manifest["ranks"][:2], "target_world_size": 2}, reason),
        ({"step": "9_9"}, reason),
        ({"sealed": "AAAA"}, damaged),
        ({"sealed": ""}, damaged),
    ]:
        path.write_bytes(as_record(manifest | change))
        with pytest.raises(InputError) as caught:
            verified(target)
        assert str(caught.value) == message
    path.write_bytes(as_record(manifest))
    [problem] = verified(target).problems
    assert "rank_2" in problem


def test_verifying_more_closely_leaves_the_manifest_readable(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, verify="none", **to_key()))
    before = json.loads((target / ".reshard" / "manifest.json").read_text())
    convert(FOUR_TO_THREE.request(target, **to_key()))
    after = json.loads((target / ".reshard" / "manifest.json").read_text())
    assert (before["verified"], after["verified"]) == ("none", "checksum")
    assert verified(target).problems == ()


def test_done_already_is_done_already(target: Path) -> None:
    request = FOUR_TO_THREE.request(target, **to_key())
    convert(request)
    assert outcomes(convert(request)) == ["resumed"] * 3


# ---- nothing plain beside them ----


def test_what_stands_beside_an_encrypted_target_says_nothing(target: Path, tmp_path: Path) -> None:
    report = convert(FOUR_TO_THREE.request(tmp_path / "plain"))
    convert(FOUR_TO_THREE.request(target, **to_key()))
    names = [name.encode() for contents in FOUR_TO_THREE.want.values() for name in contents]
    records = [json.loads(path.read_text()) for path in (tmp_path / "plain/.reshard/records").iterdir()]
    digests = [parameter["digest"].encode() for record in records for parameter in record["parameters"]]
    of_records = [rank.record_digest.encode() for rank in report.ranks]
    reason = [*names, *digests, *of_records, report.identity.encode(), SECRET.encode()]
    for path in [*target.rglob("*"), *(tmp_path / "plain").rglob("*")]:
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            if "plain" not in path.parts:
                assert not [each for each in reason if each in data], path
    assert any(name in (tmp_path / "plain/rank_0/checkpoint_0.ckpt").read_bytes() for name in names)
    assert len(digests) > 5


def test_the_unfinished_work_says_nothing_either(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        raise StorageError("no")

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(ConversionError):
        convert(FOUR_TO_THREE.request(target, **to_key()))
    names = [name.encode() for contents in FOUR_TO_THREE.want.values() for name in contents]
    for path in partial(target).rglob("*"):
        if path.is_file():
            assert not [name for name in names if name in path.read_bytes()], path


def test_nothing_plain_is_left_of_unfinished_work_that_it_takes_the_place_of(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(plan: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        if 1 in ranks:
            raise StorageError("no")
        return transform_ranks(plan, ranks, *args, **kwargs)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(ConversionError):
        convert(FOUR_TO_THREE.request(target))
    folder = partial(target) / "rank_0"
    shutil.copy(folder / "checkpoint_0.ckpt", folder / ".checkpoint_0.ckpt.0123abcd.tmp")  # as of a killed run
    with pytest.raises(ConversionError):
        convert(FOUR_TO_THREE.request(target, overwrite=True, **to_key()))
    names = [name.encode() for contents in FOUR_TO_THREE.want.values() for name in contents]
    for path in partial(target).rglob("*"):
        if path.is_file():
            assert not [name for name in names if name in path.read_bytes()], path


def test_keys_are_in_no_log_and_no_report(
    target: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    report = convert(FOUR_TO_THREE.request(target, **to_key()))
    out, err = capsys.readouterr()
    assert SECRET not in report.model_dump_json() + caplog.text + out + err


# ---- plans, scheduled conversions ----


def test_what_is_planned_counts_cipher_blocks() -> None:
    _, plain = describe_plan(FOUR_TO_THREE.request("/nowhere/out", memory_limit="64MiB", workers=2))
    _, encrypted = describe_plan(FOUR_TO_THREE.request("/nowhere/out", memory_limit="64MiB", workers=2, **to_key()))
    assert plain.buffer_bytes < encrypted.buffer_bytes <= 64 << 20


@pytest.fixture
def training(tmp_path: Path) -> Path:
    source = tmp_path / "training"
    encrypted_source(FOUR_TO_THREE, source)
    for path in source.glob("rank_*/*"):
        path.rename(path.with_name("net-1_5.ckpt"))
    return source


def latest(training: Path, target: Path, **options: object) -> LatestConversionRequest:
    strategies = {side: str(FOUR_TO_THREE.directory / f"{side[:3]}_strategy.ckpt") for side in ("src", "dst")}
    return build_options(
        LatestConversionRequest,
        source=str(training),
        target=str(target),
        source_strategy=strategies["src"],
        target_strategy=strategies["dst"],
        settle_seconds=0,
        patience_seconds=60,
        **options,
    )


def test_a_scheduled_conversion(training: Path, target: Path, tmp_path: Path) -> None:
    keys = from_key() | to_key(EncryptionMode.AES_CBC)
    assert convert_latest(latest(training, target, **keys)).outcome is LatestOutcome.CONVERTED
    assert decrypted_tree(target / "1_5", EncryptionMode.AES_CBC, tmp_path) == FOUR_TO_THREE.want
    assert convert_latest(latest(training, target, **keys)).outcome is LatestOutcome.NOTHING_NEW
    load_sources.cache_clear()
    with pytest.raises(InputError, match="plan.json.gz: is encrypted: name the key that it was written with"):
        convert_latest(latest(training, target, **from_key()))


def test_a_scheduled_conversion_without_the_key_does_not_wait_for_it(training: Path, target: Path) -> None:
    with pytest.raises(CatalogError, match="is encrypted with AES-GCM: name its key with 'decrypt_key'"):
        convert_latest(latest(training, target))


def test_a_scheduled_conversion_waits_for_a_file_that_is_still_empty(training: Path, target: Path) -> None:
    next(training.glob("rank_1/*.ckpt")).write_bytes(b"")
    found = convert_latest(latest(training, target, dry_run=True, **from_key()))
    assert found.outcome is LatestOutcome.WOULD_WAIT


def test_a_missing_key_is_no_damage(target: Path, tmp_path: Path) -> None:
    source = encrypted_source(PIPELINES, tmp_path / "src")
    with pytest.raises(InputError, match="is encrypted with AES-GCM: name its key with 'decrypt_key'"):
        convert(PIPELINES.request(target, source=source, recover=True))


def test_a_tampered_block_is_damage_that_another_rank_makes_good(target: Path, tmp_path: Path) -> None:
    strategy, source = repeated_on_two_ranks(tmp_path), tmp_path / "src"
    convert(FOUR_TO_THREE.request(source, target_strategy=strategy, **to_key()))
    path = source / "rank_0" / "checkpoint_0.ckpt"
    damage(path)
    options = {"source": str(source), "source_strategy": strategy, **from_key()}
    with pytest.raises(InputError, match=rf"{path}: cannot be decrypted \(the block at byte 0 fails its tag\)"):
        convert(FOUR_TO_THREE.request(target, **options))
    convert(FOUR_TO_THREE.request(target, recover=True, **options))
    assert read_tree(target) == FOUR_TO_THREE.want
    path.write_bytes(b"")
    convert(FOUR_TO_THREE.request(tmp_path / "again", recover=True, **options))
    assert read_tree(tmp_path / "again") == FOUR_TO_THREE.want


def test_requests_carry_names_only() -> None:
    request = FOUR_TO_THREE.request("out", **(from_key() | to_key()))
    assert ConversionRequest.model_validate_json(request.model_dump_json()) == request
    assert SECRET not in request.model_dump_json()

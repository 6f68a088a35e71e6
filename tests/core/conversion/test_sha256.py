"""The SHA-256 of a target's files, taken while they are written: whatever the layout, it is that of the stored file."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.manifest import Manifest, unseal_manifest
from reshard.core.checkpoint.self_digest import add_digest, split_digest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, VerificationError
from reshard.core.layouts.registry import TargetLayout
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.runtime.keys import EncryptionMode, Key, KeyNames, named_keys
from reshard.core.runtime.wording import size_text
from reshard.core.text.options import option
from reshard.core.verification.published import verify_target
from tests.core.layouts.universal.test_target import asked
from tests.support.checkpoints import case
from tests.support.conversions import damage, outcomes, stop_before_commit, whole_copies
from tests.support.dcp import dcp_case
from tests.support.iterations import iteration_case, iteration_request
from tests.support.joining import join_parts
from tests.support.megatron import megatron_case as dist_case
from tests.support.megatron_files import LEGACY_CASES, megatron_case
from tests.support.notes import Notes
from tests.support.runs import partial
from tests.support.sha256 import manifest_at, recorded_sha256, sha256_of
from tests.support.stage_parts import CASE, maker_of_parts

RANKS = case(7009)
Asked = Callable[[Path], ConversionRequest]


def _ranks(**options: object) -> Asked:
    return lambda path: RANKS.request(path / "out", sha256="target", **options)


def _megatron(path: Path) -> ConversionRequest:
    of_case = megatron_case(LEGACY_CASES[0])
    source = of_case.write_whole(path / "whole.safetensors")
    return of_case.request(source, path / "out", sha256="target", select="weights-only")


LAYOUTS: dict[str, Asked] = {
    "ranks": _ranks(),
    "ranks in .safetensors": _ranks(format="safetensors"),
    "ranks with a CRC behind": _ranks(write_crc=True),
    "ranks with a CRC in the header": _ranks(format="safetensors", write_crc=True),
    "ranks encrypted": _ranks(encrypt_key="env:KEY"),
    "ranks encrypted with CBC": _ranks(encrypt_key="env:KEY", encrypt_mode="AES-CBC"),
    "unified": _ranks(layout="unified", max_shard_size="1KB", target_strategy=""),
    "checkpoint2": lambda path: iteration_request(iteration_case(2).iteration, path / "out", sha256="target"),
    "torch_dist": lambda path: iteration_request(
        dist_case("dist_tp2_pp2_optimizer").source, path / "out", layout="torch_dist", sha256="target"
    ),
    "dcp": lambda path: iteration_request(
        dcp_case("fsdp_uneven").source, path / "out", layout="dcp", shards=3, sha256="target"
    ),
    "megatron": _megatron,
    "universal": lambda path: asked(path, sha256="target"),
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")


def test_every_layout_is_among_those() -> None:
    assert {name.split()[0] for name in LAYOUTS} == {str(layout) for layout in TargetLayout}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_file_has_the_sha256_of_its_stored_bytes(name: str, tmp_path: Path) -> None:
    report = convert(LAYOUTS[name](tmp_path))
    target = Path(report.target)
    assert recorded_sha256(target) == sha256_of(target)
    assert {each.file: each.sha256 for each in report.ranks}.items() <= recorded_sha256(target).items()


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    convert(RANKS.request(tmp_path / "out"))
    assert set(recorded_sha256(tmp_path / "out").values()) == {None}
    assert b"sha256" not in (tmp_path / "out/.reshard/records/rank_0.json").read_bytes()


def test_files_that_are_copies_have_that_of_their_primary(tmp_path: Path) -> None:
    strategy = whole_copies(tmp_path, 3)
    report = convert(RANKS.request(tmp_path / "out", target_strategy=strategy, sha256="target"))
    assert outcomes(report) == ["written", "copied", "copied"]
    assert recorded_sha256(tmp_path / "out") == sha256_of(tmp_path / "out")


# ---- what earlier or other runs wrote without it ----


@pytest.mark.parametrize("level", ["structure", "checksum"])
def test_a_resumed_run_reads_only_the_files_that_have_none(level: str, tmp_path: Path) -> None:
    target, notes = tmp_path / "out", Notes()
    convert(RANKS.request(target, ranks="0"))
    convert(RANKS.request(target, ranks="1", sha256="target"))
    report = convert(RANKS.request(target, sha256="target", verify=level), notes)
    assert outcomes(report) == ["resumed", "resumed", "written"]
    # a check that reads them takes it on the way
    assert ("reading 1 file that has no SHA-256 yet" in str(notes.notes)) == (level == "structure")
    assert recorded_sha256(target) == sha256_of(target)
    assert not verify_target(str(target), report.verified).problems


def test_the_run_that_commits_completes_what_another_one_asked_for(tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(RANKS.request(target, ranks="0", sha256="target"))
    convert(RANKS.request(target, ranks="1-2"))
    assert recorded_sha256(target) == sha256_of(target)


@pytest.mark.parametrize("options", [{}, {"encrypt_key": "env:KEY"}, {"layout": "unified", "target_strategy": ""}])
def test_a_finished_target_gets_it_when_the_command_is_run_again(options: dict[str, object], tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(RANKS.request(target, **options))
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    report = convert(RANKS.request(target, sha256="target", **options))
    assert set(outcomes(report)) == {"resumed"}
    assert recorded_sha256(target) == sha256_of(target)
    changed = {path.parent.name for path, data in before.items() if path.read_bytes() != data}
    assert changed == {".reshard", "records"}
    again = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    convert(RANKS.request(target, sha256="target", **options))
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == again


def test_that_of_a_damaged_file_is_not_recorded(tmp_path: Path) -> None:
    """Although a check of structure does not find the damage."""
    target = tmp_path / "out"
    convert(RANKS.request(target, ranks="0", verify="structure"))
    damage(next((partial(target) / "rank_0").iterdir()))
    with pytest.raises(VerificationError, match=r"rank_0/.*: parameter .*: its bytes are not those that were written"):
        convert(RANKS.request(target, sha256="target", verify="structure"))
    assert outcomes(convert(RANKS.request(target, sha256="target", verify="structure"))) == [
        "written",
        "resumed",
        "resumed",
    ]
    assert recorded_sha256(target) == sha256_of(target)


def test_that_of_a_damaged_file_of_a_finished_target_is_not_recorded(tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(RANKS.request(target, verify="structure"))
    damage(target / "rank_1/checkpoint_1.ckpt")
    before = (target / ".reshard/manifest.json").read_bytes()
    with pytest.raises(VerificationError, match=r"rank_1/.*: parameter .*: its bytes are not those that were written"):
        convert(RANKS.request(target, sha256="target", verify="structure"))
    assert (target / ".reshard/manifest.json").read_bytes() == before
    convert(RANKS.request(target, sha256="target"))  # finds and mends it
    assert recorded_sha256(target) == sha256_of(target)


def test_a_signed_target_is_left_as_it_is(tmp_path: Path) -> None:
    target, notes = tmp_path / "out", Notes()
    convert(RANKS.request(target))
    (target / "model.sig").write_text("{}")
    convert(RANKS.request(target, sha256="target"), notes)
    assert f"which would break the signature: {option('sign')} adds it and signs again" in str(notes.notes)
    assert set(recorded_sha256(target).values()) == {None}


def test_a_mended_file_gets_it_as_the_others_have_it(tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(RANKS.request(target, sha256="target"))
    damage(next((target / "rank_1").iterdir()))
    assert outcomes(convert(RANKS.request(target))) == ["resumed", "written", "resumed"]
    assert recorded_sha256(target) == sha256_of(target)


# ---- reshard verify ----


def with_other_sha256(target: Path, find: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes a SHA-256 in the manifest."""
    path = target / ".reshard/manifest.json"
    content, _ = split_digest(path.read_bytes())
    document = json.loads(content)
    find(document)["sha256"] = 64 * "0"
    path.write_bytes(add_digest(json.dumps(document, indent=1).encode()))


@pytest.mark.parametrize("name", ["ranks", "ranks encrypted", "universal"])
def test_verify_compares_the_sha256_of_all_files(name: str, tmp_path: Path) -> None:
    target = convert(LAYOUTS[name](tmp_path)).target
    with named_keys(KeyNames(target="env:KEY" if "encrypted" in name else "")):
        whole = verify_target(target, VerifyLevel.CHECKSUM)
        assert (whole.problems, whole.hashed) == ((), len(manifest_at(target).ranks))
        assert f"the SHA-256 of {whole.hashed} files compared: all files intact" in str(whole)


def test_verify_names_a_file_with_another_sha256(tmp_path: Path) -> None:
    """As one can leave it who has all digests, but cannot sign the manifest."""
    target = convert(LAYOUTS["ranks"](tmp_path)).target
    with_other_sha256(Path(target), lambda manifest: manifest["ranks"][0])
    stale, problem = verify_target(target, VerifyLevel.CHECKSUM).problems
    assert stale == "rank_0: its record is not the one that the manifest was written for"
    file = Path(target) / manifest_at(target).ranks[0].file
    assert re.fullmatch(f"{file}: its SHA-256 is [0-9a-f]{{64}}, not {64 * '0'}, which was recorded", problem)
    assert verify_target(target, VerifyLevel.STRUCTURE).problems == (stale,)


def test_verify_names_a_record_with_another_sha256_than_the_manifest(tmp_path: Path) -> None:
    target = Path(convert(RANKS.request(tmp_path / "out", sha256="target")).target)
    path = target / ".reshard/records/rank_1.json"
    record = json.loads(split_digest(path.read_bytes())[0]) | {"sha256": 64 * "0"}
    path.write_bytes(add_digest(json.dumps(record).encode() + b"\n"))
    problems = verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert problems == ("rank_1: its record is not the one that the manifest was written for",)


def test_a_record_that_got_its_sha256_before_the_run_was_killed_is_right(tmp_path: Path) -> None:
    """The manifest is written last."""
    target = tmp_path / "out"
    convert(RANKS.request(target, sha256="target"))
    record, before = target / ".reshard/records/rank_1.json", manifest_at(target)
    convert(RANKS.request(target, overwrite=True, format="safetensors"))
    convert(RANKS.request(target, overwrite=True))
    without = split_digest(record.read_bytes())[0]
    sha256 = before.ranks[1].sha256
    for recorded, problems in (sha256, 0), (64 * "0", 1):
        record.write_bytes(add_digest(json.dumps(json.loads(without) | {"sha256": recorded}).encode() + b"\n"))
        found = verify_target(str(target), VerifyLevel.CHECKSUM).problems
        assert len(found) == problems
        assert all(each.endswith(f"its SHA-256 is {sha256}, not {recorded}, which was recorded") for each in found)


def test_verify_compares_that_of_documents(tmp_path: Path) -> None:
    target = Path(convert(LAYOUTS["unified"](tmp_path)).target)
    with_other_sha256(target, lambda manifest: manifest["index"])
    problems = verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert [problem.partition(": ")[2] for problem in problems] == [
        "is not the index that was written: its SHA-256 is another one"
    ]


# ---- the source ----


def source_sha256(manifest: Manifest) -> dict[str, str | None]:
    return {str(Path(each.url).relative_to(manifest.source)): each.sha256 for each in manifest.source_files}


def sha256_of_source(directory: Path) -> dict[str, str | None]:
    return {name: sha256 for name, sha256 in sha256_of(directory).items() if not name.endswith("strategy.ckpt")}


@pytest.mark.parametrize("later", [False, True])
def test_source_files_are_read_whole_for_theirs(later: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if later:
        convert(RANKS.request(target))
    report = convert(RANKS.request(target, sha256="source"))
    manifest = manifest_at(target)
    assert report.source_files_bytes == sum(each.size_bytes for each in manifest.source_files)
    assert later or f"{size_text(report.source_files_bytes)} more for SHA-256" in str(report)
    assert source_sha256(manifest) == sha256_of_source(Path(manifest.source))
    assert recorded_sha256(target) == sha256_of(target)
    assert all(each.size_bytes == Path(each.url).stat().st_size and each.version for each in manifest.source_files)
    assert convert(RANKS.request(target, sha256="source")).source_files_bytes == 0


def test_source_files_that_are_read_as_one_have_one_each(tmp_path: Path) -> None:
    make, joined, strategy = maker_of_parts(tmp_path), tmp_path / "joined", str(CASE / "dst_strategy.ckpt")
    join_parts([make(stage, sha256="target") for stage in (0, 1)], str(joined))
    convert(
        build_request(
            source=str(joined),
            target=str(tmp_path / "out"),
            source_strategy=strategy,
            target_strategy=strategy,
            format="ckpt",
            sha256="source",
        )
    )
    assert source_sha256(manifest_at(tmp_path / "out")) == sha256_of(joined)


def test_an_encrypted_target_does_not_name_source_files(tmp_path: Path) -> None:
    """They may be named like parameters."""
    convert(RANKS.request(tmp_path / "out", sha256="source", encrypt_key="env:KEY"))
    manifest = manifest_at(tmp_path / "out")
    assert manifest.source_files == ()
    key = Key(b"a secret of 16 b", EncryptionMode.AES_GCM)
    opened = unseal_manifest(manifest, key, "x")
    assert source_sha256(opened) == sha256_of_source(Path(manifest.source))


def test_a_source_file_that_changes_before_it_is_hashed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "src", tmp_path / "out"
    shutil.copytree(RANKS.directory / "src", source)
    request = RANKS.request(target, source=str(source), sha256="source")
    stop_before_commit(monkeypatch, RANKS.request(target, source=str(source)))
    monkeypatch.setattr(
        "reshard.core.conversion.driver._do_ranks", lambda *_: damage(next(source.glob("rank_1/*.ckpt")))
    )
    with pytest.raises(CatalogError, match="rank_1: .* changed while it was being read"):
        convert(request)
    assert not target.exists()

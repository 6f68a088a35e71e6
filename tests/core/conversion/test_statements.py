"""The statements that conversions write, and what becomes of them on reruns."""

import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.runtime.invocation import invoked_by
from reshard.core.signing.dsse import parse_envelope
from reshard.core.signing.signer import Signer
from reshard.core.signing.verifier import parse_verifier
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.families import Family, exported
from tests.support.iterations import iteration_case, iteration_request
from tests.support.sha256 import manifest_at, sha256_of
from tests.support.signing import kept, new_key, private_pem, public_pem

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def statement(target: Path, name: str) -> dict[str, Any]:
    return json.loads((target / ".reshard" / f"{name}.intoto.json").read_text())


def dependencies(target: Path) -> dict[str, dict[str, Any]]:
    found = statement(target, "provenance")["predicate"]["buildDefinition"]["resolvedDependencies"]
    return {each["name"]: each for each in found}


def digest_of(path: Path) -> dict[str, str]:
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_both_statements_are_about_all_files_and_listed_in_the_manifest(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, sha256="target", layout="unified", target_strategy="", max_shard_size="1KB"))
    files = sha256_of(target)
    assert len(files) > 2
    for name in ("provenance", "equivalence"):
        assert {each["name"]: each["digest"]["sha256"] for each in statement(target, name)["subject"]} == files
    listed = {each.file: each.sha256 for each in manifest_at(target).statements}
    assert listed == {
        f".reshard/{name}.intoto.json": digest_of(target / ".reshard" / f"{name}.intoto.json")["sha256"]
        for name in ("provenance", "equivalence")
    }


def test_without_sha256_there_is_no_statement(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    assert not list((target / ".reshard").glob("*.intoto.json"))
    assert manifest_at(target).statements == ()


def test_documents_have_their_digests_and_source_files_only_if_they_were_read_whole(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, sha256="target"))
    found = dependencies(target)
    for name, role in (("src_strategy.ckpt", "source_strategy"), ("dst_strategy.ckpt", "target_strategy")):
        assert found[name]["digest"] == digest_of(FOUR_TO_THREE.directory / name)
        assert (found[name]["annotations"]["role"], found[name]["annotations"]["read"]) == (role, "whole")
    sources = {name: each for name, each in found.items() if each["annotations"]["role"] == "source"}
    assert len(sources) == 4
    for name, each in sources.items():
        path = FOUR_TO_THREE.directory / "src" / name
        assert each["uri"] == path.resolve().as_uri()
        assert each["annotations"]["sizeBytes"] == path.stat().st_size
        assert each["annotations"]["read"] == "headers and selected values"
        assert "digest" not in each


def test_source_files_that_were_read_whole_have_their_digests(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, sha256="source"))
    sources = {n: each for n, each in dependencies(target).items() if each["annotations"]["role"] == "source"}
    for name, each in sources.items():
        assert each["digest"] == digest_of(FOUR_TO_THREE.directory / "src" / name)
        assert each["annotations"]["read"] == "whole"


def test_presets_and_documents_of_options_are_named(target: Path, tmp_path: Path) -> None:
    changes = tmp_path / "changes.yaml"
    changes.write_text("exclude: [adam*]\n")
    convert(FOUR_TO_THREE.request(target, sha256="target", changes=str(changes)))
    assert dependencies(target)["changes.yaml"]["digest"] == digest_of(changes)
    assert dependencies(target)["changes.yaml"]["annotations"]["role"] == "changes"
    declared = statement(target, "equivalence")["predicate"]["declared"]
    assert declared["changes"] == {"exclude": ["adam*"]}
    assert declared["leftOut"]["excluded"] != []


def test_compared_values_have_the_fingerprint_of_both_sides(target: Path) -> None:
    report = convert(FOUR_TO_THREE.request(target, sha256="target", verify="content"))
    predicate = statement(target, "equivalence")["predicate"]
    assert predicate["source"]["fingerprint"] == predicate["target"]["fingerprint"] == report.fingerprint
    assert (predicate["valuesCompared"], predicate["parametersCompared"]) == (True, report.compared)


def test_the_flow_run_is_in_the_invocation(target: Path) -> None:
    with invoked_by("5c2e-77"):
        report = convert(FOUR_TO_THREE.request(target, sha256="target"))
    metadata = statement(target, "provenance")["predicate"]["runDetails"]["metadata"]
    assert metadata["invocationId"] == f"{report.identity}/5c2e-77"


def test_an_encrypted_target_names_neither_source_files_nor_parameters(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    request = FOUR_TO_THREE.request(target, sha256="source", encrypt_key="env:KEY", verify="content", exclude=["adam*"])
    convert(request)
    for name in ("provenance", "equivalence"):
        text = (target / ".reshard" / f"{name}.intoto.json").read_text()
        assert "layers." not in text
        assert "adam" not in text
    found = dependencies(target)
    assert "digest" not in found["source"]
    predicate = statement(target, "equivalence")["predicate"]
    assert (predicate["withheld"], predicate["target"]["fingerprint"]) == (True, None)


def test_a_rerun_adds_statements_to_a_finished_target(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    files = sha256_of(target)
    convert(FOUR_TO_THREE.request(target, sha256="target"))
    assert {each["name"]: each["digest"]["sha256"] for each in statement(target, "provenance")["subject"]} == files
    assert not verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True).problems
    version = statement(target, "provenance")["predicate"]["runDetails"]["builder"]["version"]
    assert version.keys() == {"reshard"}  # what this run ran on says nothing of the one that made the target


def test_a_rerun_of_a_finished_target_leaves_its_statements_alone(target: Path) -> None:
    request = FOUR_TO_THREE.request(target, sha256="target")
    convert(request)
    before = {path: path.read_bytes() for path in (target / ".reshard").glob("*.json")}
    convert(request)
    assert {path: path.read_bytes() for path in (target / ".reshard").glob("*.json")} == before


def test_values_that_are_compared_later_are_in_the_statement(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, sha256="target"))
    provenance = statement(target, "provenance")
    report = convert(FOUR_TO_THREE.request(target, sha256="target", verify="content"))
    predicate = statement(target, "equivalence")["predicate"]
    assert (predicate["level"], predicate["target"]["fingerprint"]) == ("content", report.fingerprint)
    assert statement(target, "provenance") == provenance
    assert not verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True).problems


@pytest.mark.parametrize("how", ["changed", "lost"])
def test_a_damaged_statement_is_made_again(target: Path, how: str) -> None:
    request = FOUR_TO_THREE.request(target, sha256="target")
    convert(request)
    path = target / ".reshard" / "equivalence.intoto.json"
    before = path.read_bytes()
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(before.replace(b'"checksum"', b'"content"'))
    assert verify_target(str(target), VerifyLevel.STRUCTURE).problems
    convert(request)
    assert not verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True).problems
    assert path.read_bytes() == before


def test_mending_a_target_without_sha256_keeps_no_statement_about_other_files(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, sha256="target"))
    damaged = target / "rank_1" / "checkpoint_1.ckpt"
    os.chmod(damaged, 0o600)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    convert(FOUR_TO_THREE.request(target))
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    if manifest_at(target).statements:
        assert not verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True).problems


def test_statements_are_signed_when_the_target_is(target: Path, tmp_path: Path) -> None:
    convert(FOUR_TO_THREE.request(target, sha256="target"))
    bare = {name: (target / ".reshard" / f"{name}.intoto.json").read_bytes() for name in ("provenance", "equivalence")}
    for number in range(2):
        key = new_key()
        name = kept(tmp_path / f"key{number}.pem", private_pem(key))
        convert(FOUR_TO_THREE.request(target, sign=name, overwrite=bool(number)))
        verifier = parse_verifier(public_pem(key), "trusted.pub")
        report = verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True, signed_by=verifier)
        assert report.problems == ()
        for each, content in bare.items():
            path = target / ".reshard" / f"{each}.intoto.json"
            assert parse_envelope(path.read_bytes(), "x").payload == content
        signed = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
        convert(FOUR_TO_THREE.request(target, sign=name))
        assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == signed


def test_what_is_signed_later_is_signed_once(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed: list[bytes] = []
    sign = Signer.sign

    def counted(signer: Signer, data: bytes) -> bytes:
        signed.append(data)
        return sign(signer, data)

    convert(FOUR_TO_THREE.request(target, sha256="target"))
    monkeypatch.setattr(Signer, "sign", counted)
    convert(FOUR_TO_THREE.request(target, sign=kept(tmp_path / "key.pem", private_pem(new_key()))))
    assert len(signed) == len(set(signed)) == 3, "two statements, and the files"


def test_files_that_are_read_as_one_are_named_one_by_one(tmp_path: Path) -> None:
    request = iteration_request(iteration_case(2).iteration, tmp_path / "out", sha256="target")
    found = dependencies(Path(convert(request).target))
    files = [each for name, each in found.items() if name.endswith(".safetensors")]
    assert len(files) == len(list(Path(request.source).glob("*.safetensors")))
    assert all("version" in each["annotations"] for each in files)


def test_the_packages_preset_and_the_config_are_named_by_their_digests(tmp_path: Path) -> None:
    family = Family("qwen3")
    request, like = exported(family, tmp_path / "out", sha256="target", like=str(family.hf)), family.hf
    convert(request)
    found = dependencies(tmp_path / "out")
    shipped = files("reshard.core.changes") / "presets" / f"{request.preset}.yaml"
    assert found[f"{request.preset}.yaml"] == {
        "name": f"{request.preset}.yaml",
        "digest": {"sha256": hashlib.sha256(shipped.read_bytes()).hexdigest()},
        "annotations": {"role": "preset", "sizeBytes": len(shipped.read_bytes()), "read": "whole"},
    }
    assert found["config.json"]["digest"] == digest_of(like / "config.json")
    assert found["config.json"]["annotations"]["role"] == "like"
    assert statement(tmp_path / "out", "equivalence")["predicate"]["preset"] == request.preset
    assert not verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM, provenance=True).problems

"""`reshard attest`, and `reshard.attest`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reshard as library
from reshard.core.conversion.convert import convert
from reshard.core.custody.attestation import Attestation
from tests.support.checkpoints import case
from tests.support.signing import authority, kept, new_key, owner, private_pem, public_pem

KEY = new_key()


def converted(target: Path, **options: Any) -> Path:
    convert(case(7010).request(target, **{"sha256": "target", **options}))
    return target


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    (tmp_path / "release.pub").write_bytes(public_pem(KEY))
    return converted(tmp_path / "out", sign=kept(tmp_path / "key.pem", private_pem(KEY)), verify="content")


def facts(text: str) -> dict[str, str]:
    """The names and texts before the table."""
    lines = text.partition("\n\n")[0].splitlines()
    return {line[:20].strip(): line[20:].strip() for line in lines}


def test_what_was_done_is_shown(reshard: Callable[..., Any], tmp_path: Path) -> None:
    target = converted(tmp_path / "out", cast=["*=bfloat16"], exclude=["adam*"])
    shown = reshard("attest", target)
    assert (shown.code, shown.err) == (0, "")
    found = facts(shown.out)
    assert found["files"] == "2 files, each with its SHA-256"
    assert found["values"] == "not compared with the source's; files checked: checksum"
    assert found["options"] == "cast: *=bfloat16, exclude: adam*, sha256: target"
    assert found["changes"] == "cast, exclude"
    assert found["provenance signed"] == found["equivalence signed"] == "no"
    assert found["made by"].startswith("reshard ")
    assert "\nsrc_strategy.ckpt" in shown.out


def test_compared_values_are_said_to_be_equal(reshard: Callable[..., Any], signed: Path) -> None:
    found = facts(reshard("attest", signed).out)
    assert found["values"].startswith("all values of ")
    assert found["values"].endswith(" compared, and equal to the source's")
    assert found["provenance signed"].endswith("; not checked")


def test_signatures_are_checked(reshard: Callable[..., Any], signed: Path, tmp_path: Path) -> None:
    shown = reshard("attest", signed, "--signed-by", tmp_path / "release.pub")
    assert facts(shown.out)["provenance signed"].startswith("by the key with SHA-256 ")
    (tmp_path / "other.pub").write_bytes(public_pem(new_key()))
    for arguments in ([], ["--json"], ["--statement", "provenance"]):
        shown = reshard("attest", signed, "--signed-by", tmp_path / "other.pub", *arguments)
        assert (shown.code, shown.out) == (1, "")
        assert f"{signed}/.reshard/provenance.intoto.json: signed by another key" in shown.err


def test_a_certificate_confirms_statements_by_the_signature_of_the_files(
    reshard: Callable[..., Any], tmp_path: Path
) -> None:
    root = authority()
    release = owner(root)
    (tmp_path / "chain.pem").write_bytes(release.chain_pem)
    (tmp_path / "root.pem").write_bytes(root.pem)
    key = kept(tmp_path / "key.pem", private_pem(release.key))
    target = converted(tmp_path / "out", sign=key, sign_certificate=str(tmp_path / "chain.pem"))
    shown = reshard("attest", target, "--signed-by", tmp_path / "root.pem")
    assert facts(shown.out)["equivalence signed"].startswith("by CN=release, the key with SHA-256 ")
    (target / "model.sig").unlink()
    shown = reshard("attest", target, "--signed-by", tmp_path / "root.pem")
    assert shown.code == 1
    assert "but no certificate, and there is no " in shown.err


def test_a_bare_statement_is_refused_where_a_signature_is_asked_for(
    reshard: Callable[..., Any], tmp_path: Path
) -> None:
    target = converted(tmp_path / "out")
    (tmp_path / "release.pub").write_bytes(public_pem(KEY))
    shown = reshard("attest", target, "--signed-by", tmp_path / "release.pub")
    assert shown.code == 1
    assert shown.err.endswith("/.reshard/provenance.intoto.json: is not signed\n")


@pytest.mark.parametrize("name", ["provenance", "equivalence"])
def test_a_statement_is_printed_as_it_is(reshard: Callable[..., Any], tmp_path: Path, name: str) -> None:
    target = converted(tmp_path / "out")
    assert reshard("attest", target, "--statement", name).out == (target / f".reshard/{name}.intoto.json").read_text()


def test_the_statement_in_an_envelope_is_printed_without_it(reshard: Callable[..., Any], signed: Path) -> None:
    document = json.loads(reshard("attest", signed, "--statement", "equivalence").out)
    assert document["predicate"]["valuesCompared"] is True


def test_json_has_both_statements(reshard: Callable[..., Any], signed: Path) -> None:
    shown = reshard("attest", signed, "--json")
    assert set(shown.json) == set(Attestation.model_fields)
    assert shown.json["provenance"]["predicateType"] == "https://slsa.dev/provenance/v1"
    assert shown.json["equivalence"]["predicate"]["level"] == "content"
    assert [each["statement"] for each in shown.json["signatures"]] == [
        "provenance.intoto.json",
        "equivalence.intoto.json",
    ]


def test_the_function_does_the_same(reshard: Callable[..., Any], signed: Path, tmp_path: Path) -> None:
    found = library.attest(signed, signed_by=tmp_path / "release.pub")
    assert found.to_dict() == reshard("attest", signed, "--signed-by", tmp_path / "release.pub", "--json").json
    assert "provenance signed" in str(found)


def test_a_target_without_statements_is_refused(reshard: Callable[..., Any], tmp_path: Path) -> None:
    target = converted(tmp_path / "out", sha256="none")
    shown = reshard("attest", target)
    assert shown.code == 2
    says = "has no statements about it; the same conversion with --sha256 target adds them, with --sign if it is signed"
    assert shown.err == f"reshard: error: {target}: {says}\n"


def test_control_characters_of_strangers_are_escaped(reshard: Callable[..., Any], tmp_path: Path) -> None:
    source = tmp_path / "a\x1b[31mb"
    source.symlink_to(case(7010).directory / "src")
    target = converted(tmp_path / "out", source=str(source))
    assert "\x1b" not in reshard("attest", target).out
    assert "\x1b" not in reshard("attest", target, "--statement", "provenance").out


def test_verify_compares_statements_with_the_target(reshard: Callable[..., Any], tmp_path: Path) -> None:
    target = converted(tmp_path / "out")
    shown = reshard("verify", target, "--provenance")
    assert shown.code == 0
    assert shown.out.endswith(": all files intact; its statements agree\n")
    (target / ".reshard/provenance.intoto.json").unlink()
    shown = reshard("verify", target, "--provenance")
    assert shown.code == 1
    assert f"{target}/.reshard/provenance.intoto.json: " in shown.out

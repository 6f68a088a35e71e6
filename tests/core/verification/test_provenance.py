"""`verify --provenance`: every disagreement of statements with manifest, source and key is named."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from reshard.core.checkpoint.self_digest import add_digest, split_digest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.custody.provenance_checks import check_provenance
from reshard.core.request.conversion import build_request
from reshard.core.signing.dsse import dump_envelope, parse_envelope, sign_envelope
from reshard.core.signing.signer import load_signer
from reshard.core.signing.verifier import parse_verifier
from reshard.core.storage.urls import parse_url
from reshard.core.verification.published import verify_target
from reshard.core.verification.report import VerificationReport
from tests.support.checkpoints import case
from tests.support.sha256 import manifest_at
from tests.support.signing import kept, new_key, private_pem, public_pem

PROVENANCE, EQUIVALENCE = "provenance.intoto.json", "equivalence.intoto.json"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source of its own: it is changed."""
    shutil.copytree(case(7009).directory, tmp_path / "case")
    return tmp_path / "case" / "src"


@pytest.fixture
def target(tmp_path: Path, source: Path) -> Path:
    return converted(tmp_path / "out", source)


def converted(target: Path, source: Path, **options: object) -> Path:
    given: dict[str, object] = {"sha256": "target", "verify": "content", "source": str(source)} | options
    convert(case(7009).request(target, **given))
    return target


def verified(target: Path) -> VerificationReport:
    return verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True)


def replace_statement(target: Path, name: str, data: bytes) -> None:
    """Replace a statement, and what the manifest says of it, as somebody does who knows how."""
    (target / ".reshard" / name).write_bytes(data)

    def change(manifest: dict[str, Any]) -> None:
        for each in manifest["statements"]:
            if each["file"].endswith(name):
                each |= {"size_bytes": len(data), "digest": xxhash.xxh3_128_hexdigest(data)}
                each["sha256"] = hashlib.sha256(data).hexdigest()

    change_manifest(target, change)


def change_manifest(target: Path, change: Change) -> None:
    path = target / ".reshard" / "manifest.json"
    document = json.loads(split_digest(path.read_bytes())[0])
    change(document)
    path.write_bytes(add_digest(json.dumps(document, indent=1).encode()))


def change_statement(target: Path, name: str, change: Change) -> None:
    document = json.loads((target / ".reshard" / name).read_text())
    change(document)
    replace_statement(target, name, json.dumps(document).encode())


def of(part: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def found(document: dict[str, Any]) -> dict[str, Any]:
        for key in part.split("."):
            document = document[key]
        return document

    return found


DEFINITION, RUN = of("predicate.buildDefinition"), of("predicate.runDetails")
PREDICATE = of("predicate")


def test_statements_of_a_conversion_agree(target: Path) -> None:
    assert verified(target).problems == ()
    assert verified(target).notes == ()


def test_statements_of_predecessors_belong_to_the_target(tmp_path: Path, target: Path) -> None:
    again = tmp_path / "again"
    convert(build_request(source=str(target), target=str(again), sha256="target"))
    assert (again / ".reshard" / "predecessors" / "1" / PROVENANCE).exists()
    assert (verified(again).problems, verified(again).notes) == ((), ())
    shutil.rmtree(target)
    report = verified(again)
    assert report.problems == ()
    assert "gone, and not checked" in " ".join(report.notes)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["subject"].pop(), "is not about rank_2/checkpoint_2.ckpt, which the manifest lists"),
        (lambda d: d["subject"].append(d["subject"][0]), "names rank_0/checkpoint_0.ckpt twice"),
        (lambda d: d["subject"][0].update(name="../x"), "is about ../x, which the manifest does not list"),
        (
            lambda d: d["subject"][0].update(digest={"sha256": "0" * 64}),
            f"the SHA-256 of rank_0/checkpoint_0.ckpt is {'0' * 64}, the manifest says ",
        ),
        (lambda d: d["subject"][0].update(digest={"sha256": "0"}), "not a readable statement: subject.0.digest.sha256"),
        (lambda d: d.update(predicateType="x"), "not a readable statement: predicateType"),
        (
            lambda d: DEFINITION(d)["internalParameters"].update(identity="0"),
            "internalParameters.identity is 0, the manifest says ",
        ),
        (
            lambda d: DEFINITION(d)["internalParameters"].update(writer="reshard 9"),
            "internalParameters.writer is reshard 9, the manifest says reshard ",
        ),
        (lambda d: DEFINITION(d)["internalParameters"].update(format="x"), "internalParameters.format is x"),
        (lambda d: DEFINITION(d)["internalParameters"].update(layout="x"), "internalParameters.layout is x"),
        (lambda d: DEFINITION(d)["internalParameters"].update(withheld=True), "internalParameters.withheld is True"),
        (lambda d: DEFINITION(d).update(buildType="x"), "buildType: Input should be 'urn:reshard:conversion:v1'"),
        (lambda d: RUN(d)["builder"]["version"].update(reshard="9"), "builder.version.reshard is 9"),
        (lambda d: RUN(d)["metadata"].update(invocationId="0/1"), "metadata.invocationId is 0, the manifest says "),
        (lambda d: RUN(d)["metadata"].update(startedOn="2001-01-01T00:00:00Z"), "metadata.startedOn is 2001"),
        (lambda d: RUN(d)["metadata"].update(finishedOn="2001-01-01T00:00:00Z"), "metadata.finishedOn is 2001"),
    ],
)
def test_what_provenance_says_otherwise_is_named(target: Path, change: Change, problem: str) -> None:
    change_statement(target, PROVENANCE, change)
    found = verified(target).problems[0]
    assert found.startswith(f"{target}/.reshard/{PROVENANCE}: ")
    assert problem in found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["subject"].pop(), "is not about rank_2/checkpoint_2.ckpt"),
        (lambda d: PREDICATE(d).update(identity="0"), "identity is 0, the manifest says "),
        (
            lambda d: PREDICATE(d)["source"].update(uri="file:///x"),
            "source.uri is file:///x, the manifest says file:///",
        ),
        (lambda d: PREDICATE(d)["source"].update(step="9_9"), "source.step is 9_9, the manifest says nothing"),
        (lambda d: PREDICATE(d)["source"].update(ranks=5), "source.ranks is 5, the manifest says 4"),
        (lambda d: PREDICATE(d)["target"].update(ranks=5), "target.ranks is 5, the manifest says 3"),
        (lambda d: PREDICATE(d)["target"].update(layout="dcp"), "target.layout is dcp, the manifest says ranks"),
        (lambda d: PREDICATE(d)["target"].update(format="x"), "target.format is x, the manifest says ckpt"),
        (lambda d: PREDICATE(d)["target"].update(fingerprint="0" * 32), f"target.fingerprint is {'0' * 32}, the manif"),
        (lambda d: PREDICATE(d)["source"].update(fingerprint="0" * 32), f"source.fingerprint is {'0' * 32}, the manif"),
        (lambda d: PREDICATE(d)["target"].update(fingerprint=None), "target.fingerprint is missing"),
        (lambda d: PREDICATE(d).update(valuesCompared=False), "valuesCompared is False, with level content"),
        (lambda d: PREDICATE(d).update(withheld=True), "withheld is True, the manifest says False"),
        (lambda d: PREDICATE(d).update(declared=None), "declared is withheld, the manifest says given"),
        (
            lambda d: PREDICATE(d)["declared"].update(changes={"exclude": ["a"]}),
            "declared.changes is {'exclude': ['a']}, the manifest says {}",
        ),
        (lambda d: PREDICATE(d)["declared"].update(notes=["x"]), "declared.notes is ('x',), the manifest says "),
        (
            lambda d: PREDICATE(d)["declared"]["leftOut"].update(dropped=["w"]),
            "declared.leftOut.dropped is ('w',), the manifest says ()",
        ),
    ],
)
def test_what_equivalence_says_otherwise_is_named(target: Path, change: Change, problem: str) -> None:
    change_statement(target, EQUIVALENCE, change)
    found = verified(target).problems
    assert found[0].startswith(f"{target}/.reshard/{EQUIVALENCE}: ")
    assert problem in " ".join(found)


def test_a_level_that_was_not_reached_is_named(tmp_path: Path, source: Path) -> None:
    target = converted(tmp_path / "out", source, verify="checksum")

    def claim(document: dict[str, Any]) -> None:
        PREDICATE(document).update(level="content", valuesCompared=True)
        PREDICATE(document)["target"].update(fingerprint="0" * 32)

    change_statement(target, EQUIVALENCE, claim)
    problems = " ".join(verified(target).problems)
    assert "level is content, the manifest says checksum" in problems
    assert f"target.fingerprint is {'0' * 32}, the manifest says nothing" in problems


def test_a_statement_that_was_changed_alone_is_named_without_the_option(target: Path) -> None:
    path = target / ".reshard" / PROVENANCE
    path.write_bytes(path.read_bytes().replace(b'"python"', b'"pithon"'))
    [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert problem == f"{path}: is not the statement that was written"


def test_a_statement_that_is_not_listed_is_named(target: Path) -> None:
    change_manifest(target, lambda manifest: manifest["statements"].pop(0))
    problems = verified(target).problems
    path = target / ".reshard" / PROVENANCE
    assert f"{path}: does not belong to this checkpoint's records" in problems
    assert f"{path}: is missing: the manifest lists no such statement" in problems


def test_statements_elsewhere_are_refused(target: Path) -> None:
    change_manifest(target, lambda manifest: manifest["statements"][0].update(file="../../passwd"))
    with pytest.raises(Exception, match="lists the statement '../../passwd', which no conversion writes"):
        verified(target)


def test_a_target_without_statements_fails(tmp_path: Path, source: Path) -> None:
    target = converted(tmp_path / "out", source, sha256="none")
    assert [problem.partition(": ")[2] for problem in verified(target).problems] == [
        "is missing: the manifest lists no such statement"
    ] * 2


def test_a_source_that_is_gone_is_said(target: Path, source: Path) -> None:
    shutil.rmtree(source)
    report = verified(target)
    assert report.problems == ()
    [note] = report.notes
    assert note.startswith("4 files that it was made from: gone, and not checked (file:///")


def test_a_source_file_that_is_missing_or_changed_is_named(target: Path, source: Path) -> None:
    files = [source / f"rank_{rank}" / f"checkpoint_{rank}.ckpt" for rank in range(4)]
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes() + b"x")
    os.utime(files[2], ns=(5, 5))
    problems = verified(target).problems
    size = files[1].stat().st_size
    assert f"{files[1]}: has {size} bytes, and had {size - 1} when it was converted" in problems
    assert any(
        each.startswith(f"{files[2]}: was changed since it was converted, or copied: it was ") for each in problems
    )
    assert f"{files[0].as_uri()}: is missing, and others of the source are there" in problems


def test_a_source_file_with_a_digest_is_compared_byte_by_byte(tmp_path: Path, source: Path) -> None:
    target = converted(tmp_path / "out", source, sha256="source")
    file = source / "rank_3" / "checkpoint_3.ckpt"
    data, times = bytearray(file.read_bytes()), file.stat()
    file.write_bytes(data)  # the same bytes at another time
    assert verified(target).problems == ()
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    [problem] = verified(target).problems
    assert problem.startswith(f"{file}: its SHA-256 is {hashlib.sha256(data).hexdigest()}, and was ")


def test_digests_of_source_files_agree_with_the_manifest(tmp_path: Path, source: Path) -> None:
    target = converted(tmp_path / "out", source, sha256="source")

    def change(document: dict[str, Any]) -> None:
        first, second, *_ = DEFINITION(document)["resolvedDependencies"]
        first["digest"]["sha256"] = "0" * 64
        del second["digest"]

    change_statement(target, PROVENANCE, change)
    problems, path = verified(target).problems, target / ".reshard" / PROVENANCE
    files = [(source / f"rank_{rank}" / f"checkpoint_{rank}.ckpt").as_uri() for rank in range(2)]
    assert problems[0].startswith(f"{path}: the SHA-256 of {files[0]} is {'0' * 64}, the manifest says ")
    assert problems[1] == f"{path}: has no SHA-256 of {files[1]}, which the manifest has"


def test_documents_are_compared_too(tmp_path: Path, source: Path) -> None:
    strategy = tmp_path / "case" / "src_strategy.ckpt"
    target = converted(tmp_path / "out", source, source_strategy=str(strategy))
    strategy.write_bytes(strategy.read_bytes()[::-1])
    [problem] = verified(target).problems
    assert problem.startswith(f"{strategy}: its SHA-256 is ")


@pytest.mark.parametrize("uri", ["http://example.com/x", "s3://bucket/x", "sftp://host/x", "none://x/y"])
def test_other_storages_than_the_sources_are_not_asked(target: Path, uri: str) -> None:
    change_statement(
        target,
        PROVENANCE,
        lambda d: DEFINITION(d)["resolvedDependencies"][-1].update(uri=uri, digest={"sha256": "0" * 64}),
    )
    report = verified(target)
    assert report.problems == ()
    assert report.notes == (
        f"1 file that it was made from: neither in the source nor beside the target, and not checked ({uri})",
    )


def test_a_pipe_in_place_of_a_document_is_not_read(target: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    uri = (tmp_path / "pipe").as_uri()

    def change(document: dict[str, Any]) -> None:
        dependency = DEFINITION(document)["resolvedDependencies"][-1]
        dependency.update(uri=uri, digest={"sha256": "0" * 64})
        dependency["annotations"].pop("sizeBytes")

    change_statement(target, PROVENANCE, change)
    [problem] = verified(target).problems
    assert str(tmp_path / "pipe") in problem


class TestSignatures:
    """Of statements; a signature is of somebody who is trusted, or none."""

    KEY, OTHER = new_key(), new_key()

    @pytest.fixture
    def signed(self, tmp_path: Path, source: Path) -> Path:
        return converted(tmp_path / "out", source, sign=kept(tmp_path / "key.pem", private_pem(self.KEY)))

    def problems(self, target: Path, key: Any) -> tuple[str, ...]:
        verifier = parse_verifier(public_pem(key), "trusted.pub")
        return check_provenance(parse_url(str(target)), manifest_at(target), verifier).problems

    def test_signed_statements_are_right(self, signed: Path) -> None:
        assert self.problems(signed, self.KEY) == ()
        assert verified(signed).problems == ()

    def test_another_key_is_named(self, signed: Path) -> None:
        problems = self.problems(signed, self.OTHER)
        assert len(problems) == 2
        assert all("signed by another key" in problem for problem in problems)

    def test_bare_statements_are_not_enough(self, target: Path) -> None:
        assert [each.rpartition(": ")[2] for each in self.problems(target, self.KEY)] == ["is not signed"] * 2

    def test_a_statement_changed_in_its_envelope_is_named(self, signed: Path) -> None:
        path = signed / ".reshard" / PROVENANCE
        document = json.loads(path.read_text())
        other = signed / ".reshard" / EQUIVALENCE
        document["signatures"] = json.loads(other.read_text())["signatures"]
        replace_statement(signed, PROVENANCE, json.dumps(document).encode())
        [problem] = self.problems(signed, self.KEY)
        assert problem.startswith(f"{path}: the signature is not valid")

    def test_a_signed_lie_is_still_a_disagreement(self, signed: Path, tmp_path: Path) -> None:
        path = signed / ".reshard" / PROVENANCE
        lie = parse_envelope(path.read_bytes(), "x").payload.replace(b"reshard 0", b"reshard 9")
        signer = load_signer(f"file:{tmp_path / 'key.pem'}")
        replace_statement(signed, PROVENANCE, dump_envelope(sign_envelope(lie, signer, signer.hint)))
        [problem] = self.problems(signed, self.KEY)
        assert "internalParameters.writer is reshard 9" in problem

    def test_one_check_of_signatures_files_and_statements(self, signed: Path) -> None:
        for key, count in ((self.KEY, 0), (self.OTHER, 3)):
            verifier = parse_verifier(public_pem(key), "trusted.pub")
            report = verify_target(str(signed), VerifyLevel.CHECKSUM, provenance=True, signed_by=verifier)
            assert len(report.problems) == count

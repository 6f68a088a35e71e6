"""Conversions of converted targets: each keeps its predecessors' statements, and refers to the nearest by SHA-256."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.lineage import lineage_of
from reshard.core.conversion.planning import describe_plan
from reshard.core.custody import chain_reading
from reshard.core.errors import CatalogError, TargetError
from reshard.core.request.conversion import build_request
from reshard.core.request.resources import resources_of
from reshard.core.signing.verifier import parse_verifier
from reshard.core.storage.urls import parse_url
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.signed_sources import Keys

FOUR_TO_THREE = case(7009)
FILES = ["provenance.intoto.json", "equivalence.intoto.json"]


def converted(directory: Path, **options: Any) -> Path:
    """A training's checkpoint, converted twice: 4 -> 3 ranks, then to one whole file."""
    options = {"sha256": "source", "verify": "content"} | options
    convert(FOUR_TO_THREE.request(directory / "first", **options))
    convert(again(directory / "first", directory / "second", **options))
    return directory / "second"


def again(source: Path, target: Path, **options: Any) -> Any:
    return build_request(source=source, target=target, **{"sha256": "source"} | options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chain")
    second = converted(directory)
    convert(again(second, directory / "third", layout="unified"))
    return directory


@pytest.fixture
def targets(made: Path, tmp_path: Path) -> Path:
    """The three targets, to be changed. The first was moved here: nothing refers to where it was."""
    return Path(shutil.copytree(made, tmp_path / "targets"))


def statement(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_copies_of_all_predecessors_statements_are_kept(made: Path) -> None:
    for number, predecessor in {1: "second", 2: "first"}.items():
        for name in FILES:
            kept = made / "third/.reshard/predecessors" / str(number) / name
            assert kept.read_bytes() == (made / predecessor / ".reshard" / name).read_bytes()
    assert not (made / "first/.reshard/predecessors").exists()
    listed = {each["file"]: each["sha256"] for each in statement(made / "third/.reshard/manifest.json")["statements"]}
    assert listed[".reshard/predecessors/2/provenance.intoto.json"] == sha256(
        made / "first/.reshard/provenance.intoto.json"
    )


def test_each_provenance_refers_to_its_predecessors(made: Path) -> None:
    for target, predecessor in {"third": "second", "second": "first"}.items():
        provenance = statement(made / target / ".reshard/provenance.intoto.json")
        dependencies = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
        of_role = [each for each in dependencies if each["annotations"]["role"] == "predecessor"]
        assert [(each["uri"], each["digest"]["sha256"]) for each in of_role] == [
            (f"file://{made}/{predecessor}/.reshard/{name}", sha256(made / predecessor / ".reshard" / name))
            for name in FILES
        ]


def test_without_sha256_there_is_no_chain(targets: Path) -> None:
    (targets / "first/.reshard/provenance.intoto.json").write_text("{}")
    report = convert(again(targets / "first", targets / "fourth", sha256="none"))
    assert report.committed
    assert not (targets / "fourth/.reshard/predecessors").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_statement_of_the_source_is_refused(targets: Path, name: str) -> None:
    path = targets / "second/.reshard" / name
    path.write_bytes(path.read_bytes().replace(b'"sha256"', b'"sha265"', 1))
    refused(targets, "second", f"{path}: is not the statement that was written")


def test_a_damaged_statement_of_a_predecessor_is_refused(targets: Path) -> None:
    path = targets / "third/.reshard/predecessors/2/provenance.intoto.json"
    path.write_bytes(b"{}")
    refused(targets, "third", f"{path}: is not the statement that was written")


def refused(targets: Path, source: str, message: str) -> None:
    for attempt in (convert, describe_plan):
        with pytest.raises(TargetError) as caught:
            attempt(again(targets / source, targets / "refused"))
        assert message in str(caught.value)
        assert "do without a chain of statements: sha256='none'" in str(caught.value)
    assert not (targets / "refused").exists()


def with_manifest(target: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest, and give it the digest of itself that it then needs, as an attacker would."""
    from reshard.core.checkpoint.self_digest import add_digest, split_digest

    path = target / ".reshard/manifest.json"
    document = json.loads(split_digest(path.read_bytes())[0])
    change(document)
    path.write_bytes(add_digest(json.dumps(document, indent=1).encode()))


def replaced(target: Path, name: str, content: bytes) -> Callable[[dict[str, Any]], None]:
    """Replace a statement, and what the manifest says of it."""
    import xxhash

    (target / ".reshard" / name).write_bytes(content)

    def change(manifest: dict[str, Any]) -> None:
        for each in manifest["statements"]:
            if each["file"] == f".reshard/{name}":
                each["size_bytes"] = len(content)
                each["digest"] = xxhash.xxh3_128_hexdigest(content)
                each["sha256"] = hashlib.sha256(content).hexdigest()

    return change


def test_another_predecessor_is_not_the_one_that_was_referred_to(targets: Path) -> None:
    name = "predecessors/1/provenance.intoto.json"
    content = (targets / "third/.reshard" / name).read_bytes().replace(b'"startedOn": "2', b'"startedOn": "1')
    with_manifest(targets / "third", replaced(targets / "third", name, content))
    refused(targets, "third", "predecessors/1/provenance.intoto.json: is not the one that its successor refers to")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"[" * 100_000, b'{"payloadType": "x"}', b"\xff", b'{"_type": NaN}', b'{"a": 1, "a": 2}'],
    ids=["empty", "list", "cut", "nested", "envelope", "not text", "not a number", "twice"],
)
def test_hostile_statements_are_refused(targets: Path, content: bytes) -> None:
    name = "predecessors/1/provenance.intoto.json"
    with_manifest(targets / "third", replaced(targets / "third", name, content))
    refused(targets, "third", name)
    lineage = lineage_of(parse_url(str(targets / "third")))
    assert lineage is not None
    assert not lineage.intact
    assert "the chain is BROKEN" in str(lineage)


@pytest.mark.parametrize(
    "name", ["predecessors/33/provenance.intoto.json", "predecessors/1/../../../x", "predecessors/1"]
)
def test_a_manifest_lists_no_other_files_as_statements(targets: Path, name: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["statements"][-1]["file"] = f".reshard/{name}"

    with_manifest(targets / "third", change)
    with pytest.raises(
        TargetError, match=r"lists the statement '\.reshard/predecessors/.*', which no conversion writes"
    ):
        lineage_of(parse_url(str(targets / "third")))


def test_statements_about_other_files_are_refused(targets: Path) -> None:
    provenance = (targets / "second/.reshard/provenance.intoto.json").read_bytes()
    with_manifest(targets / "first", replaced(targets / "first", "provenance.intoto.json", provenance))
    refused(targets, "first", "provenance.intoto.json: the SHA-256 of rank_0/checkpoint_0.ckpt is ")


def test_a_source_that_was_changed_after_its_conversion_is_refused(targets: Path) -> None:
    [path] = (targets / "first/rank_1").glob("*.ckpt")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CatalogError) as caught:
        convert(again(targets / "first", targets / "refused", sha256="source"))
    assert f"{path}: its SHA-256 is " in str(caught.value)
    assert not (targets / "refused").exists()


def test_the_nearest_of_many_predecessors_are_kept_and_a_note_says_so(
    targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_reading, "MAX_PREDECESSORS", 2)
    report = convert(again(targets / "third", targets / "fourth"))
    [note] = [note for note in report.notes if "has statements of 3 conversions" in note]
    assert note.endswith("the nearest 2 are kept beside the target, not those of 1 earlier one")
    assert sorted(path.name for path in (targets / "fourth/.reshard/predecessors").iterdir()) == ["1", "2"]


def test_an_overwritten_target_loses_the_statements_of_another_chain(targets: Path) -> None:
    convert(FOUR_TO_THREE.request(targets / "third", overwrite=True))
    assert not (targets / "third/.reshard/predecessors").exists()


def test_a_finished_target_with_a_chain_is_found_intact_again(made: Path) -> None:
    manifest = (made / "third/.reshard/manifest.json").read_bytes()
    assert convert(again(made / "second", made / "third", layout="unified")).committed
    assert (made / "third/.reshard/manifest.json").read_bytes() == manifest


def test_a_signed_target_with_a_chain_is_signed_again(targets: Path) -> None:
    keys, target = Keys(targets / "keys"), targets / "fourth"
    verifier = parse_verifier(keys.public.read_bytes(), "key")
    for level in ("checksum", "checksum", "content"):
        request = again(targets / "first", target, sign=keys.private, verify=level)
        with resources_of(request):
            assert convert(request).committed
        assert not verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True, signed_by=verifier).problems
    kept = target / ".reshard/predecessors/1/provenance.intoto.json"
    assert kept.read_bytes() == (targets / "first/.reshard/provenance.intoto.json").read_bytes()


def test_an_encrypted_target_refers_to_plain_statements_and_keeps_no_copies(
    targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    report = convert(again(targets / "first", targets / "secret", encrypt_key="env:KEY"))
    assert any("no copies are kept beside the encrypted target" in note for note in report.notes)
    assert not (targets / "secret/.reshard/predecessors").exists()
    provenance = statement(targets / "secret/.reshard/provenance.intoto.json")
    dependencies = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
    [referred] = [each for each in dependencies if each["uri"].endswith("first/.reshard/provenance.intoto.json")]
    assert referred["digest"]["sha256"] == sha256(targets / "first/.reshard/provenance.intoto.json")
    convert(again(targets / "secret", targets / "again", decrypt_key="env:KEY", encrypt_key="env:KEY"))
    assert [path.name for path in (targets / "again/.reshard/predecessors").iterdir()] == ["1"]


def test_the_chain_and_the_signature_of_an_iteration_are_in_its_directory(targets: Path) -> None:
    keys = Keys(targets / "keys")
    shared = {"step": "", "sha256": "target", "sign": keys.private}
    convert(again(targets / "first", targets / "saved", layout="checkpoint2", iteration="40", **shared))
    convert(again(targets / "saved", targets / "last", require_signed_by=str(keys.public)))
    lineage = lineage_of(parse_url(str(targets / "last")))
    assert lineage is not None
    assert lineage.intact
    assert [Path(step.place).name for step in lineage.steps[1:]] == ["first", "iteration_00000040", "last"]

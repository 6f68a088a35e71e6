"""Joined parts in the chain of custody: what their signatures and statements say is checked, kept and continued."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.lineage import Lineage, StepKind, lineage_of
from reshard.core.conversion.sign import resources_to_sign, sign
from reshard.core.custody import chain_reading
from reshard.core.custody.checking import SignatureCheck, SignatureFindings
from reshard.core.custody.reading import check_any
from reshard.core.errors import InputError, ReshardError, SignatureError, TargetError, VerificationError
from reshard.core.request.conversion import build_request
from reshard.core.request.resources import resources_of
from reshard.core.request.signing import SigningRequest
from reshard.core.runtime.progress import SilentProgress
from reshard.core.signing.verifier import Verifier, parse_verifier
from reshard.core.storage.copying import copy_file
from reshard.core.storage.urls import parse_url
from reshard.core.verification.files import RankVerification, verify_rank
from reshard.core.verification.published import verify_target
from tests.core.conversion.test_chain import replaced, with_manifest
from tests.core.conversion.test_shared_copies import Job
from tests.support.joining import join_parts
from tests.support.notes import Notes
from tests.support.sha256 import manifest_at, recorded_sha256, sha256_of
from tests.support.signed_sources import Keys
from tests.support.stage_parts import CASE

PROVENANCE, EQUIVALENCE = ".reshard/provenance.intoto.json", ".reshard/equivalence.intoto.json"


class Parts:
    """Two parts of a directory, and the keys of who signed them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.target = directory / "joined"
        self.public, self.private = directory / "key.pub", f"file:{directory / 'key.pem'}"

    @property
    def parts(self) -> list[str]:
        return [str(self.directory / f"stage{stage}") for stage in (0, 1)]

    @property
    def verifier(self) -> Verifier:
        return parse_verifier(self.public.read_bytes(), "key")

    def convert(self, stage: int, name: str = "", **options: Any) -> Path:
        target = self.directory / (name or f"stage{stage}")
        request = build_request(
            **{
                "source": str(CASE / "src"),
                "target": str(target),
                "source_strategy": str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
                "target_strategy": str(CASE / "dst_strategy.ckpt"),
                **options,
            }
        )
        with resources_of(request):
            convert(request)
        return target

    def join(self, **options: object) -> list[str]:
        """Join the parts; returns the notes."""
        notes = Notes()
        join_parts(self.parts, str(self.target), notes, **options)
        return notes.notes

    def refusal(self, kind: type[ReshardError], **options: object) -> str:
        """The message of a refusal, after which there is no target."""
        with pytest.raises(kind) as caught:
            self.join(**options)
        assert not self.target.exists()
        return str(caught.value)

    def lineage(self, target: str = "joined") -> Lineage:
        found = lineage_of(parse_url(str(self.directory / target)), self.verifier)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("custody")
    keys = Keys(directory)
    parts = Parts(directory)
    for stage in (0, 1):
        parts.convert(stage, sha256="source", sign=keys.private, verify="content")
    return directory


@pytest.fixture
def signed(made: Path, tmp_path: Path) -> Parts:
    return Parts(Path(shutil.copytree(made, tmp_path / "here")))


@pytest.fixture
def unsigned(signed: Parts) -> Parts:
    for part in signed.parts:
        Path(part, "model.sig").unlink()
    return signed


def statement(path: Path) -> dict[str, Any]:
    """A statement's predicate, signed or not."""
    document = json.loads(path.read_bytes())
    if "payload" in document:
        document = json.loads(base64.b64decode(document["payload"]))
    return document["predicate"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def without_statements(part: Path) -> None:
    with_manifest(part, lambda manifest: manifest.update(statements=[]))
    for name in (PROVENANCE, EQUIVALENCE):
        (part / name).unlink()


# ---- what a join says and signs ----


@pytest.mark.parametrize("by_name", [False, True])
def test_a_signed_join_of_signed_parts(signed: Parts, by_name: bool) -> None:
    trusted = f"file:{signed.public}" if by_name else str(signed.public)
    notes = signed.join(sign=signed.private, require_signed_by=trusted)
    assert [note.partition(": is signed by the key with SHA-256 ")[0] for note in notes] == signed.parts
    target = str(signed.target)
    found = verify_target(target, VerifyLevel.CHECKSUM, provenance=True, signed_by=signed.verifier)
    assert (found.problems, found.hashed) == ((), 4)
    assert recorded_sha256(target) == {
        name: sha256 for name, sha256 in sha256_of(signed.target).items() if name != "model.sig"
    }
    manifest = manifest_at(target)
    assert {each.url: each.sha256 for each in manifest.source_files} == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in signed.parts
        for path in Path(part).glob("rank_*/*")
    }
    assert manifest.source == str(CASE / "src")


def test_the_provenance_of_a_join(signed: Parts) -> None:
    signed.join(sha256="target")
    definition = statement(signed.target / PROVENANCE)["buildDefinition"]
    assert definition["buildType"] == "urn:reshard:join:v1"
    assert definition["externalParameters"]["parts"] == signed.parts
    files = {(each["annotations"]["role"], each["uri"]): each for each in definition["resolvedDependencies"]}
    assert {role for role, _ in files} == {"parts", "predecessor"}
    names = ["rank_0/*", "rank_1/*", ".reshard/*.json", ".reshard/plan.json.gz"]
    read = {path for part in signed.parts for name in names for path in Path(part).glob(name)}
    assert {uri for _, uri in files} == {path.as_uri() for path in read}
    for path in read:
        role = "predecessor" if path.name.endswith("intoto.json") else "parts"
        assert files[role, path.as_uri()]["digest"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_value_equivalence_of_a_join(signed: Parts) -> None:
    signed.join(sha256="target")
    found = statement(signed.target / EQUIVALENCE)
    assert (found["level"], found["valuesCompared"]) == ("checksum", False)
    assert found["method"].startswith("files copied from parts, and every byte read back and compared with ")
    assert (found["source"]["ranks"], found["target"]["ranks"]) == (8, 2)
    assert found["declared"]["notes"] == list(manifest_at(signed.target).notes)


def test_the_chain_branches_into_the_parts(signed: Parts) -> None:
    signed.join(sign=signed.private)
    for number, part in enumerate(signed.parts, 1):
        kept = signed.target / f".reshard/predecessors/{number}"
        assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
            Path(name).name: Path(part, name).read_bytes() for name in (PROVENANCE, EQUIVALENCE, "model.sig")
        }
    before = signed.lineage()
    assert [(step.kind, Path(step.place).name, [Path(each).name for each in step.into]) for step in before.steps] == [
        (StepKind.TRAINING, "src", ["stage0"]),
        (StepKind.CONVERSION, "stage0", ["joined"]),
        (StepKind.TRAINING, "src", ["stage1"]),
        (StepKind.CONVERSION, "stage1", ["joined"]),
        (StepKind.JOIN, "joined", []),
    ]
    assert before.intact
    assert {str(step.signed) for step in before.steps if step.made_by} == {"valid"}
    assert before.beginning.startswith("the chain begins with several checkpoints")
    shown = " ".join(str(before).split())
    assert "only joined files copied intact valid" in shown
    for part in signed.parts:
        shutil.rmtree(part)
    assert signed.lineage() == before


def test_a_conversion_continues_the_chain_of_a_join(signed: Parts) -> None:
    signed.join(sign=signed.private)
    strategy = str(CASE / "dst_strategy.ckpt")
    source = {"source": str(signed.target), "source_strategy": strategy, "require_signed_by": str(signed.public)}
    signed.convert(0, "last", sign=signed.private, **source)
    lineage = signed.lineage("last")
    assert lineage.intact
    assert [Path(step.place).name for step in lineage.steps] == ["src", "stage0", "src", "stage1", "joined", "last"]
    last = str(signed.directory / "last")
    assert not verify_target(last, VerifyLevel.CHECKSUM, provenance=True, signed_by=signed.verifier).problems


def test_a_common_predecessor_is_kept_once(tmp_path: Path) -> None:
    parts, strategy = Parts(tmp_path), str(CASE / "src_strategy.ckpt")
    whole = parts.convert(0, "whole", source_strategy=strategy, target_strategy=strategy, sha256="target")
    for stage in (0, 1):
        parts.convert(stage, source=str(whole), sha256="target")
    parts.join(sha256="target")
    assert sorted(path.name for path in (parts.target / ".reshard/predecessors").iterdir()) == ["1", "2", "3"]
    lineage = lineage_of(parse_url(str(parts.target)))
    assert lineage is not None
    assert lineage.intact
    assert [Path(step.place).name for step in lineage.steps] == ["src", "whole", "stage0", "stage1", "joined"]
    assert [Path(each).name for each in lineage.steps[1].into] == ["stage0", "stage1"]
    assert lineage.beginning.startswith("the chain begins here: its source was not converted by reshard")


def test_the_nearest_of_many_predecessors_are_kept(signed: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_reading, "MAX_PREDECESSORS", 1)
    signed.join(sha256="target")
    assert [path.name for path in (signed.target / ".reshard/predecessors").iterdir()] == ["1"]
    note = f"{signed.target}: has statements of 2 conversions; the nearest 1 are kept beside the target"
    assert any(each.startswith(note) for each in manifest_at(signed.target).notes)
    beginning = f"the chain is cut: the statements about {signed.parts[1]}, whose provenance has SHA-256 "
    assert signed.lineage().beginning.startswith(beginning)


def test_a_part_without_statements_begins_the_chain(unsigned: Parts) -> None:
    without_statements(Path(unsigned.parts[1]))
    notes = unsigned.join(sha256="target")
    assert notes == [f"{unsigned.parts[1]}: has no statements that could be continued"]
    rows = unsigned.lineage().steps
    assert [(Path(row.place).name, row.changes) for row in rows if row.kind is StepKind.CONVERSION] == [
        ("stage0", ""),
        ("stage1", None),
    ]


def test_the_statements_of_another_part_are_not_those_that_were_joined(signed: Parts) -> None:
    signed.join(sha256="target")
    other = (signed.target / ".reshard/predecessors/1/provenance.intoto.json").read_bytes()
    with_manifest(signed.target, replaced(signed.target, "predecessors/2/provenance.intoto.json", other))
    lineage = signed.lineage()
    assert not lineage.intact
    assert lineage.beginning.startswith(f"the chain is cut: the statements about {signed.parts[1]}, whose provenance ")
    problem = f"{signed.target}/.reshard/predecessors/2/equivalence.intoto.json: is about other files than "
    found = verify_target(str(signed.target), VerifyLevel.CHECKSUM, provenance=True).problems
    assert any(each.startswith(problem) for each in found)


def test_statements_that_were_not_joined_have_no_place_in_the_chain(signed: Parts) -> None:
    signed.join(sha256="target")
    path = signed.convert(1, "another", sha256="target") / PROVENANCE
    name = "predecessors/2/provenance.intoto.json"
    with_manifest(signed.target, replaced(signed.target, name, path.read_bytes()))
    lineage = signed.lineage()
    lost = lineage.steps[1]  # after its training
    assert (lost.place, lost.into, lost.linked) == ("", (), False)
    assert f"{signed.target}/.reshard/{name}: is not the one that its successor refers to" in lost.problems


def test_a_reference_that_is_repeated_counts_once(signed: Parts) -> None:
    signed.join(sha256="target")
    document = json.loads((signed.target / PROVENANCE).read_bytes())
    read = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    read += 3 * [each for each in read if each["annotations"]["role"] == "predecessor"]
    name = "provenance.intoto.json"
    with_manifest(signed.target, replaced(signed.target, name, json.dumps(document).encode()))
    lineage = signed.lineage()
    assert [Path(step.place).name for step in lineage.steps] == ["src", "stage0", "src", "stage1", "joined"]
    assert [[Path(each).name for each in step.into] for step in lineage.steps[1::2]] == [["joined"], ["joined"]]


def test_parameters_of_several_stages(tmp_path: Path) -> None:
    """The other copies are not in the joined files: what is said of a part's file is that of its own bytes."""
    job, target = Job(tmp_path), tmp_path / "joined"
    parts = job.parts(sha256="target")
    join_parts(parts, str(target), sha256="target")
    assert recorded_sha256(target) == sha256_of(target)
    manifest = manifest_at(target)
    assert manifest.notes[1] == (
        "parameters that several stages have are written once, from the part of stage 0: norm, tied"
    )
    assert {each.url: each.sha256 for each in manifest.source_files} == {
        f"{part}/{name}": sha256 for part in parts for name, sha256 in sha256_of(Path(part)).items()
    }
    assert not verify_target(str(target), VerifyLevel.CHECKSUM, provenance=True).problems


def test_a_resumed_join_has_it_of_all_files(unsigned: Parts) -> None:
    unsigned.join()
    (unsigned.target / ".reshard/manifest.json").unlink()
    (unsigned.target / ".reshard/records/rank_1.json").unlink()
    unsigned.target.rename(unsigned.directory / "joined.reshard-partial")
    unsigned.join(sha256="target")
    assert recorded_sha256(unsigned.target) == sha256_of(unsigned.target)
    assert not verify_target(str(unsigned.target), VerifyLevel.CHECKSUM, provenance=True).problems
    run = manifest_at(unsigned.target).run
    assert run is not None
    assert run.resumed_ranks == 1


def test_a_resumed_join_says_that_the_one_before_was_to_sign(signed: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"{signed.target}: is not signed, although an earlier run that joined files of it was to sign it"
    with monkeypatch.context() as patch:
        patch.setattr("reshard.core.target.target.Target.commit", lambda *_, **__: None)
        signed.join(sign=signed.private)
    assert not signed.target.exists()
    assert any(note.startswith(said) for note in signed.join())
    assert not (signed.target / "model.sig").exists()


# ---- a join that was made before ----


def test_what_was_joined_before_is_signed_by_another_command(signed: Parts) -> None:
    signed.join()
    assert set(recorded_sha256(signed.target).values()) == {None}
    with pytest.raises(TargetError, match="was joined before, without SHA-256 and statements: remove it"):
        signed.join(sha256="target")
    with pytest.raises(TargetError, match="not signed with this key: 'reshard sign' signs what is there; remove"):
        signed.join(sign=signed.private)
    request = SigningRequest(target=str(signed.target), key=signed.private)
    with resources_to_sign(request):
        assert sign(request, SilentProgress()).signed_now
    assert None not in recorded_sha256(signed.target).values()
    assert not verify_target(str(signed.target), VerifyLevel.CHECKSUM, signed_by=signed.verifier).problems
    signed.join(sign=signed.private)  # it is, by now
    with pytest.raises(TargetError, match="is not signed with this key"):
        signed.join(sign=Keys(signed.directory / "other").private)


def test_what_was_joined_without_statements_gets_them_by_another_join(signed: Parts) -> None:
    signed.join()
    with pytest.raises(InputError, match="has no statements about it: its parts were joined without. Remove it, and"):
        check_any(manifest_at(signed.target), parse_url(str(signed.target)))


def test_verify_names_the_file_of_a_rank_with_another_sha256(unsigned: Parts) -> None:
    unsigned.join(sha256="target")

    def change(manifest: dict[str, Any]) -> None:
        manifest["ranks"][0]["sha256"][1] = 64 * "0"

    with_manifest(unsigned.target, change)
    problems = verify_target(str(unsigned.target), VerifyLevel.CHECKSUM).problems
    assert any("the SHA-256 of rank_0/checkpoint_0_part1.ckpt is " in each for each in problems)


@pytest.mark.parametrize("found", [64 * "0", [64 * "0"], 3 * [64 * "0"], []])
def test_a_manifest_has_a_sha256_for_each_file(unsigned: Parts, found: object) -> None:
    unsigned.join(sha256="target")
    with_manifest(unsigned.target, lambda manifest: manifest["ranks"][0].update(sha256=found))
    with pytest.raises(TargetError, match=r"SHA-256 of rank_0, which has 2 files: it was changed"):
        verify_target(str(unsigned.target), VerifyLevel.CHECKSUM)


# ---- parts that are not as they were signed, or say ----

TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record": (
        lambda part: (part / ".reshard/records/rank_0.json").write_bytes(b"{}"),
        r"records/rank_0\.json: is not as it was signed",
    ),
    "the manifest": (without_statements, r"manifest\.json: is not as it was signed"),
    "a file more": (lambda part: (part / "config.json").write_text("{}"), r"config\.json: is not covered"),
    "a file less": (lambda part: (part / ".reshard/identity").unlink(), r"identity: was signed, and is missing"),
    "the signature": (lambda part: (part / "model.sig").write_text("{"), r"model\.sig: is not valid JSON"),
}


@pytest.mark.parametrize("asked", ["nothing", "sha256", "signature"])
@pytest.mark.parametrize("name", TAMPERED)
def test_a_part_that_is_not_as_it_was_signed_is_refused(signed: Parts, name: str, asked: str) -> None:
    tamper, message = TAMPERED[name]
    tamper(Path(signed.parts[1]))
    options = {"sha256": {"sha256": "target"}, "signature": {"require_signed_by": str(signed.public)}}
    with pytest.raises(SignatureError, match=message):
        signed.join(**options.get(asked, {}))
    assert f"{signed.parts[1]}: is not joined, because of its signature:" in signed.refusal(SignatureError)
    assert not Path(f"{signed.target}.reshard-partial").exists()


def test_a_part_made_anew_under_the_signature_of_another_is_refused(signed: Parts) -> None:
    """It is as its own records say, but not as the signature."""
    part = Path(signed.parts[1])
    signature = (part / "model.sig").read_bytes()
    shutil.rmtree(part)
    source = Path(shutil.copytree(CASE / "src", signed.directory / "src"))
    flip(next((source / "rank_4").glob("*.ckpt")))
    signed.convert(1, source=str(source))
    (part / "model.sig").write_bytes(signature)
    assert "_part1.ckpt: is not as it was signed" in signed.refusal(SignatureError)


def test_a_file_that_changes_after_the_check_of_signatures_is_found(
    signed: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    [file] = (Path(signed.parts[1]) / "rank_0").iterdir()
    monkeypatch.setattr("reshard.core.conversion.joint.verify_rank", _unseeing)

    def changed(source: Any, target: Any) -> None:
        if source.name == file.name:
            flip(file)
        copy_file(source, target)

    monkeypatch.setattr("reshard.core.conversion.joint.copy_file", changed)
    assert f"{file}: its SHA-256 is " in (message := signed.refusal(SignatureError))
    assert message.endswith("as model.sig says")


def test_statements_that_change_after_the_check_of_signatures_are_found(
    signed: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of somebody else's conversion, with their manifest and signature, contradict nothing."""
    part, key = Path(signed.parts[1]), Keys(signed.directory / "other_keys").private
    other = signed.convert(1, "other", sign=key)
    compare = SignatureCheck.compare

    def changed(check: SignatureCheck, *arguments: Any, **options: Any) -> SignatureFindings:
        found = compare(check, *arguments, **options)
        if str(check.directory) == str(part):
            for name in (".reshard/manifest.json", PROVENANCE, EQUIVALENCE, "model.sig"):
                shutil.copy(other / name, part / name)
        return found

    monkeypatch.setattr(SignatureCheck, "compare", changed)
    message = signed.refusal(SignatureError, sign=signed.private)
    assert f"{part}: is not joined, because of its signature:" in message
    assert f"{PROVENANCE}: was changed since it was signed: its SHA-256 is " in message


def _unseeing(*arguments: Any, **options: Any) -> RankVerification:
    """A check that finds no problem with contents, as if they had the same XXH3-128 as others."""
    return replace(verify_rank(*arguments, **options), problems=())


def test_the_sha256_that_a_part_states_is_compared(unsigned: Parts) -> None:
    part = Path(unsigned.parts[0])
    without_statements(part)
    with_manifest(part, lambda manifest: manifest["ranks"][1].update(sha256=64 * "0"))
    message = unsigned.refusal(VerificationError, sha256="target")
    assert f"{part}/rank_1/checkpoint_1_part0.ckpt: its SHA-256 is " in message
    assert message.endswith(f"not {64 * '0'}, as its manifest says")


def test_damaged_statements_of_a_part_are_refused(unsigned: Parts) -> None:
    path = Path(unsigned.parts[0]) / EQUIVALENCE
    path.write_bytes(b"{}")
    message = unsigned.refusal(TargetError, sha256="target")
    assert f"{path}: is not the statement that was written" in message
    assert "do without a chain of statements: sha256='none'" in message
    unsigned.join()


def test_a_part_that_has_to_be_signed(signed: Parts, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other").public
    assert "model.sig: signed by another key: " in signed.refusal(SignatureError, require_signed_by=str(other))
    Path(signed.parts[1], "model.sig").unlink()
    message = signed.refusal(SignatureError, require_signed_by=str(signed.public))
    assert f"{signed.parts[1]}/model.sig: does not exist: the checkpoint is not signed" in message
    message = signed.refusal(InputError, require_signed_by="/nowhere.pem")
    assert "require_signed_by='/nowhere.pem': /nowhere.pem: cannot read it" in message


def test_a_signature_that_nobody_checks_is_noted(signed: Parts) -> None:
    Path(signed.parts[0], "model.sig").unlink()
    [note] = signed.join()
    assert note.startswith(f"{signed.parts[1]}/model.sig: says that the key with SHA-256 ")
    assert note.endswith("signed, which was not checked: 'require_signed_by' checks it")


def test_a_passphrase_needs_a_key(signed: Parts) -> None:
    message = signed.refusal(InputError, sign_passphrase="env:X")
    assert message == "sign_passphrase: needs a key: name it with 'sign'"


def test_parts_that_another_program_signed(tmp_path: Path) -> None:
    """Without SHA-256 in their manifests."""
    parts, keys = Parts(tmp_path), Keys(tmp_path)
    for stage in (0, 1):
        keys.sign(parts.convert(stage))
    parts.join(sha256="target", require_signed_by=str(keys.public))
    assert recorded_sha256(parts.target) == sha256_of(parts.target)
    flip(next((tmp_path / "stage1/rank_1").iterdir()))
    parts.target = tmp_path / "other"
    message = parts.refusal(SignatureError, require_signed_by=str(keys.public))
    assert "checkpoint_1_part1.ckpt: is not as it was signed: its SHA-256 is " in message

"""A signature is checked in the pass that checks files and records, and says which of them is not as it was signed."""

import json
import shutil
from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.custody.checking import read_verifier
from reshard.core.custody.signing import IGNORED
from reshard.core.errors import InputError
from reshard.core.signing.bundle import sign_files
from reshard.core.signing.curves import hint_of
from reshard.core.signing.signer import load_signer
from reshard.core.signing.statement import SignedFiles
from reshard.core.verification.published import verify_target
from reshard.core.verification.report import VerificationReport
from tests.support.checkpoints import case
from tests.support.conversions import damage
from tests.support.signing import authority, digests_of, kept, new_key, owner, private_pem, public_pem

KEY = new_key()
HINT = hint_of(KEY.public_key())


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("signed")
    name = kept(directory / "key.pem", private_pem(KEY))
    convert(case(7009).request(directory / "out", sign=name))
    return directory / "out"


@pytest.fixture
def target(signed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(signed, tmp_path / "out")


def verified(
    target: Path, trusted: bytes | None = None, level: VerifyLevel = VerifyLevel.CHECKSUM
) -> VerificationReport:
    pem = target.parent / "trusted.pem"
    pem.write_bytes(trusted or public_pem(KEY))
    return verify_target(str(target), level, signed_by=read_verifier(str(pem), {}))


def test_a_target_as_it_was_signed(target: Path) -> None:
    report = verified(target)
    assert (report.problems, report.notes, report.signed_by) == ((), (), f"the key with SHA-256 {HINT}")
    assert str(report).endswith(f"all files intact, as signed by the key with SHA-256 {HINT}")


def test_at_the_level_structure_the_records_are_compared(target: Path) -> None:
    report = verified(target, level=VerifyLevel.STRUCTURE)
    assert (report.problems, report.signed_by) == ((), None)
    assert f"the signature is by the key with SHA-256 {HINT}. It was compared with the records" in report.notes[0]
    assert "signed" not in str(report).splitlines()[-1]


def test_without_a_key_a_signature_is_only_mentioned(target: Path) -> None:
    report = verify_target(str(target), VerifyLevel.STRUCTURE)
    [note] = report.notes
    assert note.endswith(f"says that the key with SHA-256 {HINT} signed, which was not checked: 'signed_by' checks it")
    (target / "model.sig").write_text("{}")
    [note] = verify_target(str(target), VerifyLevel.STRUCTURE).notes
    assert note.endswith("not a signature of a model: it has no media type; nothing was checked by it")


def file_of(target: Path) -> Path:
    return next((target / "rank_1").iterdir())


def test_a_tampered_file_is_named(target: Path) -> None:
    file = file_of(target)
    damage(file)
    report = verified(target)
    assert any(problem.startswith(f"{file}: is not as it was signed: its SHA-256 is ") for problem in report.problems)
    assert report.signed_by is None


def test_a_file_and_its_record_tampered_together_are_found(target: Path, tmp_path: Path) -> None:
    """Anyone who can write can forge matching records, but only the key's owner can sign."""
    other = tmp_path / "other"
    convert(case(7009).request(other, format="safetensors", sha256="target"))
    shutil.copyfile(target / "model.sig", other / "model.sig")
    problems = verified(other).problems
    assert any("rank_1" in each and each.endswith("was signed, and is missing") for each in problems)
    assert any(each.endswith("is not covered by the signature: it was added since, or left out") for each in problems)
    assert any(each.startswith(f"{other}/.reshard/manifest.json: is not as it was signed") for each in problems)


@pytest.mark.parametrize(
    "name", ["identity", "plan.json.gz", "manifest.json", "records/rank_1.json", "provenance.intoto.json"]
)
def test_a_tampered_record_is_named(target: Path, name: str) -> None:
    file = target / ".reshard" / name
    if name == "manifest.json":  # with a digest of itself that fits
        from reshard.core.checkpoint.manifest import dump_record
        from tests.support.sha256 import manifest_at

        file.write_bytes(dump_record(manifest_at(target).model_copy(update={"created": "2020-01-01T00:00:00+00:00"})))
    else:
        damage(file)
    for level in VerifyLevel.STRUCTURE, VerifyLevel.CHECKSUM:
        problems = verified(target, level=level).problems
        assert any(each.startswith(f"{file}: is not as it was signed: its SHA-256") for each in problems)


def test_missing_and_added_files_are_named(target: Path) -> None:
    missing, added = target / ".reshard" / "equivalence.intoto.json", target / "tokenizer.json"
    missing.unlink()
    added.write_text("{}")
    problems = verified(target).problems
    assert f"{missing}: was signed, and is missing" in problems
    assert f"{added}: is not covered by the signature: it was added since, or left out" in problems


def test_a_renamed_file_is_named_twice(target: Path) -> None:
    file = file_of(target)
    file.rename(file.with_name("other.ckpt"))
    problems = verified(target).problems
    assert f"{file}: was signed, and is missing" in problems
    assert any(each.startswith(f"{file.with_name('other.ckpt')}: is not covered by the signature") for each in problems)


def test_a_link_is_not_what_was_signed(target: Path) -> None:
    file = file_of(target)
    moved = file.rename(target.parent / "elsewhere")
    file.symlink_to(moved)
    assert any(each.startswith(f"{file}: is a link") for each in verified(target).problems)


def test_no_signature(target: Path) -> None:
    (target / "model.sig").unlink()
    assert verified(target).problems == (f"{target}/model.sig: does not exist: the checkpoint is not signed",)


def test_a_tampered_signature(target: Path) -> None:
    signature = target / "model.sig"
    found = json.loads(signature.read_bytes())
    sig = found["dsseEnvelope"]["signatures"][0]
    sig["sig"] = sig["sig"][:20] + ("A" if sig["sig"][20] != "A" else "B") + sig["sig"][21:]
    signature.write_text(json.dumps(found))
    [problem] = verified(target).problems
    assert problem.startswith(f"{signature}: the signature is not valid")


def test_a_valid_signature_by_another_key_is_not_valid(target: Path) -> None:
    other = new_key()
    [problem] = verified(target, public_pem(other)).problems
    assert problem == f"{target}/model.sig: signed by another key: SHA-256 {HINT}, not {hint_of(other.public_key())}"
    [problem] = verified(target, authority().pem).problems
    assert "without a certificate" in problem


def sign_again(target: Path, key, ignored: tuple[str, ...] = IGNORED, certificate: bytes | None = None) -> None:
    (target / "model.sig").unlink()
    files = SignedFiles("", {}, ignored)
    digests = {name: digest for name, digest in digests_of(target).items() if not files.ignores(name)}
    signer = load_signer(kept(target.parent / "key.pem", private_pem(key)), certificate=certificate)
    (target / "model.sig").write_bytes(sign_files(SignedFiles("out", digests, ignored), signer))


def test_certificates(target: Path) -> None:
    root = authority()
    certified = owner(root)
    sign_again(target, certified.key, certificate=certified.pem)
    assert (
        verified(target, root.pem).signed_by
        == f"CN=release, the key with SHA-256 {hint_of(certified.key.public_key())}"
    )
    [problem] = verified(target, authority("other").pem).problems
    assert "which does not lead to a certificate that is trusted here" in problem
    note = verify_target(str(target), VerifyLevel.STRUCTURE).notes[0]
    assert "says that the certificate of CN=release signed, which was not checked" in note


def test_what_a_signature_leaves_out_is_not_checked_and_not_believed(target: Path) -> None:
    readme = target / "README.md"
    readme.write_text("about this model")
    sign_again(target, KEY, (*IGNORED, "README.md"))
    report = verified(target)
    assert (report.problems, report.notes) == ((), (f"{readme}: was left out of the signature by who signed",))
    sign_again(target, KEY, (*IGNORED, "README.md", "rank_1"))
    [problem] = verified(target).problems
    assert problem == f"{file_of(target)}: is not covered by the signature: it was added since, or left out"


def test_trust_may_be_kept_under_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM", public_pem(KEY).decode())
    assert read_verifier("env:TEAM", {}).keys == (KEY.public_key(),)
    with pytest.raises(InputError, match="env:NOBODY: there is no such variable in the environment"):
        read_verifier("env:NOBODY", {})


def test_what_no_signature_covers_is_noted(target: Path) -> None:
    """Model-signing leaves out what git keeps, and what the signature says is left out."""
    for name in (".git/HEAD", ".gitattributes", ".reshard/leases/gate"):
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text("x")
    report = verified(target)
    assert report.problems == ()
    assert report.notes == (f"{target}: no signature covers .git/HEAD, .gitattributes, .reshard/leases/gate",)


@pytest.mark.parametrize("name", [".reshard/withdrawn", "rank_0/.checkpoint_0.ckpt.0123abcd.tmp"])
def test_what_a_killed_run_left_is_not_covered(target: Path, name: str) -> None:
    """Model-signing refuses it, too."""
    (target / name).write_text("x")
    problem = f"{target / name}: is not covered by the signature: it was added since, or left out"
    assert verified(target).problems == (problem,)

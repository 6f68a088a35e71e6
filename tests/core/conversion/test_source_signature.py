"""A source that has to be signed: refused by name, before a byte of the target is written, unless it is as signed."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan
from reshard.core.custody import digests, signed_source, source_digests, source_places
from reshard.core.custody.signed_source import SourceGuard
from reshard.core.errors import InputError, SignatureError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.signing.bundle import parse_bundle, sign_files
from reshard.core.signing.signer import load_signer
from reshard.core.storage.read_log import ReadLog, logging_reads
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.signed_sources import BY_MODEL_SIGNING, Keys, copy_of_source
from tests.support.signing import authority, kept, owner, private_pem

FOUR_TO_THREE = case(7009)


class Signed:
    """A signed source, and who signed it."""

    def __init__(self, directory: Path) -> None:
        self.keys = Keys(directory)
        self.source = copy_of_source(FOUR_TO_THREE, directory)
        self.keys.sign(self.source)
        self.target = directory / "target"

    @property
    def files(self) -> list[Path]:
        return sorted(self.source.rglob("*.ckpt"))

    def request(self, **options: object) -> ConversionRequest:
        asked = {"source": str(self.source), "require_signed_by": str(self.keys.public), "overwrite": True}
        return FOUR_TO_THREE.request(self.target, **asked | options)

    def refusal(self, **options: object) -> str:
        """The message of the refusal, after which nothing is at the target."""
        with pytest.raises(SignatureError) as caught:
            convert(self.request(**options))
        assert not self.target.exists()
        assert not [path for path in self.target.parent.iterdir() if self.target.name in path.name]
        return str(caught.value)


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    return Signed(tmp_path)


def test_a_signed_source_is_converted_and_the_note_says_by_whom(signed: Signed) -> None:
    report = convert(signed.request())
    assert report.committed
    assert report.source_files_bytes == sum(path.stat().st_size for path in signed.files)
    [note] = [note for note in report.notes if "is signed by" in note]
    assert note.startswith("the source is signed by the key with SHA-256 ")
    assert f"its {len(signed.files)} signed files" in note
    [outside] = [note for note in report.notes if "not covered by its signature" in note]
    assert outside.endswith("src_strategy.ckpt")


def test_a_plan_says_what_would_be_read_and_reads_none_of_it(signed: Signed) -> None:
    signed.files[0].write_bytes(signed.files[0].read_bytes()[:-1] + b"\0")
    _, summary = describe_plan(signed.request())
    assert any("are read whole and compared with model.sig" in note for note in summary.notes)


def test_the_plan_is_the_same_with_and_without_a_required_signature(signed: Signed) -> None:
    assert convert(signed.request(require_signed_by="")).identity == convert(signed.request()).identity


def test_a_source_that_model_signing_signed_is_converted(tmp_path: Path) -> None:
    source = copy_of_source(FOUR_TO_THREE, tmp_path)
    shutil.copy(BY_MODEL_SIGNING / FOUR_TO_THREE.directory.name / "model.sig", source)
    key = BY_MODEL_SIGNING / FOUR_TO_THREE.directory.name / "public_key.pem"
    asked = FOUR_TO_THREE.request(tmp_path / "target", source=str(source), require_signed_by=str(key))
    assert convert(asked).committed


def test_no_signature(signed: Signed) -> None:
    (signed.source / "model.sig").unlink()
    assert f"{signed.source}: has no model.sig, but 'require_signed_by' asks" in signed.refusal()


def test_a_signature_of_another_directory_is_none_of_the_source(signed: Signed) -> None:
    (signed.source / "other").mkdir()
    (signed.source / "model.sig").rename(signed.source / "other/model.sig")
    assert f"{signed.source}: has no model.sig" in signed.refusal()


def test_a_signature_by_another_key(signed: Signed, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other")
    assert "model.sig: signed by another key: " in signed.refusal(require_signed_by=str(other.public))


def test_one_of_several_keys_is_enough(signed: Signed, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(Keys(tmp_path / "other").public.read_bytes() + signed.keys.public.read_bytes())
    assert convert(signed.request(require_signed_by=str(both))).committed


@pytest.mark.parametrize("kind", ["env", "file"])
def test_the_key_may_be_kept_under_a_name(signed: Signed, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TRAINING", signed.keys.public.read_text())
    name = {"env": "env:TRAINING", "file": f"file:{signed.keys.public}"}[kind]
    assert convert(signed.request(require_signed_by=name, sha256="target")).committed
    assert not verify_target(str(signed.target), VerifyLevel.CHECKSUM, provenance=True).problems
    assert any("are read whole" in note for note in describe_plan(signed.request(require_signed_by=name))[1].notes)
    monkeypatch.setenv("OTHER", Keys(signed.target.parent / "other").public.read_text())
    with pytest.raises(SignatureError, match="signed by another key"):
        convert(signed.request(require_signed_by="env:OTHER"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("env:NOWHERE", "env:NOWHERE: there is no such variable in the environment"),
        ("env:EMPTY", "env:EMPTY: "),
        ("block:training", "block:training: blocks are Prefect's"),
    ],
)
def test_a_name_under_which_there_is_no_key(
    signed: Signed, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(InputError, match=f"^{message}"):
        convert(signed.request(require_signed_by=name))
    assert not signed.target.exists()


def test_a_certificate_of_another_authority(signed: Signed, tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    root.write_bytes(authority().pem)
    assert "without a certificate" in signed.refusal(require_signed_by=str(root))


def test_a_changed_file_is_named(signed: Signed) -> None:
    data = bytearray(signed.files[2].read_bytes())
    data[-1] ^= 1
    signed.files[2].write_bytes(data)
    message = signed.refusal()
    assert f"{signed.files[2]}: was changed since it was signed: its SHA-256 is " in message
    assert str(signed.files[1]) not in message


def test_a_file_that_is_not_covered_is_named(signed: Signed) -> None:
    content = signed.files[1].read_bytes()
    signed.files[1].unlink()
    signed.keys.sign(signed.source)
    signed.files[0].parent.parent.joinpath("rank_1").mkdir(exist_ok=True)
    (signed.source / "rank_1" / signed_name(signed, 1)).write_bytes(content)
    message = signed.refusal()
    assert f"rank_1/{signed_name(signed, 1)}: would be read, but is not covered" in message


def signed_name(signed: Signed, rank: int) -> str:
    [path] = (FOUR_TO_THREE.directory / "src" / f"rank_{rank}").glob("*.ckpt")
    return path.name


@pytest.mark.parametrize(
    "name",
    ["rank_0/extra.ckpt", "config.json", ".reshard/manifest.json", "strategy/new.ckpt"],
    ids=["checkpoint", "document", "records", "strategy"],
)
def test_an_extra_file_is_named_whatever_it_is(signed: Signed, name: str) -> None:
    extra = signed.source / name
    extra.parent.mkdir(exist_ok=True)
    extra.write_bytes(b"{}")
    options = {"source_prefix": "checkpoint_{rank}"} if name.startswith("rank") else {}
    assert f"{name}: is not covered: it was added since" in signed.refusal(**options)


def test_a_missing_file_is_named(signed: Signed) -> None:
    (signed.source / "README.md").write_text("a model")
    signed.keys.sign(signed.source)
    (signed.source / "README.md").unlink()
    assert "README.md: was signed, but is missing" in signed.refusal()


def test_a_link_is_not_what_was_signed(signed: Signed, tmp_path: Path) -> None:
    moved = signed.files[0].rename(tmp_path / "elsewhere.ckpt")
    (signed.source / "rank_0" / signed_name(signed, 0)).symlink_to(moved)
    assert f"{moved}: would be read, and is outside the signed directory" in signed.refusal()


def test_a_link_to_the_source_is_followed(signed: Signed, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(signed.source)
    assert convert(signed.request(source=str(tmp_path / "link"))).committed


def test_what_version_control_keeps_needs_no_signature(signed: Signed) -> None:
    (signed.source / ".gitattributes").write_text("*.ckpt filter=lfs\n")
    (signed.source / ".git").mkdir()
    (signed.source / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert convert(signed.request()).committed


def test_a_damaged_signature(signed: Signed) -> None:
    (signed.source / "model.sig").write_bytes(b"{")
    assert f"{signed.source}/model.sig: is not valid JSON" in signed.refusal()


def test_a_signature_file_in_place_of_the_key(signed: Signed) -> None:
    with pytest.raises(InputError, match=r"model\.sig: is not PEM"):
        convert(signed.request(require_signed_by=str(signed.source / "model.sig")))


def test_a_key_that_is_not_there(signed: Signed) -> None:
    with pytest.raises(InputError, match=r"require_signed_by='.*nowhere\.pem': .*nowhere\.pem: cannot read it"):
        convert(signed.request(require_signed_by="/nowhere.pem"))


def test_a_document_swapped_only_while_the_source_is_planned_is_found_out(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = signed.source / "strategy.ckpt"
    shutil.copy(FOUR_TO_THREE.directory / "src_strategy.ckpt", strategy)
    signed.keys.sign(signed.source)

    def swapped(check: Callable[..., object]) -> Callable[..., object]:
        def cover(*arguments: object, **options: object) -> object:
            content = strategy.read_bytes()
            strategy.write_bytes(b"something else")
            strategy.write_bytes(content)
            return check(*arguments, **options)

        return cover

    monkeypatch.setattr(signed_source.SourceGuard, "cover", swapped(signed_source.SourceGuard.cover))
    assert "strategy.ckpt changed while the source was examined" in signed.refusal(source_strategy=str(strategy))


def test_a_document_that_was_another_one_when_it_was_read_first_is_found_out(signed: Signed) -> None:
    """Object stores give a file that is put back its old version."""
    strategy = parse_url(str(signed.source / "strategy.ckpt"))
    write_bytes(strategy, b"signed")
    signed.keys.sign(signed.source)
    guard, log = SourceGuard.of(str(signed.source), str(signed.keys.public)), ReadLog()
    plan = describe_plan(signed.request(require_signed_by=""))[0]
    with logging_reads(log):
        for content in b"put in place", b"signed":
            write_bytes(strategy, content)
            read_small_file(strategy, 100)
    with pytest.raises(SignatureError, match="strategy.ckpt: was changed since it was signed: its SHA-256 is"):
        guard.cover(plan.inputs.catalog, log.documents, recovers=False)


def test_files_of_other_steps_may_come_and_go(signed: Signed) -> None:
    saved = [path.rename(path.with_name("net-1_10.ckpt")) for path in signed.files]
    for path in saved:
        shutil.copy(path, path.with_name("net-1_5.ckpt"))
    signed.keys.sign(signed.source)
    for path in saved:
        path.with_name("net-1_5.ckpt").rename(path.with_name("net-1_20.ckpt"))
    assert "rank_3/net-1_20.ckpt: would be read, but is not covered" in signed.refusal()
    assert convert(signed.request(step="1_10")).committed


def test_a_strategy_that_is_named_like_another_step_is_covered_all_the_same(signed: Signed) -> None:
    saved = [path.rename(path.with_name("net-1_10.ckpt")) for path in signed.files]
    assert saved
    signed.keys.sign(signed.source)
    strategy = shutil.copy(FOUR_TO_THREE.directory / "src_strategy.ckpt", signed.source / "strategy-1_5.ckpt")
    assert "strategy-1_5.ckpt: was read, but is not covered" in signed.refusal(source_strategy=str(strategy))
    signed.keys.sign(signed.source)
    assert convert(signed.request(source_strategy=str(strategy))).committed


def test_a_document_that_was_changed_is_found_before_files_are_read(signed: Signed) -> None:
    strategy = shutil.copy(FOUR_TO_THREE.directory / "src_strategy.ckpt", signed.source / "strategy.ckpt")
    (signed.source / "strategy.ckpt").write_bytes(b"another one")
    signed.keys.sign(signed.source)
    shutil.copy(FOUR_TO_THREE.directory / "src_strategy.ckpt", strategy)
    with pytest.raises(SignatureError, match=r"strategy\.ckpt: was changed since it was signed: its SHA-256 is "):
        describe_plan(signed.request(source_strategy=str(strategy)))


def test_a_signature_by_a_certificate(tmp_path: Path) -> None:
    signed = Signed(tmp_path)
    root = authority()
    release = owner(root)
    bundle = parse_bundle((signed.source / "model.sig").read_bytes(), "it")
    key = kept(tmp_path / "release.pem", private_pem(release.key))
    (signed.source / "model.sig").write_bytes(sign_files(bundle.files, load_signer(key, "", release.chain_pem)))
    trusted = tmp_path / "root.pem"
    trusted.write_bytes(root.pem)
    report = convert(signed.request(require_signed_by=str(trusted)))
    assert any("is signed by CN=release, the key with SHA-256" in note for note in report.notes)


@pytest.mark.parametrize(
    ("source", "directory"),
    [("/a/rank_{rank}/x{rank}.ckpt", "/a"), ("/a_{rank}", "/"), ("/a/b", "/a/b")],
)
def test_the_directory_of_a_source(source: str, directory: str) -> None:
    assert source_places.directory_of(parse_url(source)) == parse_url(directory)


@pytest.mark.parametrize("sha256", ["target", "source"])
def test_one_reading_serves_the_signature_and_the_records(
    signed: Signed, monkeypatch: pytest.MonkeyPatch, sha256: str
) -> None:
    read: list[str] = []
    sha256_of = digests.sha256_of

    def counted(file: Any, advance: Any) -> str:
        read.append(str(file.location))
        return sha256_of(file, advance)

    monkeypatch.setattr(signed_source, "sha256_of", counted)
    monkeypatch.setattr(source_digests, "sha256_of", counted)
    report = convert(signed.request(sha256=sha256))
    size_bytes = sum(path.stat().st_size for path in signed.files)
    assert report.source_files_bytes == size_bytes
    assert sorted(read) == [str(path) for path in signed.files]
    document = json.loads((signed.target / ".reshard/manifest.json").read_text())
    assert {each["url"]: each["sha256"] for each in document["source_files"]} == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in signed.files
    }

"""Signatures: what is signed is read back, and what is not understood exactly is refused."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from reshard.core.errors import SignatureError
from reshard.core.signing.bundle import parse_bundle, sign_files
from reshard.core.signing.dsse import dump_envelope, parse_envelope, pre_authentication, sign_envelope
from reshard.core.signing.signer import Signer, load_signer
from reshard.core.signing.statement import SignedFiles, dump_statement, parse_statement
from reshard.core.signing.verifier import Material, parse_verifier
from tests.support.signing import authority, kept, new_key, owner, private_pem, public_pem

KEY = new_key()
A, B = hashlib.sha256(b"a").hexdigest(), hashlib.sha256(b"b").hexdigest()
FILES = SignedFiles("model", {"rank_0/a.ckpt": A, "rank-0": B, ".reshard/manifest.json": A}, ("model.sig", ".git"))


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return load_signer(kept(tmp_path / "key.pem", private_pem(KEY)))


def test_a_signature_is_read_back(signer: Signer) -> None:
    bundle = parse_bundle(sign_files(FILES, signer), "model.sig")
    assert bundle.files == FILES
    assert bundle.check(parse_verifier(public_pem(KEY), "key.pub"), "model.sig").hint == signer.hint


def test_paths_are_in_the_order_of_their_parts() -> None:
    digests = {"a-b": A, "a/b": B, "a": A}
    assert list(parse_statement(dump_statement(SignedFiles("m", digests)), "s").digests) == ["a", "a/b", "a-b"]


def test_a_signature_with_certificates(tmp_path: Path) -> None:
    root = authority()
    certified = owner(authority("middle", root))
    named = kept(tmp_path / "key.pem", private_pem(certified.key))
    data = sign_files(FILES, load_signer(named, certificate=certified.chain_pem))
    assert (
        parse_bundle(data, "model.sig").check(parse_verifier(root.pem, "ca.pem"), "model.sig").subject == "CN=release"
    )


def test_a_changed_statement_is_not_signed(signer: Signer) -> None:
    found = json.loads(sign_files(FILES, signer))
    changed = dump_statement(SignedFiles("model", {"rank-0": A}))
    found["dsseEnvelope"]["payload"] = base64.b64encode(changed).decode()
    bundle = parse_bundle(json.dumps(found).encode(), "model.sig")
    with pytest.raises(SignatureError, match="model.sig: the signature is not valid: what it signs was changed since"):
        bundle.check(parse_verifier(public_pem(KEY), "key.pub"), "model.sig")


def test_an_envelope_by_itself(signer: Signer) -> None:
    envelope = parse_envelope(dump_envelope(sign_envelope(b"{}", signer, signer.hint)), "statement")
    assert (envelope.payload, envelope.key_id) == (b"{}", signer.hint)
    envelope.check(parse_verifier(public_pem(KEY), "key.pub").identify(Material(envelope.key_id), "s"), "s")


def test_what_is_signed_is_the_example_of_the_specification() -> None:
    assert pre_authentication("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def set_in(document: Any, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        document = document[int(name)] if isinstance(document, list) else document[name]
    if value is ...:
        del document[last]
    else:
        document[int(last) if isinstance(document, list) else last] = value


KEYLESS = "a keyless signature, by an identity of Sigstore"
BUNDLES = {
    "media type": (
        "mediaType",
        "text/plain",
        "its media type is 'text/plain', not application/vnd.dev.sigstore.bundle.v",
    ),
    "version": (
        "mediaType",
        "application/vnd.dev.sigstore.bundle+json;version=0.2",
        "a bundle of version 0.2; only 0.3",
    ),
    "no media type": ("mediaType", ..., "not a signature of a model: it has no media type"),
    "log": ("verificationMaterial.tlogEntries", [{}], KEYLESS),
    "fulcio": ("verificationMaterial.certificate", {"rawBytes": "AA=="}, KEYLESS),
    "message": ("dsseEnvelope", ..., "signs nothing, not the files of a model"),
    "no key": ("verificationMaterial.publicKey", ..., "names neither a public key nor a certificate"),
    "two keys": ("verificationMaterial.x509CertificateChain", {"certificates": []}, "names both a public key and"),
    "no signature": ("dsseEnvelope.signatures", [], "has 0 signatures, where one is supported"),
    "two signatures": ("dsseEnvelope.signatures", [{"sig": ""}] * 2, "has 2 signatures, where one is supported"),
    "long signature": ("dsseEnvelope.signatures.0.sig", "A" * 4000, "its signature has 3000 bytes"),
    "not base64": ("dsseEnvelope.payload", "%", "its payload is not base64"),
    "type": ("dsseEnvelope.payloadType", "text/plain", "its payload is 'text/plain', not a statement of in-toto"),
    "shape": (
        "dsseEnvelope.payload",
        3,
        "not a readable signature: Expected `str`, got `int` - at `$.dsseEnvelope.pay",
    ),
    "no material": ("verificationMaterial", ..., "not a readable signature: Object missing required field"),
}


@pytest.mark.parametrize(("path", "value", "expected"), BUNDLES.values(), ids=BUNDLES)
def test_bundles_that_are_refused(signer: Signer, path: str, value: Any, expected: str) -> None:
    document = json.loads(sign_files(FILES, signer))
    set_in(document, path, value)
    assert refused(json.dumps(document).encode()).startswith(f"model.sig: {expected}")


@pytest.mark.parametrize(
    ("certificates", "expected"),
    [
        ([], "has 0 certificates"),
        ([{"rawBytes": "AA=="}] * 17, "has 17"),
        ([{"rawBytes": "AA=="}], "a certificate is d"),
    ],
)
def test_chains_that_are_refused(signer: Signer, certificates: list[Any], expected: str) -> None:
    document = json.loads(sign_files(FILES, signer))
    document["verificationMaterial"] = {"x509CertificateChain": {"certificates": certificates}}
    assert refused(json.dumps(document).encode()).startswith(f"model.sig: {expected}")


RAW = {
    "not text": (b"\xff\xfe", "is not valid JSON: 'utf-8' codec"),
    "not JSON": (b"-----BEGIN", "is not valid JSON: "),
    "twice": (b'{"mediaType": 1, "mediaType": 2}', "is not valid JSON: 'mediaType' occurs twice in one object"),
    "nan": (b'{"a": NaN}', "is not valid JSON: NaN is not JSON"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "is not valid JSON: nested too deeply"),
    "number": (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
    "a list": (b"[]", "not a signature of a model: it has no media type"),
}


@pytest.mark.parametrize(("data", "expected"), RAW.values(), ids=RAW)
def test_documents_that_are_refused(data: bytes, expected: str) -> None:
    assert refused(data).startswith(f"model.sig: {expected}")


def test_a_large_document_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.signing.documents.MAX_DOCUMENT_BYTES", 10)
    assert refused(b"{}" + b" " * 9).startswith("model.sig: has more than 10 B: not a signature")


PREDICATE = "predicate.serialization"
STATEMENTS = {
    "type": ("_type", "x", "does not sign a statement of in-toto v1, but 'x'"),
    "early": ("predicateType", "https://model_signing/Digests/v0.1", "made by model-signing before 1.0: sign again"),
    "predicate": ("predicateType", "x", "signs a statement of type 'x', not https://model_signing/signature/v1.0"),
    "shards": (f"{PREDICATE}.method", "shards", "signs files in shards, which is not supported"),
    "method": (f"{PREDICATE}.method", "x", "signs by an unknown method, 'x'"),
    "hash": (f"{PREDICATE}.hash_type", "blake3", "its digests are 'blake3'; only sha256 is supported"),
    "algorithm": (
        "predicate.resources.0.algorithm",
        "blake2",
        "the digest of '.reshard/manifest.json' is 'blake2'; only",
    ),
    "digits": ("predicate.resources.0.digest", "AB", "the digest of '.reshard/manifest.json' is not 64 hexadecimal"),
    "twice": ("predicate.resources.0.name", "rank-0", "lists 'rank-0' twice"),
    "subjects": ("subject", [], "must have one subject, but has 0"),
    "root": ("predicate.resources.0.digest", B, "its subject is not the digest of its files"),
    "ignored": (f"{PREDICATE}.ignore_paths", ["../x"], "lists '../x', which is not a path inside the model"),
}


@pytest.mark.parametrize(("path", "value", "expected"), STATEMENTS.values(), ids=STATEMENTS)
def test_statements_that_are_refused(path: str, value: Any, expected: str) -> None:
    statement = json.loads(dump_statement(FILES))
    set_in(statement, path, value)
    assert refused_statement(statement).startswith(f"model.sig: {expected}")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0b", "\ud800"])
def test_names_outside_the_model_are_refused(name: str) -> None:
    statement = json.loads(dump_statement(FILES))
    statement["predicate"]["resources"][0]["name"] = name
    assert "which is not a path inside the model" in refused_statement(statement)


def test_a_million_files_are_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.signing.statement.MAX_FILES", 2)
    assert refused_statement(json.loads(dump_statement(FILES))) == "model.sig: lists 3 files, more than 2"


def refused(data: bytes) -> str:
    with pytest.raises(SignatureError) as caught:
        parse_bundle(data, "model.sig")
    return str(caught.value)


def refused_statement(statement: dict[str, Any]) -> str:
    with pytest.raises(SignatureError) as caught:
        parse_statement(json.dumps(statement).encode(), "model.sig")
    return str(caught.value)

"""Signatures of models, envelopes of statements, and the keys and certificates that they are checked with."""

import base64
import hashlib
import json
import os
from functools import cache
from random import Random

from cryptography.hazmat.primitives.asymmetric import ec

from reshard.core.errors import SignatureError
from reshard.core.signing.bundle import parse_bundle, sign_files
from reshard.core.signing.dsse import dump_envelope, parse_envelope, sign_envelope
from reshard.core.signing.signer import Signer, load_signer
from reshard.core.signing.statement import SignedFiles, dump_statement, parse_statement
from reshard.core.signing.verifier import Verifier, parse_verifier
from tests.fuzz.mutations import damaged_json
from tests.fuzz.parsers import Parser
from tests.support.signing import Certified, authority, new_key, owner, private_pem, public_pem

_ORIGIN = "hostile.sig"
_VARIABLE = "RESHARD_FUZZ_SIGNING_KEY"
_FILES = SignedFiles(
    "model",
    {name: hashlib.sha256(name.encode()).hexdigest() for name in (".reshard/manifest.json", "rank_0/a.ckpt", "b")},
    ("model.sig", ".reshard/leases"),
)


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    return new_key()


@cache
def _root() -> Certified:
    return authority()


@cache
def _chain() -> tuple[Certified, Certified]:
    middle = authority("middle", _root())
    return owner(middle, key=_key()), middle


def _signer(certificate: bytes | None = None) -> Signer:
    os.environ[_VARIABLE] = private_pem(_key()).decode()
    return load_signer(f"env:{_VARIABLE}", certificate=certificate)


@cache
def _verifiers() -> tuple[Verifier, Verifier]:
    return parse_verifier(public_pem(_key()), "key.pub"), parse_verifier(_root().pem, "ca.pem")


@cache
def _bundles() -> list[bytes]:
    leaf, middle = _chain()
    return [sign_files(_FILES, _signer()), sign_files(_FILES, _signer(leaf.pem + middle.pem))]


def _parse_bundle(data: bytes) -> None:
    bundle = parse_bundle(data, _ORIGIN)
    for verifier in _verifiers():
        try:
            bundle.check(verifier, _ORIGIN)
        except SignatureError as error:
            assert _ORIGIN in str(error)
        else:  # whatever was changed, it is not what was signed
            assert bundle.files == _FILES


def _with_damaged_certificate(random: Random, data: bytes) -> bytes:
    """Changes some bytes of a certificate, or of the signature, which base64 would hide."""
    try:
        document = json.loads(data)
        chain = document["verificationMaterial"]["x509CertificateChain"]["certificates"]
        place, key = random.choice(
            [(random.choice(chain), "rawBytes"), (document["dsseEnvelope"]["signatures"][0], "sig")]
        )
        content = bytearray(base64.b64decode(place[key]))
        for _ in range(random.randint(1, 3)):
            content[random.randrange(len(content))] = random.randrange(256)
        place[key] = base64.b64encode(content).decode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return data
    return json.dumps(document).encode()


def _with_damaged_pem(random: Random, data: bytes) -> bytes:
    """Changes some bytes of what is in a PEM block."""
    blocks = data.split(b"-----")
    number = random.randrange(len(blocks))
    try:
        content = bytearray(base64.b64decode(blocks[number]))
        content[random.randrange(len(content))] = random.randrange(256)
    except (ValueError, LookupError):
        return data
    blocks[number] = b"\n" + base64.encodebytes(content)
    return b"-----".join(blocks)


def _statements() -> list[bytes]:
    return [dump_statement(_FILES), dump_statement(SignedFiles("empty", {}))]


def _parse_statement(data: bytes) -> None:
    files = parse_statement(data, _ORIGIN)
    assert parse_statement(dump_statement(files), _ORIGIN).digests == files.digests


@cache
def _envelopes() -> list[bytes]:
    return [dump_envelope(sign_envelope(b'{"_type": "x"}', _signer(), "ab"))]


def _parse_envelope(data: bytes) -> None:
    envelope = parse_envelope(data, _ORIGIN)
    assert parse_envelope(dump_envelope(envelope), _ORIGIN) == envelope


@cache
def _trusted() -> list[bytes]:
    leaf, middle = _chain()
    return [public_pem(_key()), leaf.pem + middle.pem, public_pem(new_key(ec.SECP521R1())) + public_pem(_key())]


def _parse_trusted(data: bytes) -> None:
    verifier = parse_verifier(data, _ORIGIN)
    assert bool(verifier.keys) is not bool(verifier.certificates)


BUNDLE = Parser("signature", _bundles, _parse_bundle, (damaged_json, _with_damaged_certificate), _ORIGIN)
STATEMENT = Parser("signed-files", _statements, _parse_statement, (damaged_json,), _ORIGIN)
ENVELOPE = Parser("envelope", _envelopes, _parse_envelope, (damaged_json,), _ORIGIN)
TRUSTED = Parser("trusted-keys", _trusted, _parse_trusted, (_with_damaged_pem,), _ORIGIN)

"""Signatures of models as model-signing writes and reads them: `model.sig`, a Sigstore bundle around a DSSE envelope.

Format: https://docs.sigstore.dev/about/bundle, version 0.3, with a public key's hint or a chain of certificates, and
without entries of a transparency log: those belong to keyless signatures, whose check needs a network.
"""

import json
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from reshard.core.errors import InputError, SignatureError
from reshard.core.runtime.records import Record
from reshard.core.signing.certificates import MAX_CHAIN, parse_der_certificate
from reshard.core.signing.documents import decoded, encoded, load_document, shaped
from reshard.core.signing.dsse import Envelope, EnvelopeJson, envelope_members, envelope_of, sign_envelope
from reshard.core.signing.signer import Signer
from reshard.core.signing.statement import SignedFiles, dump_statement, parse_statement
from reshard.core.signing.verifier import Identity, Material, Verifier
from reshard.core.text.printing import printable

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_EARLY_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle+json;version="
_MAX_CERTIFICATE_CHARACTERS = 2**17


class Bundle(Record):
    """A signature that was parsed, and whose key is not checked: nothing in it is proven."""

    files: SignedFiles
    envelope: Envelope
    material: Material

    def check(self, verifier: Verifier, origin: str) -> Identity:
        """Return who signed; a SignatureError unless that is somebody whom `verifier` trusts."""
        identity = verifier.identify(self.material, origin)
        self.envelope.check(identity, origin)
        return identity


class _Hint(Record):
    hint: str | None = None


class _Certificate(Record, rename="camel"):
    raw_bytes: str


class _Chain(Record):
    certificates: tuple[_Certificate, ...]


class _Material(Record, rename="camel"):
    public_key: _Hint | None = None
    x509_certificate_chain: _Chain | None = None
    certificate: Any = None
    tlog_entries: tuple[Any, ...] = ()


class _Bundle(Record, rename="camel"):
    verification_material: _Material
    dsse_envelope: EnvelopeJson | None = None
    message_signature: Any = None


def sign_files(files: SignedFiles, signer: Signer) -> bytes:
    """Return the bytes of `model.sig` for some files."""
    envelope = sign_envelope(dump_statement(files), signer)
    bundle = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": _material_members(signer),
        "dsseEnvelope": envelope_members(envelope),
    }
    return json.dumps(bundle, separators=(",", ":")).encode()


def _material_members(signer: Signer) -> dict[str, Any]:
    if not signer.certificates:
        return {"publicKey": {"hint": signer.hint}, "tlogEntries": []}
    chain = [{"rawBytes": encoded(each.public_bytes(Encoding.DER))} for each in signer.certificates]
    return {"x509CertificateChain": {"certificates": chain}, "tlogEntries": []}


def parse_bundle(data: bytes, origin: str) -> Bundle:
    """Parse a signature; `origin` names it in messages.

    Raises:
        SignatureError: it is damaged, or of an unsupported kind.
    """
    found = load_document(data, origin)
    _check_media_type(found, origin)
    bundle = shaped(found, _Bundle, origin)
    material = bundle.verification_material
    if material.tlog_entries or material.certificate is not None:
        raise SignatureError(
            f"{origin}: a keyless signature, by an identity of Sigstore: its check needs a transparency log, and is "
            "not supported. Sign with a key or a certificate"
        )
    if bundle.dsse_envelope is None:
        kind = "a message" if bundle.message_signature is not None else "nothing"
        raise SignatureError(f"{origin}: signs {kind}, not the files of a model")
    envelope = envelope_of(bundle.dsse_envelope, origin)
    return Bundle(parse_statement(envelope.payload, origin), envelope, _parse_material(material, origin))


def _check_media_type(found: Any, origin: str) -> None:
    media_type = found.get("mediaType") if isinstance(found, dict) else None
    if media_type == MEDIA_TYPE:
        return
    if not isinstance(media_type, str):
        raise SignatureError(f"{origin}: not a signature of a model: it has no media type")
    shown = printable(media_type)[:100]
    if media_type.startswith(_EARLY_MEDIA_TYPE):
        version = shown.removeprefix(_EARLY_MEDIA_TYPE)
        raise SignatureError(f"{origin}: a bundle of version {version}; only 0.3 is supported: sign again")
    raise SignatureError(f"{origin}: its media type is {shown!r}, not {MEDIA_TYPE}")


def _parse_material(found: _Material, origin: str) -> Material:
    if found.x509_certificate_chain is None:
        if found.public_key is None:
            raise SignatureError(f"{origin}: names neither a public key nor a certificate")
        return Material(found.public_key.hint or "")
    if found.public_key is not None:
        raise SignatureError(f"{origin}: names both a public key and a certificate")
    return Material(certificates=_parse_chain(found.x509_certificate_chain.certificates, origin))


def _parse_chain(found: Sequence[_Certificate], origin: str) -> tuple[x509.Certificate, ...]:
    if not 0 < len(found) <= MAX_CHAIN:
        raise SignatureError(f"{origin}: has {len(found)} certificates, where 1 to {MAX_CHAIN} are supported")
    chain = []
    for each in found:
        if len(each.raw_bytes) > _MAX_CERTIFICATE_CHARACTERS:
            raise SignatureError(f"{origin}: a certificate has {len(each.raw_bytes)} characters")
        try:
            chain.append(parse_der_certificate(decoded(each.raw_bytes, "certificate", origin), origin))
        except InputError as error:
            raise SignatureError(error.marked) from error
    return tuple(chain)

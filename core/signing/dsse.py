"""DSSE envelopes: a payload, its type, and a signature over both.

Format: https://github.com/secure-systems-lab/dsse, version 1.0.2. What is signed is not the JSON, but the type and the
payload's bytes with their lengths in front.
"""

import json
from typing import Any

from reshard.core.errors import SignatureError
from reshard.core.runtime.records import Record
from reshard.core.signing.documents import decoded, encoded, parse_document
from reshard.core.signing.signer import Signer
from reshard.core.signing.verifier import Identity
from reshard.core.text.printing import printable

IN_TOTO_TYPE = "application/vnd.in-toto+json"
_MAX_SIGNATURE_BYTES = 1024


class Envelope(Record):
    """A signed payload.

    Attributes:
        signature: in DER.
        key_id: SHA-256 of the public key in PEM, or empty; not signed, so only a hint.
    """

    payload: bytes
    signature: bytes
    key_id: str = ""
    payload_type: str = IN_TOTO_TYPE

    def check(self, identity: Identity, origin: str) -> None:
        """Raise SignatureError unless the signature is by this owner's key."""
        identity.check(self.signature, pre_authentication(self.payload_type, self.payload), origin)


class SignatureJson(Record):
    """A signature, as JSON has it."""

    sig: str
    keyid: str | None = None


class EnvelopeJson(Record, rename="camel"):
    """An envelope, as JSON has it."""

    payload: str
    payload_type: str
    signatures: tuple[SignatureJson, ...]


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed."""
    name = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def sign_envelope(payload: bytes, signer: Signer, key_id: str = "") -> Envelope:
    """Sign an in-toto statement."""
    return Envelope(payload, signer.sign(pre_authentication(IN_TOTO_TYPE, payload)), key_id)


def dump_envelope(envelope: Envelope) -> bytes:
    """Return an envelope's JSON."""
    return json.dumps(envelope_members(envelope), indent=1).encode() + b"\n"


def envelope_members(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope's JSON, as a part of a larger document."""
    return {
        "payload": encoded(envelope.payload),
        "payloadType": envelope.payload_type,
        "signatures": [{"sig": encoded(envelope.signature), "keyid": envelope.key_id}],
    }


def parse_envelope(data: bytes, origin: str) -> Envelope:
    """Parse an envelope with an in-toto statement; nothing is checked with a key yet.

    Raises:
        SignatureError: it is damaged, of another type, or has no signature, or several.
    """
    return envelope_of(parse_document(data, EnvelopeJson, origin), origin)


def envelope_of(found: EnvelopeJson, origin: str) -> Envelope:
    """Return the envelope that JSON describes; raises as `parse_envelope`."""
    if found.payload_type != IN_TOTO_TYPE:
        raise SignatureError(
            f"{origin}: its payload is {printable(found.payload_type)[:100]!r}, not a statement of in-toto, "
            f"{IN_TOTO_TYPE}"
        )
    if len(found.signatures) != 1:
        raise SignatureError(f"{origin}: has {len(found.signatures)} signatures, where one is supported")
    signature = decoded(found.signatures[0].sig, "signature", origin)
    if len(signature) > _MAX_SIGNATURE_BYTES:
        raise SignatureError(f"{origin}: its signature has {len(signature)} bytes, more than any of a supported key")
    payload = decoded(found.payload, "payload", origin)
    return Envelope(payload, signature, found.signatures[0].keyid or "")

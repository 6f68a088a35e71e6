"""Who is trusted: public keys, or certificates that signing ones lead to; and who a signature turns out to be by."""

from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reshard.core.errors import InputError, SignatureError
from reshard.core.runtime.records import Record
from reshard.core.signing.certificates import (
    MAX_TRUSTED,
    check_chain,
    check_may_sign,
    expiry_note,
    parse_certificates,
    subject_of,
)
from reshard.core.signing.curves import algorithm_of, check_curve, hint_of, owner_text
from reshard.core.signing.pem import Block, labels_text, parse_pem
from reshard.core.signing.signer import Signer

_PUBLIC_KEY = "PUBLIC KEY"
_CERTIFICATE = "CERTIFICATE"


class Material(Record):
    """What a signature says of its key; not believed, only compared.

    Attributes:
        hint: SHA-256 of the public key; empty if it is not named.
        certificates: the signing certificate and its chain; empty for a bare key.
    """

    hint: str = ""
    certificates: tuple[x509.Certificate, ...] = ()

    @property
    def text(self) -> str:
        """Who it says it is by, for messages."""
        if self.certificates:
            return f"the certificate of {subject_of(self.certificates[0])}"
        return f"the key with SHA-256 {self.hint}" if self.hint else "an unnamed key"


class Identity(Record):
    """The owner of a key, one that is trusted.

    Attributes:
        hint: SHA-256 of the public key.
        subject: the certificate's; empty for a bare key.
        notes: what a reader should know, in sentences.
    """

    public_key: ec.EllipticCurvePublicKey
    hint: str
    subject: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The owner, for reports."""
        return owner_text(self.hint, self.subject)

    def check(self, signature: bytes, data: bytes, origin: str) -> None:
        """Raise SignatureError unless a signature of some bytes is by this key."""
        try:
            self.public_key.verify(signature, data, algorithm_of(self.public_key))
        except InvalidSignature:
            raise SignatureError(
                f"{origin}: the signature is not valid: what it signs was changed since, or another key than "
                f"{self.hint} signed"
            ) from None


class Verifier(Record):
    """Public keys, or certificates, of which a signature must be by one, or lead to one; there are only one kind."""

    origin: str
    keys: tuple[ec.EllipticCurvePublicKey, ...] = ()
    certificates: tuple[x509.Certificate, ...] = ()

    def identify(self, material: Material, origin: str) -> Identity:
        """Return whose key a signature must be by; the signature itself is still to be checked.

        Raises:
            SignatureError: nobody's who is trusted; `origin` names the signature.
        """
        if self.keys:
            return self._identify_key(material, origin)
        if not material.certificates:
            raise SignatureError(
                f"{origin}: signed by {material.text}, without a certificate, which {self.origin} cannot confirm: give "
                "the public key"
            )
        leaf = material.certificates[0]
        check_chain(material.certificates, self.certificates, origin)
        try:
            key = check_may_sign(leaf, "its certificate")
        except InputError as error:
            raise SignatureError(f"{origin}: {error.marked}") from error
        note = expiry_note(leaf)
        return Identity(key, hint_of(key), subject_of(leaf), (note,) if note else ())

    def _identify_key(self, material: Material, origin: str) -> Identity:
        known = {hint_of(key): key for key in self.keys}
        hint = material.hint
        if material.certificates:
            hint = hint_of(_key_of(material.certificates[0], origin))
        elif not hint and len(known) == 1:  # early signatures do not name their key
            hint = next(iter(known))
        if hint not in known:
            found = f"SHA-256 {hint}" if hint else "one that it does not name"
            raise SignatureError(f"{origin}: signed by another key: {found}, not {' or '.join(known)}")
        return Identity(known[hint], hint)


def _key_of(certificate: x509.Certificate, origin: str) -> ec.EllipticCurvePublicKey:
    try:
        key = certificate.public_key()
        check_curve(key, ec.EllipticCurvePublicKey, "its certificate")
    except (ValueError, UnsupportedAlgorithm):
        raise SignatureError(f"{origin}: its certificate is damaged") from None
    except InputError as error:
        raise SignatureError(f"{origin}: {error.marked}") from error
    assert isinstance(key, ec.EllipticCurvePublicKey)  # just checked
    return key


def verifier_of(signer: Signer) -> Verifier:
    """Return who trusts a signer's own key, and no other."""
    return Verifier(signer.name, keys=(signer.private_key.public_key(),))


def parse_verifier(data: bytes, origin: str) -> Verifier:
    """Parse the public keys or the certificates, in PEM, that signatures are checked with.

    Raises:
        InputError: it has neither, both, or a private key; or one is damaged or of another kind.
    """
    blocks = parse_pem(data, origin)
    labels = {block.label for block in blocks}
    if any("PRIVATE" in label for label in labels):
        raise InputError(f"{origin}: is a private key: signatures are checked with the public one. Keep it secret")
    if labels == {_CERTIFICATE}:
        return Verifier(origin, certificates=parse_certificates(data, origin, MAX_TRUSTED))
    if labels != {_PUBLIC_KEY}:
        raise InputError(f"{origin}: must have either public keys or certificates, but has {labels_text(blocks)}")
    return Verifier(origin, keys=tuple(_public_keys(blocks, origin)))


def _public_keys(blocks: Sequence[Block], origin: str) -> Sequence[ec.EllipticCurvePublicKey]:
    if len(blocks) > MAX_TRUSTED:
        raise InputError(f"{origin}: has {len(blocks)} public keys, more than {MAX_TRUSTED}")
    keys = []
    for block in blocks:
        try:
            key = serialization.load_pem_public_key(block.data)
        except UnsupportedAlgorithm:
            raise InputError(f"{origin}: its curve is not supported") from None
        except ValueError:
            raise InputError(f"{origin}: the public key is damaged") from None
        check_curve(key, ec.EllipticCurvePublicKey, origin)
        assert isinstance(key, ec.EllipticCurvePublicKey)  # just checked
        keys.append(key)
    return keys

"""Certificates: a chain from the signing certificate to a CA that the reader trusts.

cryptography verifies the chain: signatures, issuers, path lengths, name constraints, validity. Its ready-made policies
are those of web servers, so ours is given: a CA is one that says so, may sign certificates where it lists its uses, and
no unknown critical extension is passed over. Time is the signing certificate's beginning, as in model-signing: a
signature says nothing about when it was made.
"""

import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from reshard.core.errors import InputError, SignatureError
from reshard.core.signing.curves import check_curve
from reshard.core.signing.pem import labels_text, parse_pem
from reshard.core.text.printing import printable

MAX_CHAIN = 16
"""Certificates in a signature, or in a file of trusted ones times 64; real chains have three."""
MAX_TRUSTED = 1024
_CERTIFICATE = "CERTIFICATE"


def parse_certificates(data: bytes, origin: str, most: int = MAX_CHAIN) -> tuple[x509.Certificate, ...]:
    """Parse certificates in PEM; `origin` names them in messages.

    Raises:
        InputError: there are none, too many, something else among them, or one is damaged.
    """
    blocks = parse_pem(data, origin)
    if any(block.label != _CERTIFICATE for block in blocks):
        raise InputError(f"{origin}: must have certificates only, but has {labels_text(blocks)}")
    if len(blocks) > most:
        raise InputError(f"{origin}: has {len(blocks)} certificates, more than {most}")
    return tuple(_loaded(x509.load_pem_x509_certificate, block.data, origin) for block in blocks)


def parse_der_certificate(data: bytes, origin: str) -> x509.Certificate:
    """Parse a certificate in DER; an InputError if it is damaged."""
    return _loaded(x509.load_der_x509_certificate, data, origin)


def _loaded(load: Callable[[bytes], x509.Certificate], data: bytes, origin: str) -> x509.Certificate:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of serial numbers that some old authorities have
            certificate = load(data)
            # they are parsed only when asked for: what is damaged there has to be found here
            certificate.subject.rfc4514_string()
            certificate.issuer.rfc4514_string()
            list(certificate.extensions)
            if certificate.not_valid_before_utc > certificate.not_valid_after_utc:
                raise ValueError("ends before it begins")
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension):
        raise InputError(f"{origin}: a certificate is damaged") from None
    return certificate


def subject_of(certificate: x509.Certificate) -> str:
    """Return the subject of a certificate as text, such as CN=release,O=Example."""
    return printable(certificate.subject.rfc4514_string())


def check_may_sign(certificate: x509.Certificate, origin: str) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate that may sign: one with a supported curve, for signatures or for code.

    Raises:
        InputError: it may not.
    """
    try:
        key = certificate.public_key()
        may_sign = _is_for_signing(certificate.extensions)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{origin}: its key is damaged, or of an unsupported kind") from None
    check_curve(key, ec.EllipticCurvePublicKey, origin)
    assert isinstance(key, ec.EllipticCurvePublicKey)  # just checked
    if not may_sign:
        raise InputError(
            f"{origin}: {subject_of(certificate)} may not sign: neither digitalSignature is among its key usages, nor "
            "codeSigning among its extended ones"
        )
    return key


def _is_for_signing(extensions: x509.Extensions) -> bool:
    for extension in extensions:
        if isinstance(extension.value, x509.KeyUsage) and extension.value.digital_signature:
            return True
        if isinstance(extension.value, x509.ExtendedKeyUsage) and ExtendedKeyUsageOID.CODE_SIGNING in extension.value:
            return True
    return False


def check_chain(chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate], origin: str) -> None:
    """Check that a chain, the signing certificate first, leads to a trusted one; `origin` names its signature.

    Raises:
        SignatureError: it does not.
    """
    leaf = chain[0]
    if leaf in trusted:
        return
    store = verification.Store(list(trusted))
    policy = verification.PolicyBuilder().store(store).time(leaf.not_valid_before_utc)
    policy = policy.extension_policies(ca_policy=_authority_policy(), ee_policy=_leaf_policy())
    try:
        policy.build_client_verifier().verify(leaf, list(chain[1:]))
    except (verification.VerificationError, ValueError) as error:
        raise SignatureError(
            f"{origin}: signed with the certificate of {subject_of(leaf)}, issued by "
            f"{printable(leaf.issuer.rfc4514_string())}, which does not lead to a certificate that is trusted here: "
            f"{printable(str(error))[:300]}"
        ) from error


def expiry_note(certificate: x509.Certificate) -> str:
    """Return a sentence about a certificate that has expired by now, or is not valid yet; empty for others."""
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < now:
        return (
            f"the certificate of {subject_of(certificate)} expired on {end:%Y-%m-%d}: the signature was checked as of "
            "its beginning, and does not prove when it was made"
        )
    if begin > now:
        return f"the certificate of {subject_of(certificate)} is not valid before {begin:%Y-%m-%d}"
    return ""


def _authority_policy() -> verification.ExtensionPolicy:
    policy = verification.ExtensionPolicy.permit_all()
    policy = policy.require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, _check_authority)
    return policy.may_be_present(x509.KeyUsage, verification.Criticality.AGNOSTIC, _check_signs_certificates)


def _leaf_policy() -> verification.ExtensionPolicy:
    return verification.ExtensionPolicy.permit_all()


def _check_authority(
    policy: verification.Policy, certificate: x509.Certificate, extension: x509.BasicConstraints
) -> None:
    if not extension.ca:
        raise ValueError("an issuer is not a certificate authority")


def _check_signs_certificates(
    policy: verification.Policy, certificate: x509.Certificate, extension: x509.KeyUsage | None
) -> None:
    if extension is not None and not extension.key_cert_sign:
        raise ValueError("an issuer may not sign certificates")

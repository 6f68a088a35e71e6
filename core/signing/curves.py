"""The keys that signatures are made with: ECDSA on three curves of NIST, each with its hash, as in model-signing."""

import hashlib
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reshard.core.errors import InputError

_HASHES: dict[str, hashes.HashAlgorithm] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
_CURVES = "P-256, P-384 or P-521"
_NAMES = (("RSA", "an RSA"), ("Ed25519", "an Ed25519"), ("Ed448", "an Ed448"), ("DSA", "a DSA"), ("DH", "a DH"))


def check_curve(key: Any, kind: type[Any], origin: str) -> None:
    """Raise InputError unless a private or public key is of `kind`, and on one of the three curves."""
    if not isinstance(key, kind):
        name = type(key).__name__.lstrip("_")
        shown = next((text for prefix, text in _NAMES if name.startswith(prefix)), "an unsupported")
        raise InputError(f"{origin}: is {shown} key; signatures take elliptic curve keys: {_CURVES}")
    if key.curve.name not in _HASHES:
        raise InputError(f"{origin}: its curve is {key.curve.name}; signatures take {_CURVES}")


def algorithm_of(key: ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) -> ec.ECDSA:
    """Return the algorithm of a key: the hash follows from its curve."""
    return ec.ECDSA(_HASHES[key.curve.name])


def hint_of(key: ec.EllipticCurvePublicKey) -> str:
    """Return what a bundle says of its key: SHA-256 of its SubjectPublicKeyInfo in PEM."""
    return hashlib.sha256(
        key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def owner_text(hint: str, subject: str) -> str:
    """Name the owner of a key by its SHA-256, and by the subject of the certificate if there is one."""
    key = f"the key with SHA-256 {hint}"
    return f"{subject}, {key}" if subject else key

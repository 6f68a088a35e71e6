"""Who signs: a private key kept under a name, and the certificates that say whose it is.

The key is PEM, PKCS#8 or SEC1, plain or encrypted with a passphrase kept under another name. Neither is ever shown: no
message repeats them, and none is caused by an error that might.
"""

from collections.abc import Mapping

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reshard.core.errors import InputError
from reshard.core.runtime.named_values import KEY_ADVICE, Resolver, bytes_of
from reshard.core.runtime.records import Record
from reshard.core.signing.certificates import check_may_sign, parse_certificates, subject_of
from reshard.core.signing.curves import algorithm_of, check_curve, hint_of, owner_text
from reshard.core.signing.pem import Block, labels_text, parse_pem
from reshard.core.text.options import option

_ENCRYPTED = "ENCRYPTED PRIVATE KEY"
_KINDS = ("PRIVATE KEY", "EC PRIVATE KEY", _ENCRYPTED)
_REFUSED = {
    "RSA PRIVATE KEY": "is an RSA key; signatures take elliptic curve keys: P-256, P-384 or P-521",
    "DSA PRIVATE KEY": "is a DSA key; signatures take elliptic curve keys: P-256, P-384 or P-521",
    "OPENSSH PRIVATE KEY": "is a key in the format of OpenSSH: make one with openssl ecparam -name prime256v1 -genkey",
    "PUBLIC KEY": "is a public key; the private one signs",
    "CERTIFICATE": "is a certificate; the private key signs",
}
_OLD_ENCRYPTION = b"Proc-Type: 4,ENCRYPTED"  # in an EC PRIVATE KEY


class Signer(Record):
    """A private key and the certificates of its owner, leaf first; often there are none.

    Attributes:
        hint: SHA-256 of the public key, as signatures name it.
        name: name of the key, for messages.
    """

    private_key: ec.EllipticCurvePrivateKey
    hint: str
    certificates: tuple[x509.Certificate, ...] = ()
    name: str = "the key"

    @property
    def subject(self) -> str:
        """The subject of the certificate; empty without one."""
        return subject_of(self.certificates[0]) if self.certificates else ""

    @property
    def text(self) -> str:
        """The owner, for reports."""
        return owner_text(self.hint, self.subject)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes, in DER."""
        return self.private_key.sign(data, algorithm_of(self.private_key))

    def __repr__(self) -> str:
        return f"Signer(hint={self.hint!r}, name={self.name!r})"  # no secret in messages and logs


def load_signer(
    key: str,
    passphrase: str = "",
    certificate: bytes | None = None,
    resolvers: Mapping[str, Resolver] | None = None,
    *,
    passphrase_option: str = "sign_passphrase",
    certificate_origin: str = "the certificate",
) -> Signer:
    """Look up a private key by name, and the passphrase that it is encrypted with.

    `certificate` is a chain in PEM, the key's own certificate first. `passphrase_option` and
    `certificate_origin`, the file that it is from, are for messages.

    Raises:
        InputError: nothing is kept under a name, the key is of another kind, the passphrase is wrong or missing, or the
            certificate is another key's.
    """
    resolvers = resolvers or {}
    data = bytes_of(key, resolvers, f"the name of a key {KEY_ADVICE}")
    private_key = _parse_key(data, key, passphrase, resolvers, passphrase_option)
    public_key = private_key.public_key()
    chain = () if certificate is None else parse_certificates(certificate, certificate_origin)
    if chain:
        check_may_sign(chain[0], certificate_origin)
        if chain[0].public_key() != public_key:
            raise InputError(
                f"{certificate_origin}: the certificate of {subject_of(chain[0])} is not that of {key}: its key is "
                "another one. List the key's own certificate first"
            )
    return Signer(private_key, hint_of(public_key), chain, key)


def _parse_key(
    data: bytes, name: str, passphrase: str, resolvers: Mapping[str, Resolver], passphrase_option: str
) -> ec.EllipticCurvePrivateKey:
    if data.startswith(b"pkcs11:"):
        raise InputError(f"{name}: is the URI of a PKCS#11 token, which is not supported: keep the key itself there")
    block = _key_block(parse_pem(data, name), name)
    is_encrypted = block.label == _ENCRYPTED or _OLD_ENCRYPTION in block.data
    if is_encrypted and not passphrase:
        raise InputError(f"{name}: is encrypted: name its passphrase with {option(passphrase_option)}")
    if passphrase and not is_encrypted:
        raise InputError(f"{name}: is not encrypted, but {passphrase} is named as its passphrase: name none")
    secret = _passphrase(passphrase, resolvers) if is_encrypted else None
    try:
        key = serialization.load_pem_private_key(block.data, secret)
    except UnsupportedAlgorithm:
        raise InputError(f"{name}: its curve or its encryption is not supported") from None
    except (ValueError, TypeError):
        remedy = f"the passphrase {passphrase} is wrong, or the key is damaged" if is_encrypted else "is damaged"
        raise InputError(f"{name}: {remedy}") from None
    check_curve(key, ec.EllipticCurvePrivateKey, name)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # just checked
    return key


def _key_block(blocks: list[Block], name: str) -> Block:
    """Return the one private key of a PEM text. What openssl writes before it, the name of its curve, says no more."""
    keys = [block for block in blocks if block.label in _KINDS]
    if len(keys) > 1:
        raise InputError(f"{name}: has {len(keys)} private keys: keep one")
    if keys:
        return keys[0]
    for block in blocks:
        if block.label in _REFUSED:
            raise InputError(f"{name}: {_REFUSED[block.label]}")
    raise InputError(f"{name}: has no private key, but {labels_text(blocks)}")


def _passphrase(name: str, resolvers: Mapping[str, Resolver]) -> bytes:
    value = bytes_of(name, resolvers, f"the name of a passphrase {KEY_ADVICE}")
    return value.removesuffix(b"\n").removesuffix(b"\r")

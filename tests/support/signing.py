"""Keys and certificates to sign with, in files."""

import base64
import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

DIGITAL_SIGNATURE = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
SIGNS_CERTIFICATES = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
ENCIPHERS = x509.KeyUsage(False, False, True, False, False, False, False, False, False)


def new_key(curve: ec.EllipticCurve | None = None) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve or ec.SECP256R1())


def private_pem(key, passphrase: str = "", form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase:
        encryption = BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, form, encryption)


def public_pem(key) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def kept(path: Path, content: bytes) -> str:
    """Keep a value in a file, and return its name."""
    path.write_bytes(content)
    return f"file:{path}"


class Certified:
    """A key with a certificate, and who issued it; nobody: itself."""

    def __init__(
        self,
        name: str,
        issuer: "Certified | None" = None,
        *,
        key=None,
        usage: x509.KeyUsage | None = None,
        is_authority: bool | None = False,
        path_length: int | None = None,
        days: tuple[int, int] = (-10, 10),
        extensions: tuple[tuple[x509.ExtensionType, bool], ...] = (),
    ) -> None:
        self.key = key or new_key()
        self.issuer = issuer
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(issuer.certificate.subject if issuer else _name(name))
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
        )
        if is_authority is not None:
            builder = builder.add_extension(x509.BasicConstraints(is_authority, path_length), critical=True)
        if usage:
            builder = builder.add_extension(usage, critical=True)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        self.certificate: x509.Certificate = builder.sign(issuer.key if issuer else self.key, SHA256())

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def chain_pem(self) -> bytes:
        """The certificate, and those that issued it but the root."""
        above = self.issuer.chain_pem if self.issuer and self.issuer.issuer else b""
        return self.pem + above


def authority(name: str = "root", issuer: Certified | None = None, **how: Any) -> Certified:
    return Certified(name, issuer, **dict[str, Any](usage=SIGNS_CERTIFICATES, is_authority=True) | how)


def owner(issuer: Certified | None, name: str = "release", **how: Any) -> Certified:
    return Certified(name, issuer, **dict[str, Any](usage=DIGITAL_SIGNATURE) | how)


def signed_digests(signature: bytes, key) -> dict[str, str]:
    """What a signature says, checked with this key by the rules of DSSE, written anew here."""
    envelope = json.loads(signature)["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    key.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed, ec.ECDSA(SHA256()))
    return {each["name"]: each["digest"] for each in json.loads(payload)["predicate"]["resources"]}


def digests_of(directory: Path) -> dict[str, str]:
    """The SHA-256 of all files below a directory but its signature, by path."""
    files = (path for path in directory.rglob("*") if path.is_file() and path != directory / "model.sig")
    return {str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest() for path in files}


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

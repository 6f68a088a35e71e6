"""Sealed documents beside an encrypted target: records, the plan, anything that names parameters.

Whatever the mode of the files, a document is sealed with AES-256-GCM under a key that HKDF-SHA256 derives from the
target's key: documents are authentic even where the files are not, and no key encrypts both. Plain digests would
confirm guesses of the contents, so digests are HMACs.

    the line "reshard-sealed-1" | nonce, 12 bytes | ciphertext | tag, 16 bytes
"""

import hmac
import os
from functools import lru_cache
from typing import TYPE_CHECKING

from reshard.core.errors import InputError
from reshard.core.runtime.keys import Key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MARK = b"reshard-sealed-1\n"
_NONCE_BYTES = 12
_DIGEST_CHARACTERS = 32


def seal(data: bytes, key: Key, purpose: str) -> bytes:
    """Encrypt and authenticate `data`; `purpose` names the kind of document."""
    nonce = os.urandom(_NONCE_BYTES)
    return _MARK + nonce + _cipher(key).encrypt(nonce, data, purpose.encode())


def is_sealed(data: bytes) -> bool:
    """True for the output of `seal`."""
    return data.startswith(_MARK)


def unseal(data: bytes, key: Key | None, purpose: str, origin: str) -> bytes:
    """Decrypt a sealed document, or return a plain one if no key is given; `origin` names it in messages.

    Raises:
        InputError: the document is sealed, and the key is missing or wrong, or the document was changed; or it is not
            sealed, although a key is given.
    """
    if key is None:
        if is_sealed(data):
            raise InputError(f"{origin}: is encrypted: name the key that it was written with")
        return data
    if not is_sealed(data):
        raise InputError(f"{origin}: is not encrypted, but {key.name} is named as its key")
    from cryptography.exceptions import InvalidTag

    sealed = data[len(_MARK) :]
    try:
        return _cipher(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
    except (InvalidTag, ValueError):
        raise InputError(
            f"{origin}: cannot be decrypted: {key.name} is not the key that it was written with, or it was changed"
        ) from None


def keyed_digest(data: bytes, key: Key) -> str:
    """Return an HMAC in hex, as long as plain digests are."""
    return hmac.digest(_derived(key, "digest"), data, "sha256").hex()[:_DIGEST_CHARACTERS]


def _cipher(key: Key) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # not needed by plain conversions

    return AESGCM(_derived(key, "seal"))


@lru_cache(maxsize=16)
def _derived(key: Key, use: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=None, info=f"reshard {key.mode} {use}".encode()).derive(key.secret)

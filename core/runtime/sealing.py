"""What stands beside an encrypted target, sealed with the target's key: records, the plan, what names parameters.

Whatever the mode of the files, it is AES-256-GCM under a key of its own, which HKDF-SHA256 derives from the target's:
so what is sealed is authentic even where the files are not, and no key encrypts files and records alike. A digest that
everybody may see would tell who guesses contents whether the guess is right: such digests are HMACs.

    the line "reshard-sealed-1" | nonce, 12 bytes | ciphertext | tag, 16 bytes
"""

import hmac
import os
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from reshard.core.errors import InputError
from reshard.core.runtime.keys import Key

_MARK = b"reshard-sealed-1\n"
_NONCE_BYTES = 12
_DIGEST_CHARACTERS = 32


def seal(data: bytes, key: Key, purpose: str) -> bytes:
    """`data`, so that only who has the key can read it, or make it anew; `purpose` says what it is."""
    nonce = os.urandom(_NONCE_BYTES)
    return _MARK + nonce + AESGCM(_derived(key, "seal")).encrypt(nonce, data, purpose.encode())


def is_sealed(data: bytes) -> bool:
    """Whether it was made by `seal`."""
    return data.startswith(_MARK)


def unseal(data: bytes, key: Key | None, purpose: str, origin: str) -> bytes:
    """What was sealed; `origin` is what messages call it.

    Raises:
        InputError: it is sealed, and the key is missing or not the right one, or it was changed; or it is not sealed,
            although a key is there.
    """
    if key is None:
        if is_sealed(data):
            raise InputError(f"{origin}: is encrypted: name the key that it was written with")
        return data
    if not is_sealed(data):
        raise InputError(f"{origin}: is not encrypted, but {key.name} is named as its key")
    sealed = data[len(_MARK) :]
    try:
        return AESGCM(_derived(key, "seal")).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
    except (InvalidTag, ValueError):
        raise InputError(
            f"{origin}: cannot be decrypted: {key.name} is not the key that it was written with, or it was changed"
        ) from None


def keyed_digest(data: bytes, key: Key) -> str:
    """A digest in hex, as long as others are, that says nothing to who has not the key."""
    return hmac.digest(_derived(key, "digest"), data, "sha256").hex()[:_DIGEST_CHARACTERS]


@lru_cache(maxsize=16)
def _derived(key: Key, use: str) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=f"reshard {key.mode} {use}".encode()).derive(key.secret)

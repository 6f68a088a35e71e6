"""JSON documents that end in a digest of themselves, so that any changed byte is noticed.

    {…,
     "digest": "32 hexadecimal digits"
    }

The digest is XXH3-128 over all bytes before the comma that precedes it.
"""

import re

import xxhash

_HEAD, _END = b',\n "digest": "', b'"\n}\n'
_ENDS_IN_DIGEST = re.compile(rb'"digest"\s*:\s*"[^"]*"\s*\}\s*\Z')


def add_digest(data: bytes) -> bytes:
    """Add a JSON object's digest as its last field."""
    body = data.rstrip().removesuffix(b"}").rstrip()
    return body + _HEAD + _digest(body) + _END


def split_digest(data: bytes) -> tuple[bytes, bool]:
    """Return a JSON object's bytes without their digest, and whether they had one; a ValueError if it is wrong."""
    body, head, rest = data.rpartition(_HEAD)
    if not head and not _ENDS_IN_DIGEST.search(data):
        return data, False
    if not head or rest != _digest(body) + _END:
        raise ValueError("it was changed: its bytes do not match the digest that it ends in")
    return body + b"}", True


def _digest(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()

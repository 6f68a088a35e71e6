"""PEM text: which blocks it has, and what they are called when they are not the ones wanted."""

import re
from collections.abc import Collection

from reshard.core.errors import InputError
from reshard.core.runtime.records import Record

MAX_PEM_BYTES = 2**20
_BLOCK = re.compile(
    rb"-----BEGIN (?P<label>[A-Z0-9 ]{1,64})-----\r?\n.*?-----END (?P=label)-----[ \t]*(\r?\n|$)", re.DOTALL
)
_DER_SEQUENCE = b"\x30"


class Block(Record):
    """One block of a PEM text; `data` includes the lines that begin and end it."""

    label: str
    data: bytes


def parse_pem(data: bytes, origin: str) -> list[Block]:
    """Return the blocks of a PEM text; `origin` names it in messages, which never repeat it.

    Raises:
        InputError: it is too large, or has no blocks.
    """
    if len(data) > MAX_PEM_BYTES:
        raise InputError(f"{origin}: has more than {MAX_PEM_BYTES} bytes: not a key or certificate in PEM")
    blocks = [Block(match["label"].decode(), match[0]) for match in _BLOCK.finditer(data)]
    if blocks:
        return blocks
    if data.startswith(_DER_SEQUENCE):
        raise InputError(f"{origin}: is DER, not PEM: convert it with openssl, whose -inform DER reads it")
    raise InputError(f"{origin}: is not PEM: there is no line -----BEGIN …-----, or no -----END …----- after it")


def labels_text(blocks: Collection[Block]) -> str:
    """Name the kinds of blocks, for messages."""
    return ", ".join(dict.fromkeys(block.label for block in blocks))

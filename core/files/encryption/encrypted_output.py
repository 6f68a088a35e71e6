"""Encrypts checkpoint files block by block while they are written."""

import os
from typing import Any

from reshard.core.files.encryption.cipher_blocks import CELL_BYTES, IV_BYTES, PIECE_BYTES, block_cipher, layout_of
from reshard.core.runtime.budget import CIPHER_BLOCK_BYTES
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.storage.store import Buffer
from reshard.core.storage.writing import OutputFile


class EncryptedOutput:
    """Encrypts into another file, block by block; each block has a random iv of its own."""

    def __init__(self, file: OutputFile, key: Key, block_bytes: int = CIPHER_BLOCK_BYTES) -> None:
        self._file = file
        self._key = key
        self._block_bytes = block_bytes
        self._layout = layout_of(key.mode)
        self._block = memoryview(bytearray(self._layout.head_bytes + block_bytes + 2 * CELL_BYTES))
        self._iv = b""
        self._encryptor: Any = None
        self._plain_bytes = 0
        self._stop = 0

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`, which the caller may then reuse."""
        view = memoryview(buffer).cast("B")
        while view:
            if self._encryptor is None:
                self._begin()
            piece = view[: min(PIECE_BYTES, self._block_bytes - self._plain_bytes)]
            self._stop += self._encryptor.update_into(piece, self._block[self._stop :])
            self._plain_bytes += len(piece)
            if self._plain_bytes == self._block_bytes:
                self._end()
            view = view[len(piece) :]

    def finish(self) -> None:
        """Write the last block."""
        if self._encryptor is not None:
            self._end()

    def _begin(self) -> None:
        self._iv = os.urandom(IV_BYTES)
        self._encryptor = block_cipher(self._key, self._iv).encryptor()
        self._plain_bytes = 0
        self._stop = self._layout.head_bytes

    def _end(self) -> None:
        if self._layout.padded:
            padding = CELL_BYTES - self._plain_bytes % CELL_BYTES
            self._stop += self._encryptor.update_into(bytes([padding]) * padding, self._block[self._stop :])
        self._encryptor.finalize()
        tag = self._encryptor.tag if self._layout.tagged else b""
        head_bytes = self._layout.head_bytes
        self._block[:head_bytes] = self._layout.head(tag, self._iv, self._stop - head_bytes)
        self._file.write(self._block[: self._stop])
        self._encryptor = None


def encrypted_bytes(plain_bytes: int, mode: str, block_bytes: int = CIPHER_BLOCK_BYTES) -> int:
    """Return the size of the file that `EncryptedOutput` makes of `plain_bytes`; an empty mode: not encrypted."""
    if not mode:
        return plain_bytes
    layout = layout_of(EncryptionMode(mode))
    full, rest = divmod(plain_bytes, block_bytes)

    def stored(length: int) -> int:
        return layout.head_bytes + ((length // CELL_BYTES + 1) * CELL_BYTES if layout.padded else length)

    return full * stored(block_bytes) + (stored(rest) if rest else 0)

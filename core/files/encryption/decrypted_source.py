"""Reads encrypted checkpoint files as the plain files inside.

Any part of a block can be decrypted without the rest: AES-GCM is AES in counter mode, and CBC needs only the 16 bytes
of cipher before. So reading needs no memory for whole blocks, which MindSpore makes 64 MiB long.
"""

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from reshard.core.errors import CheckpointError
from reshard.core.files.encryption.cipher_blocks import (
    CELL_BYTES,
    FIRST_COUNTER,
    MAGIC_BYTES,
    NONCE_BYTES,
    PIECE_BYTES,
    TAG_BYTES,
    block_cipher,
    cipher_blocks_of,
    undecryptable,
)
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.store import Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.base import CipherContext


class DecryptedSource:
    """An encrypted file as the plain one inside: a SourceFile with the encrypted file's version."""

    def __init__(self, file: SourceFile, key: Key) -> None:
        """Find the blocks of `file`, with many requests at once if it is remote."""
        self._file = file
        self._key = key
        self._blocks = cipher_blocks_of(file, key)
        self.location = file.location
        self.version = file.version
        self.size_bytes = self._blocks.plain_bytes

    @property
    def mode(self) -> EncryptionMode:
        """Encryption mode."""
        return self._key.mode

    @property
    def key_name(self) -> str:
        """Name of the key in messages."""
        return self._key.name

    @property
    def stored_bytes(self) -> int:
        """Size of the encrypted file."""
        return self._file.size_bytes

    @property
    def is_authenticated(self) -> bool:
        """True if every block has a tag, which reveals changes."""
        return self._blocks.layout.tagged

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset` on; a file that is near is decrypted in pieces."""
        self._check_inside(offset, len(buffer))
        if not self.location.store.is_near:
            [data] = self.read_many([(offset, len(buffer))])
            buffer[:] = data
            return
        # the cell before, and both ends rounded to cells
        around_bytes = 3 * CELL_BYTES if self._blocks.layout.padded else 0
        scratch = memoryview(bytearray(min(len(buffer) + around_bytes, PIECE_BYTES) if around_bytes else 0))
        while buffer:
            number = self._blocks.at(offset)
            count = min(len(buffer), self._blocks.stop(number) - offset)
            if around_bytes:
                count = min(count, len(scratch) - around_bytes)
                self._read_chained(number, offset, buffer[:count], scratch)
            else:
                self._read_counted(number, offset, buffer[:count])
            offset += count
            buffer = buffer[count:]

    def _read_counted(self, number: int, offset: int, buffer: memoryview) -> None:
        start, _ = self._blocks.stored_range(offset, len(buffer))
        self._file.read_into(start, buffer)
        decryptor = self._decryptor(number, offset)
        for first in range(0, len(buffer), PIECE_BYTES):
            piece = buffer[first : first + PIECE_BYTES]
            decryptor.update_into(piece, piece)

    def _read_chained(self, number: int, offset: int, buffer: memoryview, scratch: memoryview) -> None:
        start, length = self._blocks.stored_range(offset, len(buffer))
        cipher = scratch[:length]
        self._file.read_into(start, cipher)
        buffer[:] = self._decrypt_in_block(number, offset, len(buffer), cipher)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges; each is one range of the encrypted file, including the few bytes between blocks."""
        for offset, length in ranges:
            self._check_inside(offset, length)
        stored = [self._blocks.stored_range(offset, length) for offset, length in ranges if length]
        answers = iter(zip(stored, self._file.read_many(stored), strict=True) if stored else ())
        return [self._decrypt(offset, length, *next(answers)) if length else b"" for offset, length in ranges]

    def _decrypt(self, offset: int, length: int, stored: tuple[int, int], cipher: bytes) -> bytes:
        """Decrypt a range of the encrypted file, without holding both its pieces and their concatenation in memory."""
        plain, stop = BytesIO(), offset + length
        while offset < stop:
            number = self._blocks.at(offset)
            part_stop = min(stop, self._blocks.stop(number), offset + PIECE_BYTES)
            start, count = self._blocks.stored_range(offset, part_stop - offset)
            part = memoryview(cipher)[start - stored[0] :][:count]
            plain.write(self._decrypt_in_block(number, offset, part_stop - offset, part))
            offset = part_stop
        return plain.getvalue()

    def _decrypt_in_block(self, number: int, offset: int, length: int, cipher: memoryview) -> bytes:
        """Decrypt bytes of one block from `cipher`, its `stored_range`."""
        if not self._blocks.layout.padded:
            return self._decryptor(number, offset).update(cipher)
        inside = offset - self._blocks.start(number)
        if inside < CELL_BYTES:
            chained, iv = cipher, self._blocks.iv(number)
        else:
            chained, iv = cipher[CELL_BYTES:], bytes(cipher[:CELL_BYTES])
        plain = block_cipher(self._key, iv).decryptor().update(chained)
        return plain[inside % CELL_BYTES :][:length]

    def _decryptor(self, number: int, offset: int) -> "CipherContext":
        """Return the decryptor of an AES-GCM block from a byte of the plain file on, in counter mode."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        cells, skipped = divmod(offset - self._blocks.start(number), CELL_BYTES)
        counter = self._blocks.iv(number)[:NONCE_BYTES] + (FIRST_COUNTER + cells).to_bytes(4, "big")
        decryptor = Cipher(algorithms.AES(self._key.secret), modes.CTR(counter)).decryptor()
        decryptor.update(bytes(skipped))
        return decryptor

    def stream(self, take_stored: Callable[[Buffer], None] = lambda _: None) -> Iterator[memoryview]:
        """Yield the plain file in pieces; each is valid until the next one is requested.

        `take_stored` receives the bytes of the encrypted file, in order.

        A block's tag is checked once the block has been read: trust nothing before the stream has ended without an
        error. It waits for requests, so concurrent requests must not use it.
        """
        plain = memoryview(bytearray(PIECE_BYTES + CELL_BYTES))
        block, left = -1, 0
        decryptor: Any = None
        for number, stored in self._stored_pieces():
            take_stored(stored)
            piece = memoryview(stored)
            if number != block:
                self._finish(decryptor, block)
                head, piece = bytes(piece[: self._blocks.layout.head_bytes]), piece[self._blocks.layout.head_bytes :]
                block, left = number, self._blocks.stop(number) - self._blocks.start(number)
                tag = head[MAGIC_BYTES:][:TAG_BYTES] if self.is_authenticated else None
                decryptor = block_cipher(self._key, self._blocks.iv(number), tag).decryptor()
            for first in range(0, len(piece), PIECE_BYTES):
                count = min(left, decryptor.update_into(piece[first : first + PIECE_BYTES], plain))
                left -= count  # what is beyond is padding
                yield plain[:count]
        self._finish(decryptor, block)

    def check_tags(self) -> None:
        """Read the whole file and check the tags of its blocks, if they have any."""
        if self.is_authenticated:
            for _ in self.stream():
                pass

    def close(self) -> None:
        """Close the encrypted file."""
        self._file.close()

    def _stored_pieces(self) -> Iterator[tuple[int, Buffer]]:
        """Yield the blocks as stored, in pieces, each with its block's number; the first piece includes the head."""
        head_bytes = self._blocks.layout.head_bytes
        ranges = (
            (self._blocks.cipher_offset(number) - head_bytes, head_bytes + self._blocks.cipher_bytes(number))
            for number in range(len(self._blocks))
        )
        return read_in_blocks(self._file, ranges, PIECE_BYTES)

    def _finish(self, decryptor: Any, number: int) -> None:
        if decryptor is None or not self.is_authenticated:
            return
        from cryptography.exceptions import InvalidTag

        try:
            decryptor.finalize()
        except InvalidTag:
            offset = self._blocks.cipher_offset(number) - self._blocks.layout.head_bytes
            raise undecryptable(self._file, self._key, f"the block at byte {offset} fails its tag") from None

    def _check_inside(self, offset: int, length: int) -> None:
        if offset + length > self.size_bytes:
            raise CheckpointError(
                f"{self.location}: ends at byte {self.size_bytes} (decrypted), earlier than it should: truncated or "
                "changed"
            )


def decrypted(file: SourceFile, key: Key | None) -> SourceFile:
    """Return a file to read as plaintext: decrypted if there is a key. Closes it on failure.

    Raises:
        CheckpointError: the file is not encrypted, or in another mode; it is damaged, or the key is wrong.
        StorageError: the file cannot be read.
    """
    if key is None:
        return file
    try:
        if isinstance(file, JoinedFile):
            return JoinedFile(file.location, [decrypted(part, key) for part in file.parts])
        return DecryptedSource(file, key)
    except BaseException:
        file.close()
        raise

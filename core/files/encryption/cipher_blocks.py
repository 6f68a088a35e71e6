"""Encrypted checkpoint files: the plain file in blocks, each encrypted on its own; integers are little-endian.

    AES-GCM           u32 0x7F3A5ED8 | tag, 16 bytes | u32 n | u32 16 | iv, 16 bytes | u32 cipher bytes | cipher
    AES-CBC, SM4-CBC  u32 0x7F3A5ED9, 0x7F3A5EDA     | u32 n | u32 16 | iv, 16 bytes | u32 cipher bytes | cipher
    early releases    u32 0x7F3A5ED8, whatever mode  | u32 n | u32 16 | iv, 16 bytes | u32 cipher bytes | cipher

n counts the bytes from there to the cipher's end. AES-GCM uses the first 12 bytes of the iv as its nonce; its early
variant has no tag, so changes cannot be detected. CBC pads each block as PKCS#7 does.
"""

import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

from reshard.core.errors import CheckpointError
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher

MAGICS = {
    EncryptionMode.AES_GCM: b"\xd8\x5e\x3a\x7f",
    EncryptionMode.AES_CBC: b"\xd9\x5e\x3a\x7f",
    EncryptionMode.SM4_CBC: b"\xda\x5e\x3a\x7f",
}
"""First bytes of every block."""

MAGIC_BYTES = 4
TAG_BYTES = 16
IV_BYTES = 16
NONCE_BYTES = 12
CELL_BYTES = 16
"""Cipher block of AES and SM4."""
PIECE_BYTES = 128 << 10
"""Bytes decrypted at a time: few enough for the processor's caches, and for other threads not to wait long.

No thread of this process runs while a cipher does, and SM4 takes about a second for 88 MB.
"""
_SIZES_BYTES = 8 + IV_BYTES + 4
"""n, the iv's length, the iv, the cipher's length."""
FIRST_COUNTER = 2
"""Counter of a block's contents in AES-GCM, whose tag uses the first one."""
_BORDERS_AT_ONCE = 256
_MAX_KNOWN_BLOCKS = 1 << 18
"""Each takes 32 bytes."""


class KeyMistakeError(CheckpointError):
    """A key for a file that is not encrypted, none for one that is, or one of another mode; the file itself is fine."""


class BlockLayout(Record):
    """The layout of a file's blocks."""

    mode: EncryptionMode
    magic: bytes
    tagged: bool

    @property
    def head_bytes(self) -> int:
        """Length of a block's head, which precedes the cipher."""
        return self.sizes_at + _SIZES_BYTES

    @property
    def sizes_at(self) -> int:
        """Offset of the sizes and the iv in the head."""
        return MAGIC_BYTES + (TAG_BYTES if self.tagged else 0)

    @property
    def padded(self) -> bool:
        """True if blocks are chained and padded to whole cells."""
        return self.mode is not EncryptionMode.AES_GCM

    def cipher_bytes(self, head: bytes) -> int | None:
        """Return the cipher's length from a block's head; None if it is not such a head."""
        if len(head) < self.head_bytes or not head.startswith(self.magic):
            return None
        rest_bytes, iv_bytes = struct.unpack_from("<II", head, self.sizes_at)
        (cipher_bytes,) = struct.unpack_from("<I", head, self.head_bytes - 4)
        if iv_bytes != IV_BYTES or rest_bytes != 8 + IV_BYTES + cipher_bytes or not cipher_bytes:
            return None
        if self.padded and cipher_bytes % CELL_BYTES:
            return None
        return int(cipher_bytes)

    def iv(self, head: bytes) -> bytes:
        """Return the iv in a block's head."""
        start = self.sizes_at + 8
        return head[start : start + IV_BYTES]

    def head(self, tag: bytes, iv: bytes, cipher_bytes: int) -> bytes:
        """Build a block's head."""
        sizes = struct.pack("<II", 8 + IV_BYTES + cipher_bytes, IV_BYTES)
        return self.magic + tag + sizes + iv + struct.pack("<I", cipher_bytes)


def layout_of(mode: EncryptionMode) -> BlockLayout:
    """Return the layout of blocks that current releases write."""
    return BlockLayout(mode, MAGICS[mode], tagged=mode is EncryptionMode.AES_GCM)


class CipherBlocks:
    """Positions of a file's blocks, in the plain and in the encrypted file."""

    def __init__(self, layout: BlockLayout) -> None:
        self.layout = layout
        self.plain_bytes = 0
        self._starts = array("Q")
        self._ciphers = array("Q")
        self._ivs = bytearray()

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._starts)

    def add(self, plain_bytes: int, cipher_offset: int, iv: bytes) -> None:
        """Append the next block."""
        self._starts.append(self.plain_bytes)
        self._ciphers.append(cipher_offset)
        self._ivs += iv
        self.plain_bytes += plain_bytes

    def at(self, offset: int) -> int:
        """Return the number of the block with a byte of the plain file."""
        return bisect_right(self._starts, offset) - 1

    def start(self, number: int) -> int:
        """Return where a block begins in the plain file."""
        return self._starts[number]

    def stop(self, number: int) -> int:
        """Return where a block ends in the plain file."""
        return self._starts[number + 1] if number + 1 < len(self) else self.plain_bytes

    def cipher_offset(self, number: int) -> int:
        """Return where a block's cipher begins in the encrypted file."""
        return self._ciphers[number]

    def cipher_bytes(self, number: int) -> int:
        """Return the length of a block's cipher."""
        plain_bytes = self.stop(number) - self.start(number)
        return (plain_bytes // CELL_BYTES + 1) * CELL_BYTES if self.layout.padded else plain_bytes

    def iv(self, number: int) -> bytes:
        """Return a block's iv."""
        return bytes(self._ivs[number * IV_BYTES : (number + 1) * IV_BYTES])

    def stored_range(self, offset: int, length: int) -> tuple[int, int]:
        """Return the range of the encrypted file, offset and length, that holds a range of the plain one."""
        first, last = self.at(offset), self.at(offset + length - 1)
        start, stop = offset - self.start(first), offset + length - self.start(last)
        if self.layout.padded:
            # the cell before is needed as well; before the first one it is the iv, which is known
            start = max(0, start // CELL_BYTES - 1) * CELL_BYTES
            stop = -(-stop // CELL_BYTES) * CELL_BYTES
        first_byte = self.cipher_offset(first) + start
        return first_byte, self.cipher_offset(last) + stop - first_byte


def block_cipher(key: Key, iv: bytes, tag: bytes | None = None) -> "Cipher[Any]":
    """Return the cipher of a block, from its beginning on."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if key.mode is EncryptionMode.AES_GCM:
        return Cipher(algorithms.AES(key.secret), modes.GCM(iv[:NONCE_BYTES], tag))
    algorithm = algorithms.AES if key.mode is EncryptionMode.AES_CBC else algorithms.SM4
    return Cipher(algorithm(key.secret), modes.CBC(iv))


class _KnownBlocks:
    """Caches the block positions of files that are opened repeatedly."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, Key], CipherBlocks] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def of(self, file: SourceFile, key: Key) -> CipherBlocks:
        place = str(file.location), file.version, key
        with self._lock:
            known = self._known.get(place)
            if known is not None:
                self._known.move_to_end(place)
        if known is not None and _is_still(known, file):
            return known
        found = _find_blocks(file, key)
        with self._lock:
            self._count -= len(self._known.pop(place, ()))
            if len(found) <= _MAX_KNOWN_BLOCKS:
                self._known[place] = found
                self._count += len(found)
            while self._count > _MAX_KNOWN_BLOCKS:
                self._count -= len(self._known.popitem(last=False)[1])
        return found


cipher_blocks_of = _KnownBlocks().of


def _is_still(known: CipherBlocks, file: SourceFile) -> bool:
    """True if a file begins with the cached iv: it may have been replaced by one of the same size within a clock tick.

    Where the version is only the size, the file may have been replaced at any time; an etag is trusted without a
    request.
    """
    if not file.location.store.is_near and file.version != str(file.size_bytes):
        return True
    [head] = file.read_many([(0, known.layout.head_bytes)])
    return known.layout.iv(head) == known.iv(0)


def _find_blocks(file: SourceFile, key: Key) -> CipherBlocks:
    borders = _Borders(file)
    _, head = borders.around(0, 0)
    layout = _layout_in(file, key, head)
    blocks = CipherBlocks(layout)
    offset = 0
    while offset < file.size_bytes:
        cipher_bytes = layout.cipher_bytes(head)
        if cipher_bytes is None:
            raise _damaged(file, offset)
        iv, stop = layout.iv(head), offset + layout.head_bytes + cipher_bytes
        if stop > file.size_bytes:
            raise CheckpointError(
                f"{file.location}: ends at byte {file.size_bytes}, but its encrypted block at {offset} ends at {stop}: "
                "truncated"
            )
        before, head = borders.around(stop, stop - offset)
        padding = _padding(file, key, offset, iv, cipher_bytes, before) if layout.padded else 0
        blocks.add(cipher_bytes - padding, stop - cipher_bytes, iv)
        offset = stop
    return blocks


class _Borders:
    """Reads the bytes around block borders; of one that is not near many at once, since blocks have equal lengths."""

    _BEFORE_BYTES = 2 * CELL_BYTES
    _AFTER_BYTES = MAGIC_BYTES + TAG_BYTES + _SIZES_BYTES

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._fetched: dict[int, tuple[bytes, bytes]] = {}
        self._ahead = 1

    def around(self, offset: int, block_bytes: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after a border; the next borders are expected at distances of `block_bytes`."""
        found = self._fetched.pop(offset, None)
        if found is not None:
            return found
        # the more guesses were right, the more are made
        self._ahead = min(2 * self._ahead, _BORDERS_AT_ONCE) if not self._fetched else 1
        count = 1 if self._file.location.store.is_near or not block_bytes else self._ahead
        borders = [offset + number * block_bytes for number in range(count)]
        borders = [border for border in borders if border <= self._file.size_bytes]
        ranges = [self._range(border) for border in borders]
        answers = self._file.read_many(ranges)
        self._fetched = {
            border: (answer[: border - start], answer[border - start :])
            for border, (start, _), answer in zip(borders, ranges, answers, strict=True)
        }
        return self._fetched.pop(offset)

    def _range(self, border: int) -> tuple[int, int]:
        start = max(0, border - self._BEFORE_BYTES)
        return start, min(self._file.size_bytes, border + self._AFTER_BYTES) - start


def _layout_in(file: SourceFile, key: Key, head: bytes) -> BlockLayout:
    """Return the layout of a file's blocks, from its first head."""
    written = next((mode for mode, magic in MAGICS.items() if head.startswith(magic)), None)
    if written is None:
        if head.startswith(b"\n") or head[8:9] == b"{":  # as .ckpt and .safetensors files begin
            raise KeyMistakeError(f"{file.location}: is not encrypted, but {key.name} is named as its key: name none")
        raise _damaged(file, 0)  # empty, or zeros: other ranks may replace it, or training may be about to write it
    layout = layout_of(written)
    early = BlockLayout(key.mode, layout.magic, tagged=False)
    if written is EncryptionMode.AES_GCM and layout.cipher_bytes(head) is None and early.cipher_bytes(head) is not None:
        return early
    if written is not key.mode:
        raise KeyMistakeError(f"{file.location}: is encrypted with {written}, not with {key.mode}: name that mode")
    return layout


def _padding(file: SourceFile, key: Key, offset: int, iv: bytes, cipher_bytes: int, before: bytes) -> int:
    """Return the length of a block's padding; `before` are the last two cells of its cipher, if it has two."""
    last = before[-CELL_BYTES:]
    chained = iv if cipher_bytes == CELL_BYTES else before[-2 * CELL_BYTES : -CELL_BYTES]
    plain = block_cipher(key, chained).decryptor().update(last)
    padding = plain[-1]
    if not 1 <= padding <= CELL_BYTES or plain[-padding:] != bytes([padding]) * padding:
        raise undecryptable(file, key, f"the block at byte {offset} does not end as it should")
    return padding


def _damaged(file: SourceFile, offset: int) -> CheckpointError:
    return CheckpointError(f"{file.location}: no encrypted block begins at byte {offset}, where one should: damaged")


def undecryptable(file: SourceFile, key: Key, detail: str) -> CheckpointError:
    """Return the error for a file that does not decrypt."""
    return CheckpointError(
        f"{file.location}: cannot be decrypted ({detail}): {key.name} is not the key that it was encrypted with, or "
        "it was changed since"
    )

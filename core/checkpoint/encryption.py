"""Encrypted checkpoint files: the plain file in blocks, each encrypted by itself; integers are little-endian.

    AES-GCM           u32 0x7F3A5ED8 | tag, 16 bytes | u32 n | u32 16 | iv, 16 bytes | u32 cipher bytes | cipher
    AES-CBC, SM4-CBC  u32 0x7F3A5ED9, 0x7F3A5EDA     | u32 n | u32 16 | iv, 16 bytes | u32 cipher bytes | cipher
    early releases    u32 0x7F3A5ED8, whatever mode  | u32 n | u32 16 | iv, 16 bytes | u32 cipher bytes | cipher

n counts what follows it up to the cipher's end. AES-GCM takes the first 12 bytes of the iv for its nonce; the early one
has no tag, so that what was changed in it cannot be told. CBC pads each block as PKCS#7 does.

Any part of a block can be decrypted without the rest of it: AES-GCM is AES in counter mode, and CBC needs the 16 bytes
of cipher before. So reading takes no memory for blocks, which MindSpore makes 64 MiB long.
"""

import os
import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from threading import Lock
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.base import CipherContext

from core.budget import CIPHER_BLOCK_BYTES
from core.checkpoint.reading import read_ahead
from core.errors import CheckpointError, StorageError
from core.keys import Key
from core.request import EncryptionMode
from core.storage.files import OutputFile, SourceFile
from core.storage.joined import JoinedFile
from core.storage.uploads import Buffer

MAGICS = {
    EncryptionMode.AES_GCM: b"\xd8\x5e\x3a\x7f",
    EncryptionMode.AES_CBC: b"\xd9\x5e\x3a\x7f",
    EncryptionMode.SM4_CBC: b"\xda\x5e\x3a\x7f",
}
"""What every block begins with."""

_MAGIC_BYTES = 4
_TAG_BYTES = 16
_IV_BYTES = 16
_NONCE_BYTES = 12
_CELL_BYTES = 16
"""What AES and SM4 encrypt at a time."""
_SIZES_BYTES = 8 + _IV_BYTES + 4
"""n, the iv's length, the iv, the cipher's length."""
_FIRST_COUNTER = 2
"""Of a block's contents in AES-GCM, whose tag takes the first one."""
_PIECE_BYTES = 128 << 10
"""Decrypted at a time: little enough for the processor's caches, and for others not to wait long: no thread of this
process runs while a cipher does, and SM4 takes about a second for 88 MB."""
_BORDERS_AT_ONCE = 256
_MOST_KNOWN_BLOCKS = 1 << 18
"""Each takes 32 bytes."""


class KeyMistakeError(CheckpointError):
    """A key is named for a file that is not encrypted, none for one that is, or one of another mode.

    Nothing is wrong with the file.
    """


@dataclass(frozen=True)
class _Layout:
    """How the blocks of a file are built."""

    mode: EncryptionMode
    magic: bytes
    tagged: bool

    @property
    def head_bytes(self) -> int:
        """What stands before a block's cipher."""
        return self.sizes_at + _SIZES_BYTES

    @property
    def sizes_at(self) -> int:
        return _MAGIC_BYTES + (_TAG_BYTES if self.tagged else 0)

    @property
    def padded(self) -> bool:
        return self.mode is not EncryptionMode.AES_GCM

    def cipher_bytes(self, head: bytes) -> int | None:
        """The length of the cipher that a block's head announces; None if it is none."""
        if len(head) < self.head_bytes or not head.startswith(self.magic):
            return None
        rest_bytes, iv_bytes = struct.unpack_from("<II", head, self.sizes_at)
        (cipher_bytes,) = struct.unpack_from("<I", head, self.head_bytes - 4)
        if iv_bytes != _IV_BYTES or rest_bytes != 8 + _IV_BYTES + cipher_bytes or not cipher_bytes:
            return None
        if self.padded and cipher_bytes % _CELL_BYTES:
            return None
        return int(cipher_bytes)

    def iv(self, head: bytes) -> bytes:
        start = self.sizes_at + 8
        return head[start : start + _IV_BYTES]

    def head(self, tag: bytes, iv: bytes, cipher_bytes: int) -> bytes:
        sizes = struct.pack("<II", 8 + _IV_BYTES + cipher_bytes, _IV_BYTES)
        return self.magic + tag + sizes + iv + struct.pack("<I", cipher_bytes)


def _layout_of(mode: EncryptionMode) -> _Layout:
    return _Layout(mode, MAGICS[mode], tagged=mode is EncryptionMode.AES_GCM)


class _Blocks:
    """Where the blocks of a file are: in the plain file, and in the encrypted one."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self.plain_bytes = 0
        self._starts = array("Q")
        self._ciphers = array("Q")
        self._ivs = bytearray()

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, plain_bytes: int, cipher_offset: int, iv: bytes) -> None:
        self._starts.append(self.plain_bytes)
        self._ciphers.append(cipher_offset)
        self._ivs += iv
        self.plain_bytes += plain_bytes

    def at(self, offset: int) -> int:
        """The number of the block that a byte of the plain file is in."""
        return bisect_right(self._starts, offset) - 1

    def start(self, number: int) -> int:
        return self._starts[number]

    def stop(self, number: int) -> int:
        return self._starts[number + 1] if number + 1 < len(self) else self.plain_bytes

    def cipher_offset(self, number: int) -> int:
        return self._ciphers[number]

    def cipher_bytes(self, number: int) -> int:
        plain_bytes = self.stop(number) - self.start(number)
        return (plain_bytes // _CELL_BYTES + 1) * _CELL_BYTES if self.layout.padded else plain_bytes

    def iv(self, number: int) -> bytes:
        return bytes(self._ivs[number * _IV_BYTES : (number + 1) * _IV_BYTES])

    def stretch(self, offset: int, length: int) -> tuple[int, int]:
        """The bytes of the encrypted file that it takes to decrypt some of the plain one: offset and length."""
        first, last = self.at(offset), self.at(offset + length - 1)
        start, stop = offset - self.start(first), offset + length - self.start(last)
        if self.layout.padded:
            # the cell before is needed as well; before the first one stands the iv, which is known
            start = max(0, start // _CELL_BYTES - 1) * _CELL_BYTES
            stop = -(-stop // _CELL_BYTES) * _CELL_BYTES
        first_byte = self.cipher_offset(first) + start
        return first_byte, self.cipher_offset(last) + stop - first_byte


class DecryptedSource:
    """An encrypted file as the plain one that it is made of: a SourceFile, whose version is the encrypted file's."""

    def __init__(self, file: SourceFile, key: Key) -> None:
        """Finds the blocks of `file`, with many requests at once if it is remote.

        Raises:
            CheckpointError: it is not encrypted, or not in that mode; or it is damaged, or the key is not right.
            StorageError: it cannot be read.
        """
        self._file = file
        self._key = key
        self._blocks = _known_blocks(file, key)
        self.location = file.location
        self.version = file.version
        self.size_bytes = self._blocks.plain_bytes

    @property
    def mode(self) -> EncryptionMode:
        """How it is encrypted."""
        return self._key.mode

    @property
    def key_name(self) -> str:
        """What messages call its key."""
        return self._key.name

    @property
    def stored_bytes(self) -> int:
        """Size of the encrypted file."""
        return self._file.size_bytes

    @property
    def is_authenticated(self) -> bool:
        """Whether every block has a tag, which tells if it was changed."""
        return self._blocks.layout.tagged

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """As any file; of a local one piece after piece is decrypted."""
        self._check_inside(offset, len(buffer))
        if not self.location.is_local:
            [data] = self.read_many([(offset, len(buffer))])
            buffer[:] = data
            return
        # the cell before, and both ends rounded to cells
        around_bytes = 3 * _CELL_BYTES if self._blocks.layout.padded else 0
        scratch = memoryview(bytearray(min(len(buffer) + around_bytes, _PIECE_BYTES) if around_bytes else 0))
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
        start, _ = self._blocks.stretch(offset, len(buffer))
        self._file.read_into(start, buffer)
        decryptor = self._decryptor(number, offset)
        for first in range(0, len(buffer), _PIECE_BYTES):
            piece = buffer[first : first + _PIECE_BYTES]
            decryptor.update_into(piece, piece)

    def _read_chained(self, number: int, offset: int, buffer: memoryview, scratch: memoryview) -> None:
        start, length = self._blocks.stretch(offset, len(buffer))
        cipher = scratch[:length]
        self._file.read_into(start, cipher)
        buffer[:] = self._decrypted(number, offset, len(buffer), cipher)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As any file: a range is a range of the encrypted file, with the few bytes between blocks in it."""
        for offset, length in ranges:
            self._check_inside(offset, length)
        stretches = [self._blocks.stretch(offset, length) for offset, length in ranges if length]
        answers = iter(zip(stretches, self._file.read_many(stretches), strict=True) if stretches else ())
        return [self._joined(offset, length, *next(answers)) if length else b"" for offset, length in ranges]

    def _joined(self, offset: int, length: int, stretch: tuple[int, int], cipher: bytes) -> bytes:
        """What some of the encrypted file decrypts to; the parts never stand in memory beside the whole of them."""
        plain = BytesIO()
        for part in self._parts(offset, length, stretch, cipher):
            plain.write(part)
        return plain.getvalue()

    def _parts(self, offset: int, length: int, stretch: tuple[int, int], cipher: bytes) -> Iterator[bytes]:
        """What some of the encrypted file decrypts to, piece after piece."""
        stop = offset + length
        while offset < stop:
            number = self._blocks.at(offset)
            part_stop = min(stop, self._blocks.stop(number), offset + _PIECE_BYTES)
            start, count = self._blocks.stretch(offset, part_stop - offset)
            part = memoryview(cipher)[start - stretch[0] :][:count]
            yield self._decrypted(number, offset, part_stop - offset, part)
            offset = part_stop

    def _decrypted(self, number: int, offset: int, length: int, cipher: memoryview) -> bytes:
        """Bytes of one block; `cipher` is what `stretch` says that it takes."""
        if not self._blocks.layout.padded:
            return self._decryptor(number, offset).update(cipher)
        inside = offset - self._blocks.start(number)
        if inside < _CELL_BYTES:
            chained, iv = cipher, self._blocks.iv(number)
        else:
            chained, iv = cipher[_CELL_BYTES:], bytes(cipher[:_CELL_BYTES])
        plain = _cipher(self._key, iv).decryptor().update(chained)
        return plain[inside % _CELL_BYTES :][:length]

    def _decryptor(self, number: int, offset: int) -> CipherContext:
        """Decrypts a block of AES-GCM from a byte of the plain file on, in counter mode."""
        cells, skipped = divmod(offset - self._blocks.start(number), _CELL_BYTES)
        counter = self._blocks.iv(number)[:_NONCE_BYTES] + (_FIRST_COUNTER + cells).to_bytes(4, "big")
        decryptor = Cipher(algorithms.AES(self._key.secret), modes.CTR(counter)).decryptor()
        decryptor.update(bytes(skipped))
        return decryptor

    def stream(self) -> Iterator[memoryview]:
        """All of the plain file, piece by piece; each is to be used before the next one is asked for.

        Where a block has a tag, it is checked when the block has been read: until the stream ends well nothing of it
        can be trusted. It waits for requests, so no function that is one of several requests at once may use it.

        Raises:
            CheckpointError: a block was changed, or the key is not right.
            StorageError: it cannot be read.
        """
        plain = memoryview(bytearray(_PIECE_BYTES + _CELL_BYTES))
        block, left = -1, 0
        decryptor: Any = None
        for number, stored in self._stored_pieces():
            piece = memoryview(stored)
            if number != block:
                self._finish(decryptor, block)
                head, piece = bytes(piece[: self._blocks.layout.head_bytes]), piece[self._blocks.layout.head_bytes :]
                block, left = number, self._blocks.stop(number) - self._blocks.start(number)
                tag = head[_MAGIC_BYTES:][:_TAG_BYTES] if self.is_authenticated else None
                decryptor = _cipher(self._key, self._blocks.iv(number), tag).decryptor()
            for first in range(0, len(piece), _PIECE_BYTES):
                count = min(left, decryptor.update_into(piece[first : first + _PIECE_BYTES], plain))
                left -= count  # what is beyond is padding
                yield plain[:count]
        self._finish(decryptor, block)

    def check_tags(self) -> None:
        """Reads all of the file and compares the tags of its blocks, if they have any.

        Raises:
            CheckpointError: a block was changed, or the key is not right.
            StorageError: it cannot be read.
        """
        if self.is_authenticated:
            for _ in self.stream():
                pass

    def close(self) -> None:
        """Gives the file back."""
        self._file.close()

    def _stored_pieces(self) -> Iterator[tuple[int, Buffer]]:
        """The blocks as they are stored, in pieces, each with its block's number; the head is in the first piece."""
        head_bytes = self._blocks.layout.head_bytes
        ranges = (
            (self._blocks.cipher_offset(number) - head_bytes, head_bytes + self._blocks.cipher_bytes(number))
            for number in range(len(self._blocks))
        )
        if not self.location.is_local:
            yield from read_ahead(self._file, ranges)
            return
        buffer = memoryview(bytearray(_PIECE_BYTES))
        for number, (offset, length) in enumerate(ranges):
            for start in range(0, length, _PIECE_BYTES):
                piece = buffer[: min(_PIECE_BYTES, length - start)]
                self._file.read_into(offset + start, piece)
                yield number, piece

    def _finish(self, decryptor: Any, number: int) -> None:
        if decryptor is None or not self.is_authenticated:
            return
        try:
            decryptor.finalize()
        except InvalidTag:
            offset = self._blocks.cipher_offset(number) - self._blocks.layout.head_bytes
            raise _undecryptable(self._file, self._key, f"the block at byte {offset} fails its tag") from None

    def _check_inside(self, offset: int, length: int) -> None:
        if offset + length > self.size_bytes:
            raise CheckpointError(
                f"{self.location}: ends at byte {self.size_bytes} (decrypted), earlier than it should: truncated or "
                "changed"
            )


def decrypted(file: SourceFile, key: Key | None) -> SourceFile:
    """A file as it is to be read: decrypted, if a key is named for it. It is closed if it cannot be.

    Raises:
        CheckpointError: see `DecryptedSource`.
        StorageError: it cannot be read.
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


class EncryptedOutput:
    """Encrypts what is written, and writes it to another file, block by block; each has an iv of its own, by chance."""

    def __init__(self, file: OutputFile, key: Key, block_bytes: int = CIPHER_BLOCK_BYTES) -> None:
        self._file = file
        self._key = key
        self._block_bytes = block_bytes
        self._layout = _layout_of(key.mode)
        self._block = memoryview(bytearray(self._layout.head_bytes + block_bytes + 2 * _CELL_BYTES))
        self._iv = b""
        self._encryptor: Any = None
        self._plain_bytes = 0
        self._stop = 0

    def write(self, buffer: Buffer) -> None:
        """Appends all of `buffer`; it may be used for something else afterwards.

        Raises:
            StorageError: it cannot be written.
        """
        view = memoryview(buffer).cast("B")
        while view:
            if self._encryptor is None:
                self._begin()
            piece = view[: min(_PIECE_BYTES, self._block_bytes - self._plain_bytes)]
            self._stop += self._encryptor.update_into(piece, self._block[self._stop :])
            self._plain_bytes += len(piece)
            if self._plain_bytes == self._block_bytes:
                self._end()
            view = view[len(piece) :]

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        """Nothing can be changed: it is encrypted with what stands around it, and has no CRC that comes late."""
        raise StorageError(f"cannot write {len(buffer)} bytes at {offset}: an encrypted file can only be appended to")

    def finish(self) -> None:
        """Writes the last block.

        Raises:
            StorageError: it cannot be written.
        """
        if self._encryptor is not None:
            self._end()

    def _begin(self) -> None:
        self._iv = os.urandom(_IV_BYTES)
        self._encryptor = _cipher(self._key, self._iv).encryptor()
        self._plain_bytes = 0
        self._stop = self._layout.head_bytes

    def _end(self) -> None:
        if self._layout.padded:
            padding = _CELL_BYTES - self._plain_bytes % _CELL_BYTES
            self._stop += self._encryptor.update_into(bytes([padding]) * padding, self._block[self._stop :])
        self._encryptor.finalize()
        tag = self._encryptor.tag if self._layout.tagged else b""
        head_bytes = self._layout.head_bytes
        self._block[:head_bytes] = self._layout.head(tag, self._iv, self._stop - head_bytes)
        self._file.write(self._block[: self._stop])
        self._encryptor = None


def encrypted_bytes(plain_bytes: int, mode: str, block_bytes: int = CIPHER_BLOCK_BYTES) -> int:
    """The size of the encrypted file that `EncryptedOutput` makes of so many bytes; an empty mode: not encrypted."""
    if not mode:
        return plain_bytes
    layout = _layout_of(EncryptionMode(mode))
    full, rest = divmod(plain_bytes, block_bytes)

    def stored(length: int) -> int:
        return layout.head_bytes + ((length // _CELL_BYTES + 1) * _CELL_BYTES if layout.padded else length)

    return full * stored(block_bytes) + (stored(rest) if rest else 0)


def _cipher(key: Key, iv: bytes, tag: bytes | None = None) -> Cipher[Any]:
    """The cipher of a block from its beginning on."""
    if key.mode is EncryptionMode.AES_GCM:
        return Cipher(algorithms.AES(key.secret), modes.GCM(iv[:_NONCE_BYTES], tag))
    algorithm = algorithms.AES if key.mode is EncryptionMode.AES_CBC else algorithms.SM4
    return Cipher(algorithm(key.secret), modes.CBC(iv))


class _KnownBlocks:
    """Where the blocks of files are, kept for those that are opened again and again."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, Key], _Blocks] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def of(self, file: SourceFile, key: Key) -> _Blocks:
        place = str(file.location), file.version, key
        with self._lock:
            known = self._known.get(place)
            if known is not None:
                self._known.move_to_end(place)
                return known
        found = _find_blocks(file, key)
        with self._lock:
            if place not in self._known and len(found) <= _MOST_KNOWN_BLOCKS:
                self._known[place] = found
                self._count += len(found)
            while self._count > _MOST_KNOWN_BLOCKS:
                self._count -= len(self._known.popitem(last=False)[1])
        return found


_known_blocks = _KnownBlocks().of


def _find_blocks(file: SourceFile, key: Key) -> _Blocks:
    borders = _Borders(file)
    _, head = borders.around(0, 0)
    layout = _layout_in(file, key, head)
    blocks = _Blocks(layout)
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
    """Reads what is around the ends of blocks; of a remote file that of many at once, for blocks are equally long."""

    _BEFORE_BYTES = 2 * _CELL_BYTES
    _AFTER_BYTES = _MAGIC_BYTES + _TAG_BYTES + _SIZES_BYTES

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._ahead = 1

    def around(self, offset: int, block_bytes: int) -> tuple[bytes, bytes]:
        """What stands before and after a border; the next ones are looked for at distances of `block_bytes`."""
        found = self._held.pop(offset, None)
        if found is not None:
            return found
        # the longer guesses hold, the more are made
        self._ahead = min(2 * self._ahead, _BORDERS_AT_ONCE) if not self._held else 1
        count = 1 if self._file.location.is_local or not block_bytes else self._ahead
        borders = [offset + number * block_bytes for number in range(count)]
        borders = [border for border in borders if border <= self._file.size_bytes]
        ranges = [self._range(border) for border in borders]
        answers = self._file.read_many(ranges)
        self._held = {
            border: (answer[: border - start], answer[border - start :])
            for border, (start, _), answer in zip(borders, ranges, answers, strict=True)
        }
        return self._held.pop(offset)

    def _range(self, border: int) -> tuple[int, int]:
        start = max(0, border - self._BEFORE_BYTES)
        return start, min(self._file.size_bytes, border + self._AFTER_BYTES) - start


def _layout_in(file: SourceFile, key: Key, head: bytes) -> _Layout:
    """How a file's blocks are built, told from the first one.

    Raises:
        KeyMistakeError: it is not encrypted, or in another mode.
    """
    written = next((mode for mode, magic in MAGICS.items() if head.startswith(magic)), None)
    if written is None:
        raise KeyMistakeError(f"{file.location}: is not encrypted, but {key.name} is named as its key: name none")
    layout = _layout_of(written)
    early = _Layout(key.mode, layout.magic, tagged=False)
    if written is EncryptionMode.AES_GCM and layout.cipher_bytes(head) is None and early.cipher_bytes(head) is not None:
        return early
    if written is not key.mode:
        raise KeyMistakeError(f"{file.location}: is encrypted with {written}, not with {key.mode}: name that mode")
    return layout


def _padding(file: SourceFile, key: Key, offset: int, iv: bytes, cipher_bytes: int, before: bytes) -> int:
    """How many bytes of padding a block ends in; `before` are the last two cells of its cipher, if it has two."""
    last = before[-_CELL_BYTES:]
    chained = iv if cipher_bytes == _CELL_BYTES else before[-2 * _CELL_BYTES : -_CELL_BYTES]
    plain = _cipher(key, chained).decryptor().update(last)
    padding = plain[-1]
    if not 1 <= padding <= _CELL_BYTES or plain[-padding:] != bytes([padding]) * padding:
        raise _undecryptable(file, key, f"the block at byte {offset} does not end as it should")
    return padding


def _damaged(file: SourceFile, offset: int) -> CheckpointError:
    return CheckpointError(f"{file.location}: no encrypted block begins at byte {offset}, where one should: damaged")


def _undecryptable(file: SourceFile, key: Key, detail: str) -> CheckpointError:
    return CheckpointError(
        f"{file.location}: cannot be decrypted ({detail}): {key.name} is not the key that it was encrypted with, or "
        "it was changed since"
    )

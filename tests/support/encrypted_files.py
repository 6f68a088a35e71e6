"""Encrypted files in memory, built and opened with one key."""

import os
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from reshard.core.files.encryption.cipher_blocks import MAGICS
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.encrypted_output import EncryptedOutput
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.storage.reading import read_bytes
from reshard.core.storage.store import Buffer
from tests.support.ckpt_writer import MemoryFile, checkpoint_bytes
from tests.support.remote_file import RemoteFile

GCM, CBC, SM4 = EncryptionMode.AES_GCM, EncryptionMode.AES_CBC, EncryptionMode.SM4_CBC
SECRET = b"0123456789abcdef"
PLAIN = bytes(range(256)) * 5 + b"end"
CHECKPOINT = checkpoint_bytes(("w", "Float32", (32,), bytes(range(128))), ("b", "Int8", (5,), b"12345"))


def key(mode: EncryptionMode = GCM, secret: bytes = SECRET) -> Key:
    return Key(secret, mode, "env:KEY")


class WrittenBytes(bytearray):
    """An OutputFile."""

    def write(self, buffer: Buffer) -> None:
        self.extend(buffer)


def encrypted(plain: bytes, mode: EncryptionMode = GCM, block_bytes: int = 100, secret: bytes = SECRET) -> bytes:
    file = WrittenBytes()
    output = EncryptedOutput(file, key(mode, secret), block_bytes)
    for start in range(0, len(plain), 77):
        output.write(plain[start : start + 77])
    output.finish()
    return bytes(file)


def block_by_hand(mode: EncryptionMode, plain: bytes, magic: EncryptionMode, *, tagged: bool) -> bytes:
    iv = os.urandom(16)
    tag = b""
    if mode is GCM:
        sealed = AESGCM(SECRET).encrypt(iv[:12], plain, None)
        cipher, tag = sealed[:-16], sealed[-16:] if tagged else b""
    else:
        padding = 16 - len(plain) % 16
        algorithm = algorithms.AES(SECRET) if mode is CBC else algorithms.SM4(SECRET)
        encryptor = Cipher(algorithm, modes.CBC(iv)).encryptor()
        cipher = encryptor.update(plain + bytes([padding]) * padding) + encryptor.finalize()
    sizes = struct.pack("<II", 8 + 16 + len(cipher), 16)
    return MAGICS[magic] + tag + sizes + iv + struct.pack("<I", len(cipher)) + cipher


def opened(data: bytes, mode: EncryptionMode = GCM, secret: bytes = SECRET) -> DecryptedSource:
    return DecryptedSource(FreshFile(data), key(mode, secret))


class FreshFile(MemoryFile):
    """Each is another file: where blocks are is remembered by a file's place and version."""

    count = 0

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        FreshFile.count += 1
        self.version = f"fresh-{FreshFile.count}"


def remote_file(data: bytes) -> RemoteFile:
    file = RemoteFile([(0, data)], len(data))
    file.version = FreshFile(b"").version
    return file


def whole(file: DecryptedSource) -> bytes:
    return read_bytes(file, 0, file.size_bytes)


def streamed(file: DecryptedSource) -> bytes:
    return b"".join(bytes(piece) for piece in file.stream())

"""Encrypted files: those that MindSpore wrote, what is written here, any part of them, and every way to spoil one."""

import json
import os
import struct

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.cipher_blocks import MAGICS
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.encrypted_output import encrypted_bytes
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from tests.support.ckpt_writer import MemoryFile
from tests.support.encrypted_files import (
    CBC,
    CHECKPOINT,
    GCM,
    PLAIN,
    SECRET,
    SM4,
    FreshFile,
    block_by_hand,
    encrypted,
    key,
    opened,
    remote_file,
    streamed,
    whole,
)
from tests.support.places import FIXTURES

FORMATS = FIXTURES / "formats"
EXPECT = json.loads((FORMATS / "expect.json").read_text())


# ---- what MindSpore wrote ----


@pytest.mark.parametrize("mode", EncryptionMode)
def test_files_that_mindspore_wrote(mode: EncryptionMode) -> None:
    secret = EXPECT["keys"][mode].encode()
    file = open_source(parse_url(str(FORMATS / f"encrypted_{mode}.ckpt")))
    decrypted = DecryptedSource(file, key(mode, secret))
    decrypted.check_tags()
    index = read_index(decrypted)
    assert index.size_bytes == decrypted.size_bytes
    assert list(index.entries) == list(EXPECT["params"])
    for name, entry in index.entries.items():
        found = b"".join(read_bytes(decrypted, extent.offset, extent.length) for extent in entry.extents)
        assert found.hex() == EXPECT["params"][name]["hex"]
        assert list(entry.shape) == EXPECT["params"][name]["shape"]
    decrypted.close()


# ---- what is written here ----


@pytest.mark.parametrize("mode", EncryptionMode)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 99, 100, 101, 200, 1000])
def test_what_is_written_is_read(mode: EncryptionMode, length: int) -> None:
    data = encrypted(PLAIN[:length], mode)
    assert data.startswith(MAGICS[mode])
    assert len(data) == encrypted_bytes(length, mode, 100)
    assert whole(opened(data, mode)) == streamed(opened(data, mode)) == PLAIN[:length]


@pytest.mark.parametrize("secret", [b"1" * 16, b"1" * 24, b"1" * 32])
@pytest.mark.parametrize("mode", [GCM, CBC])
def test_aes_takes_keys_of_three_lengths(mode: EncryptionMode, secret: bytes) -> None:
    assert whole(opened(encrypted(PLAIN, mode, secret=secret), mode, secret)) == PLAIN


@pytest.mark.parametrize("mode", EncryptionMode)
def test_by_other_means(mode: EncryptionMode) -> None:
    """What is written is what the layout says, taken apart without the code under test."""
    data = encrypted(PLAIN[:50], mode)
    tag_bytes = 16 if mode is GCM else 0
    tag, rest = data[4 : 4 + tag_bytes], data[4 + tag_bytes :]
    rest_bytes, iv_bytes = struct.unpack("<II", rest[:8])
    iv, (cipher_bytes,), cipher = rest[8:24], struct.unpack("<I", rest[24:28]), rest[28:]
    assert (rest_bytes, iv_bytes, cipher_bytes) == (len(rest) - 4, 16, len(cipher))
    if mode is GCM:
        assert AESGCM(SECRET).decrypt(iv[:12], cipher + tag, None) == PLAIN[:50]
    else:
        algorithm = algorithms.AES(SECRET) if mode is CBC else algorithms.SM4(SECRET)
        plain = Cipher(algorithm, modes.CBC(iv)).decryptor().update(cipher)
        assert plain == PLAIN[:50] + b"\x0e" * 14


# ---- any part of it ----


@given(
    mode=st.sampled_from(EncryptionMode),
    block_bytes=st.sampled_from([1, 5, 16, 17, 64, 100, 1000]),
    length=st.integers(1, 300),
    data=st.data(),
)
def test_any_part_is_that_of_the_whole(
    mode: EncryptionMode, block_bytes: int, length: int, data: st.DataObject
) -> None:
    plain = os.urandom(length)
    stored = encrypted(plain, mode, block_bytes)
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    local = opened(stored, mode)
    buffer = bytearray(stop - start)
    local.read_into(start, memoryview(buffer))
    assert buffer == plain[start:stop]
    remote = DecryptedSource(remote_file(stored), key(mode))
    assert remote.read_many([(start, stop - start), (0, length)]) == [plain[start:stop], plain]
    assert streamed(local) == streamed(remote) == plain


@pytest.mark.parametrize("mode", EncryptionMode)
def test_long_reads_cross_pieces_and_blocks(mode: EncryptionMode) -> None:
    plain = os.urandom(700_001)
    file = opened(encrypted(plain, mode, 300_000), mode)
    assert whole(file) == plain
    assert read_bytes(file, 65_530, 600_003) == plain[65_530:665_533]
    buffer = bytearray(500_000)
    file.read_into(123_457, memoryview(buffer))
    assert buffer == plain[123_457:623_457]


@pytest.mark.parametrize("mode", EncryptionMode)
def test_a_part_is_read_without_the_rest_of_its_block(mode: EncryptionMode) -> None:
    stored = FreshFile(encrypted(bytes(1_000_000), mode, 1_000_000))
    file = DecryptedSource(stored, key(mode))
    stored.reads.clear()
    read_bytes(file, 500_000, 100)
    assert sum(length for _, length in stored.reads) <= 100 + 32


def test_of_a_remote_file_a_range_takes_one_request() -> None:
    stored = FreshFile(encrypted(PLAIN))
    file = DecryptedSource(stored, key())
    stored.reads.clear()
    file.read_many([(50, 400), (700, 20)])
    assert len(stored.reads) == 2


def test_a_read_beyond_the_end() -> None:
    file = opened(encrypted(PLAIN))
    with pytest.raises(CheckpointError, match=r"ends at byte 1283 \(decrypted\), earlier than it should"):
        read_bytes(file, 1280, 4)
    assert read_bytes(file, 1283, 0) == b""


# ---- early releases ----


def test_a_file_with_tags_by_hand() -> None:
    file = opened(block_by_hand(GCM, PLAIN, GCM, tagged=True))
    assert file.is_authenticated
    file.check_tags()
    assert whole(file) == PLAIN


def test_a_tag_cannot_be_left_out_of_one_block_only() -> None:
    data = block_by_hand(GCM, PLAIN, GCM, tagged=True) + block_by_hand(GCM, PLAIN, GCM, tagged=False)
    with pytest.raises(CheckpointError, match=r"no encrypted block begins at byte 1331, where one should: damaged"):
        opened(data)


# ---- what is wrong with it ----


@pytest.mark.parametrize("region", [*range(44), 44, 100, 143, 144, 290, -1])
def test_a_changed_byte_of_gcm_is_one_error(region: int) -> None:
    data = bytearray(encrypted(PLAIN))
    data[region] ^= 1
    if region in range(40, 44):  # the nonce is the iv's first 12 bytes: the others mean nothing
        opened(bytes(data)).check_tags()
        return
    with pytest.raises(CheckpointError) as caught:
        opened(bytes(data)).check_tags()
    assert str(caught.value).startswith("/somewhere/model.ckpt: ")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [CBC, SM4])
@pytest.mark.parametrize("region", [*range(12), *range(28, 32), -17])
def test_a_changed_byte_of_cbc_is_an_error_where_its_layout_shows_it(mode: EncryptionMode, region: int) -> None:
    data = bytearray(encrypted(PLAIN[:96], mode))
    data[region] ^= 0x80
    with pytest.raises(CheckpointError):
        opened(bytes(data), mode)


@pytest.mark.parametrize("mode", EncryptionMode)
def test_every_truncation_is_an_error(mode: EncryptionMode) -> None:
    data = encrypted(PLAIN[:150], mode)
    border = encrypted_bytes(100, mode, 100)
    for length in range(1, len(data)):
        if length == border:  # a whole number of blocks: their contents are too short then, and its reader tells
            assert opened(data[:length], mode).size_bytes == 100
            continue
        with pytest.raises(CheckpointError, match=r"truncated|damaged|is not encrypted"):
            opened(data[:length], mode)


def test_the_tag_reveals_a_wrong_key() -> None:
    with pytest.raises(CheckpointError) as caught:
        opened(encrypted(PLAIN), GCM, b"fedcba9876543210").check_tags()
    assert str(caught.value) == (
        "/somewhere/model.ckpt: cannot be decrypted (the block at byte 0 fails its tag): env:KEY is not the key that "
        "it was encrypted with, or it was changed since"
    )


@pytest.mark.parametrize("mode", [CBC, SM4])
def test_the_padding_mostly_reveals_a_wrong_key(mode: EncryptionMode) -> None:
    data = encrypted(PLAIN, mode)
    found = 0
    for number in range(50):
        try:
            opened(data, mode, number.to_bytes(16, "big"))
        except CheckpointError as error:
            found += "does not end as it should): env:KEY is not the key" in str(error)
    assert found == 50  # one block in 256 would pass, thirteen do not


@pytest.mark.parametrize("mode", EncryptionMode)
def test_a_wrong_key_that_nothing_else_reveals_decrypts_to_no_checkpoint(mode: EncryptionMode) -> None:
    stored = encrypted(CHECKPOINT, mode, 1000)
    assert set(read_index(opened(stored, mode)).entries) == {"w", "b"}
    for number in range(10_000):  # of CBC one in 256 passes for the right one at first
        with pytest.raises(CheckpointError, match="env:KEY is not the key that it was encrypted with") as caught:
            read_index(opened(stored, mode, number.to_bytes(16, "big")))
        if "does not decrypt to a checkpoint (" in str(caught.value):
            break
    else:
        pytest.fail("the padding revealed every wrong key")


@pytest.mark.parametrize("mode", EncryptionMode)
def test_an_encrypted_file_without_a_key(mode: EncryptionMode) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_index(MemoryFile(encrypted(CHECKPOINT, mode)))
    assert str(caught.value) == (
        f"/somewhere/model.ckpt: is encrypted with {mode}: name its key with 'decrypt_key', and decrypt_mode='{mode}'"
    )


def test_nothing_repeats_the_key() -> None:
    file = opened(encrypted(CHECKPOINT))
    for found in (repr(key()), repr(vars(file)), repr(file)):
        assert SECRET.decode() not in found

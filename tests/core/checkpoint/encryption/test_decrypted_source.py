"""Encrypted files: those that MindSpore wrote, what is written here, any part of them, and every way to spoil one."""

import json
import os
import struct

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint.encryption.cipher_blocks import MAGICS, KeyMistakeError
from reshard.core.checkpoint.encryption.decrypted_source import DecryptedSource
from reshard.core.checkpoint.encryption.encrypted_output import EncryptedOutput, encrypted_bytes
from reshard.core.checkpoint.formats.any_format import read_index
from reshard.core.errors import CheckpointError
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.uploads import Buffer
from reshard.core.storage.urls import parse_url
from tests.support.ckpt_writer import MemoryFile, checkpoint_bytes
from tests.support.places import FIXTURES
from tests.support.remote_file import RemoteFile

GCM, CBC, SM4 = EncryptionMode.AES_GCM, EncryptionMode.AES_CBC, EncryptionMode.SM4_CBC
FORMATS = FIXTURES / "formats"
EXPECT = json.loads((FORMATS / "expect.json").read_text())
SECRET = b"0123456789abcdef"
PLAIN = bytes(range(256)) * 5 + b"end"
CHECKPOINT = checkpoint_bytes(("w", "Float32", (32,), bytes(range(128))), ("b", "Int8", (5,), b"12345"))


def key(mode: EncryptionMode = GCM, secret: bytes = SECRET) -> Key:
    return Key(secret, mode, "env:KEY")


class _Written(bytearray):
    """An OutputFile."""

    def write(self, buffer: Buffer) -> None:
        self.extend(buffer)

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        raise AssertionError


def encrypted(plain: bytes, mode: EncryptionMode = GCM, block_bytes: int = 100, secret: bytes = SECRET) -> bytes:
    file = _Written()
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
    return DecryptedSource(_Fresh(data), key(mode, secret))


class _Fresh(MemoryFile):
    """Each is another file: where blocks are is remembered by a file's place and version."""

    count = 0

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        _Fresh.count += 1
        self.version = f"fresh-{_Fresh.count}"


def remote_file(data: bytes) -> RemoteFile:
    file = RemoteFile([(0, data)], len(data))
    file.version = _Fresh(b"").version
    return file


def whole(file: DecryptedSource) -> bytes:
    return read_bytes(file, 0, file.size_bytes)


def streamed(file: DecryptedSource) -> bytes:
    return b"".join(bytes(piece) for piece in file.stream())


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


def test_nothing_is_no_block() -> None:
    assert encrypted(b"") == b""
    assert encrypted_bytes(0, "AES-GCM") == 0
    assert encrypted_bytes(5, "") == 5


@pytest.mark.parametrize("secret", [b"1" * 16, b"1" * 24, b"1" * 32])
@pytest.mark.parametrize("mode", [GCM, CBC])
def test_aes_takes_keys_of_three_lengths(mode: EncryptionMode, secret: bytes) -> None:
    assert whole(opened(encrypted(PLAIN, mode, secret=secret), mode, secret)) == PLAIN


@pytest.mark.parametrize("mode", EncryptionMode)
def test_the_same_is_never_encrypted_alike(mode: EncryptionMode) -> None:
    data = encrypted(bytes(160), mode, 16)
    size = encrypted_bytes(16, mode, 16)
    blocks = {data[start : start + size] for start in range(0, len(data), size)}
    assert len(blocks) == 10
    assert len({block[-24:] for block in blocks}) == 10
    assert encrypted(bytes(160), mode) != encrypted(bytes(160), mode)


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


@settings(deadline=None)
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
    stored = _Fresh(encrypted(bytes(1_000_000), mode, 1_000_000))
    file = DecryptedSource(stored, key(mode))
    stored.reads.clear()
    read_bytes(file, 500_000, 100)
    assert sum(length for _, length in stored.reads) <= 100 + 32


def test_of_a_remote_file_a_range_takes_one_request() -> None:
    stored = _Fresh(encrypted(PLAIN))
    file = DecryptedSource(stored, key())
    stored.reads.clear()
    file.read_many([(50, 400), (700, 20)])
    assert len(stored.reads) == 2


def test_where_blocks_are_is_found_once() -> None:
    stored = _Fresh(encrypted(PLAIN))
    DecryptedSource(stored, key())
    stored.reads.clear()
    DecryptedSource(stored, key())
    assert stored.reads == [(0, 48)]  # whether it is still the same


def test_the_heads_of_a_remote_file_are_asked_for_in_few_rounds() -> None:
    stored = remote_file(encrypted(bytes(100_000), GCM, 100))
    assert DecryptedSource(stored, key()).size_bytes == 100_000
    assert len(stored.rounds) < 20


def test_a_read_beyond_the_end() -> None:
    file = opened(encrypted(PLAIN))
    with pytest.raises(CheckpointError, match=r"ends at byte 1283 \(decrypted\), earlier than it should"):
        read_bytes(file, 1280, 4)
    assert read_bytes(file, 1283, 0) == b""


# ---- early releases ----


@pytest.mark.parametrize("mode", EncryptionMode)
def test_early_releases_began_every_mode_alike_and_wrote_no_tag(mode: EncryptionMode) -> None:
    data = b"".join(block_by_hand(mode, PLAIN[start : start + 500], GCM, tagged=False) for start in (0, 500, 1000))
    file = opened(data, mode)
    assert not file.is_authenticated
    file.check_tags()
    assert whole(file) == streamed(file) == PLAIN


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
def test_a_changed_byte_of_cbc_is_an_error_where_its_layout_tells(mode: EncryptionMode, region: int) -> None:
    data = bytearray(encrypted(PLAIN[:96], mode))
    data[region] ^= 0x80
    with pytest.raises(CheckpointError):
        opened(bytes(data), mode)


@pytest.mark.parametrize("mode", EncryptionMode)
def test_every_truncation_is_told(mode: EncryptionMode) -> None:
    data = encrypted(PLAIN[:150], mode)
    border = encrypted_bytes(100, mode, 100)
    for length in range(1, len(data)):
        if length == border:  # a whole number of blocks: what is in them is too short then, and its reader tells
            assert opened(data[:length], mode).size_bytes == 100
            continue
        with pytest.raises(CheckpointError, match=r"truncated|damaged|is not encrypted"):
            opened(data[:length], mode)


def test_the_tag_tells_a_wrong_key() -> None:
    with pytest.raises(CheckpointError) as caught:
        opened(encrypted(PLAIN), GCM, b"fedcba9876543210").check_tags()
    assert str(caught.value) == (
        "/somewhere/model.ckpt: cannot be decrypted (the block at byte 0 fails its tag): env:KEY is not the key that "
        "it was encrypted with, or it was changed since"
    )


@pytest.mark.parametrize("mode", [CBC, SM4])
def test_the_padding_mostly_tells_a_wrong_key(mode: EncryptionMode) -> None:
    data = encrypted(PLAIN, mode)
    told = 0
    for number in range(50):
        try:
            opened(data, mode, number.to_bytes(16, "big"))
        except CheckpointError as error:
            told += "does not end as it should): env:KEY is not the key" in str(error)
    assert told == 50  # one block in 256 would pass, thirteen do not


@pytest.mark.parametrize("mode", EncryptionMode)
def test_a_wrong_key_that_nothing_else_tells_decrypts_to_no_checkpoint(mode: EncryptionMode) -> None:
    stored = encrypted(CHECKPOINT, mode, 1000)
    assert set(read_index(opened(stored, mode)).entries) == {"w", "b"}
    for number in range(10_000):  # of CBC one in 256 passes for the right one at first
        with pytest.raises(CheckpointError, match="env:KEY is not the key that it was encrypted with") as caught:
            read_index(opened(stored, mode, number.to_bytes(16, "big")))
        if "does not decrypt to a checkpoint (" in str(caught.value):
            break
    else:
        pytest.fail("the padding told every wrong key")


@pytest.mark.parametrize("mode", EncryptionMode)
def test_a_file_that_was_encrypted_anew_in_the_same_tick(mode: EncryptionMode) -> None:
    for _ in range(2):  # of one name, size and version
        file = DecryptedSource(MemoryFile(encrypted(PLAIN, mode, 100), "anew.ckpt"), key(mode))
        assert read_bytes(file, 0, len(PLAIN)) == PLAIN


def test_a_file_that_was_encrypted_anew_where_only_sizes_are_told() -> None:
    for _ in range(2):
        data = encrypted(PLAIN, CBC, 100)
        stored = RemoteFile([(0, data)], len(data))
        stored.version = str(stored.size_bytes)
        file = DecryptedSource(stored, key(CBC))
        assert read_bytes(file, 0, len(PLAIN)) == PLAIN


def test_a_file_that_is_not_encrypted() -> None:
    for data in (CHECKPOINT, b"\x02" + bytes(7) + b"{}"):
        with pytest.raises(KeyMistakeError) as caught:
            opened(data)
        assert (
            str(caught.value) == "/somewhere/model.ckpt: is not encrypted, but env:KEY is named as its key: name none"
        )


@pytest.mark.parametrize("data", [b"", b"\xd8", bytes(100)], ids=["empty", "cut short", "zeros"])
def test_what_is_neither_encrypted_nor_plain_is_damaged(data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        opened(data)
    assert not isinstance(caught.value, KeyMistakeError)
    assert str(caught.value) == (
        "/somewhere/model.ckpt: no encrypted block begins at byte 0, where one should: damaged"
    )


@pytest.mark.parametrize(("written", "named"), [(GCM, CBC), (GCM, SM4), (CBC, GCM), (CBC, SM4), (SM4, CBC), (SM4, GCM)])
def test_another_mode(written: EncryptionMode, named: EncryptionMode) -> None:
    with pytest.raises(CheckpointError, match=f"is encrypted with {written}, not with {named}: name that mode"):
        opened(encrypted(PLAIN, written), named)


@pytest.mark.parametrize("mode", EncryptionMode)
def test_an_encrypted_file_without_a_key(mode: EncryptionMode) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_index(MemoryFile(encrypted(CHECKPOINT, mode)))
    assert str(caught.value) == (
        f"/somewhere/model.ckpt: is encrypted with {mode}: name its key with --decrypt-key, and --decrypt-mode {mode}"
    )


def test_a_block_that_says_it_is_longer_than_the_file() -> None:
    data = encrypted(PLAIN[:50])
    longer = data[:20] + struct.pack("<I", 24 + 2**31) + data[24:44] + struct.pack("<I", 2**31) + data[48:]
    with pytest.raises(CheckpointError, match=r"ends at byte 98, but its encrypted block at 0 ends at 2147483696"):
        opened(longer)


def test_what_was_encrypted_cannot_be_written_anew() -> None:
    with pytest.raises(Exception, match="can only be appended to"):
        EncryptedOutput(_Written(), key()).rewrite(0, b"x")


def test_nothing_repeats_the_key() -> None:
    file = opened(encrypted(CHECKPOINT))
    for told in (repr(key()), repr(vars(file)), repr(file)):
        assert SECRET.decode() not in told

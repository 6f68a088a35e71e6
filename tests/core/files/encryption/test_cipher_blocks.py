import struct

import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.encryption.cipher_blocks import KeyMistakeError
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.storage.reading import read_bytes
from tests.support.ckpt_writer import MemoryFile
from tests.support.encrypted_files import (
    CBC,
    CHECKPOINT,
    GCM,
    PLAIN,
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
from tests.support.remote_file import RemoteFile


def test_where_blocks_are_is_found_once() -> None:
    stored = FreshFile(encrypted(PLAIN))
    DecryptedSource(stored, key())
    stored.reads.clear()
    DecryptedSource(stored, key())
    assert stored.reads == [(0, 48)]  # whether it is still the same


def test_the_heads_of_a_remote_file_are_asked_for_in_few_rounds() -> None:
    stored = remote_file(encrypted(bytes(100_000), GCM, 100))
    assert DecryptedSource(stored, key()).size_bytes == 100_000
    assert len(stored.rounds) < 20


@pytest.mark.parametrize("mode", EncryptionMode)
def test_early_releases_began_every_mode_alike_and_wrote_no_tag(mode: EncryptionMode) -> None:
    data = b"".join(block_by_hand(mode, PLAIN[start : start + 500], GCM, tagged=False) for start in (0, 500, 1000))
    file = opened(data, mode)
    assert not file.is_authenticated
    file.check_tags()
    assert whole(file) == streamed(file) == PLAIN


@pytest.mark.parametrize("mode", EncryptionMode)
def test_a_file_that_was_encrypted_again_in_the_same_tick(mode: EncryptionMode) -> None:
    for _ in range(2):  # of one name, size and version
        file = DecryptedSource(MemoryFile(encrypted(PLAIN, mode, 100), "again.ckpt"), key(mode))
        assert read_bytes(file, 0, len(PLAIN)) == PLAIN


def test_a_file_that_was_encrypted_again_where_only_the_size_is_known() -> None:
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


def test_a_block_that_says_it_is_longer_than_the_file() -> None:
    data = encrypted(PLAIN[:50])
    longer = data[:20] + struct.pack("<I", 24 + 2**31) + data[24:44] + struct.pack("<I", 2**31) + data[48:]
    with pytest.raises(CheckpointError, match=r"ends at byte 98, but its encrypted block at 0 ends at 2147483696"):
        opened(longer)

from pathlib import Path

import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.encryption.opening import open_checkpoint, write_checkpoint
from reshard.core.storage.reading import read_bytes
from reshard.core.storage.urls import parse_url
from tests.support.encrypted_files import GCM, PLAIN, key, opened


def written(path: Path, *, with_key: bool) -> bytes:
    with write_checkpoint(parse_url(str(path)), key() if with_key else None) as file:
        file.write(PLAIN[:700])
        file.write(PLAIN[700:])
    return path.read_bytes()


def test_without_a_key_files_are_plain(tmp_path: Path) -> None:
    path = tmp_path / "plain.ckpt"
    assert written(path, with_key=False) == PLAIN
    file = open_checkpoint(parse_url(str(path)), None)
    assert read_bytes(file, 100, 50) == PLAIN[100:150]
    file.close()


def test_with_a_key_they_are_encrypted_and_read_in_the_plain(tmp_path: Path) -> None:
    path = tmp_path / "secret.ckpt"
    stored = written(path, with_key=True)
    assert PLAIN[:50] not in stored
    assert read_bytes(opened(stored, GCM), 0, len(PLAIN)) == PLAIN
    file = open_checkpoint(parse_url(str(path)), key())
    assert file.size_bytes == len(PLAIN)
    assert read_bytes(file, 100, 50) == PLAIN[100:150]
    file.close()


def test_a_key_for_a_plain_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.ckpt"
    path.write_bytes(b"\n" + bytes(100))
    with pytest.raises(CheckpointError, match="is not encrypted, but env:KEY is named as its key"):
        open_checkpoint(parse_url(str(path)), key())

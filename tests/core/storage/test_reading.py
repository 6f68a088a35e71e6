"""Files are read at offsets by many threads; small files whole."""

import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reshard.core.errors import CheckpointError, StorageError
from reshard.core.storage import disk, fsspec_store
from reshard.core.storage.reading import open_source, read_bytes, read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from tests.support.small_files import CONTENT


def test_many_threads_read_at_random_offsets(file: Location) -> None:
    source = open_source(file)
    assert source.size_bytes == len(CONTENT)

    def reads(seed: int) -> bool:
        chance = random.Random(seed)
        for _ in range(50):
            start, stop = sorted(chance.choices(range(len(CONTENT) + 1), k=2))
            if read_bytes(source, start, stop - start) != CONTENT[start:stop]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(reads, range(16)))
    source.close()


def test_a_part_of_a_buffer_is_filled(file: Location) -> None:
    source = open_source(file)
    buffer = bytearray(b"." * 10)
    source.read_into(7, memoryview(buffer)[2:5])
    assert bytes(buffer) == b".." + CONTENT[7:10] + b"....."
    source.close()


@pytest.mark.parametrize(("offset", "length"), [(99_990, 11), (100_000, 1), (200_000, 5)])
def test_a_file_that_ends_early_is_named_with_the_offset(file: Location, offset: int, length: int) -> None:
    source = open_source(file)
    with pytest.raises(CheckpointError, match=r"content.bin: ends at byte \d+, earlier than it should: truncated"):
        read_bytes(source, offset, length)
    source.close()


def test_a_file_truncated_while_it_is_open(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    source = open_source(parse_url(str(tmp_path / "f")))
    os.truncate(tmp_path / "f", 1234)
    with pytest.raises(CheckpointError, match="/f: ends at byte 1234"):
        read_bytes(source, 1000, 1000)
    source.close()


def test_nothing_is_asked_for_an_empty_range(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    # HTTP's "bytes=5-4" is no range: servers then send all
    source = open_source(file)
    for reader in (disk._Reader, fsspec_store._Reader):
        monkeypatch.setattr(reader, "read_into", lambda *_: pytest.fail("something was asked for"))
    assert read_bytes(source, 5, 0) == b""
    source.close()


def test_missing_file(folder: Location) -> None:
    with pytest.raises(StorageError, match="nothing.ckpt: cannot read it: no such file or directory") as caught:
        open_source(folder.child("nothing.ckpt"))
    assert not caught.value.transient


def test_a_directory_is_no_file(folder: Location, file: Location) -> None:
    with pytest.raises(StorageError, match="cannot read it: Is a directory"):
        open_source(file.parent)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")  # root may read everything

    monkeypatch.setattr("os.open", refusing)
    with pytest.raises(StorageError, match="secret: cannot read it: permission denied"):
        open_source(parse_url(str(tmp_path / "secret")))


def test_small_files(folder: Location, file: Location) -> None:
    assert read_small_file(file, len(CONTENT)) == CONTENT
    with pytest.raises(CheckpointError, match="content.bin: has more than 99999 bytes, the limit for such a file"):
        read_small_file(file, len(CONTENT) - 1)
    write_bytes(folder.child("empty"), b"")
    assert read_small_file(folder.child("empty"), 0) == b""


def test_a_file_that_was_read_and_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "a").write_bytes(CONTENT)
    file = open_source(parse_url(str(tmp_path / "a")))
    close = os.close
    with monkeypatch.context() as patch:
        patch.setattr("os.close", failing)
        with pytest.raises(StorageError, match="a: cannot close it: Input/output error") as caught:
            file.close()
    assert caught.value.transient
    file.close()

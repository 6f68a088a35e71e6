import hashlib
import os
import zlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import xxhash

from reshard.core.errors import CheckpointError
from reshard.core.files import ckpt
from reshard.core.files.digests import HeaderMismatchError, content_digests, file_digests
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.model import OutputEntry, TensorEntry, text_entry
from reshard.core.runtime.idle_workers import IdleWorkers, lending
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.storage.hashing import running_sha256
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import MAP_TENSOR, dtype_from_name
from tests.support.ckpt_writer import MemoryFile, checkpoint_bytes
from tests.support.encrypted_files import CHECKPOINT, encrypted, key
from tests.support.remote_file import RemoteFile, planned_parts, sparse_file

MIB = 2**20
REMOTE, LOCAL = "memory:///somewhere/model.ckpt", "/somewhere/model.ckpt"
ENTRIES = [
    OutputEntry("a", dtype_from_name("Int8"), (100,)),
    OutputEntry("large", dtype_from_name("Int8"), (9, MIB)),
    OutputEntry("empty", dtype_from_name("Int8"), (0, 3)),
    OutputEntry("b", dtype_from_name("Int8"), (7,)),
    OutputEntry("c", dtype_from_name("Int8"), (70_000,)),
    OutputEntry("map", MAP_TENSOR, (12,), None, (5, 0, 7)),
    OutputEntry("last", dtype_from_name("Float64"), ()),
]


def held() -> list[TensorEntry]:
    return list(ckpt.read_index(sparse_file(ENTRIES)).entries.values())


def contents(entry: TensorEntry) -> bytes:
    return b"".join(sparse_file(ENTRIES).read_many([(extent.offset, extent.length) for extent in entry.extents]))


def digests(file: RemoteFile, entries: Sequence[TensorEntry], *, assumed: bool = False) -> list[str]:
    return list(content_digests(file, entries, 1000, assumed=assumed))


@pytest.mark.parametrize(("url", "assumed"), [(LOCAL, False), (REMOTE, False), (REMOTE, True)])
@pytest.mark.parametrize("backwards", [False, True])
def test_each_in_its_turn(url: str, assumed: bool, backwards: bool) -> None:
    file = sparse_file(ENTRIES, url)
    entries = held()[:: -1 if backwards else 1]
    entries.insert(3, text_entry("note", "naïve"))
    wanted = [xxhash.xxh3_128_hexdigest(contents(entry) or (entry.text or "").encode()) for entry in entries]
    assert digests(file, entries, assumed=assumed) == wanted


def test_small_ones_of_a_remote_file_share_requests() -> None:
    file = sparse_file(ENTRIES)
    digests(file, held())
    assert file.requests == 4  # a, two of 4 MiB, and the rest
    assert max(length for ranges in file.rounds for _, length in ranges) <= 4 * MIB


@pytest.mark.parametrize("place", range(len(ENTRIES)))
def test_another_head_before_contents_whose_headers_are_assumed(place: int) -> None:
    entries = held()
    parts, size_bytes = planned_parts(ENTRIES)
    offset = entries[place].extents[-1].offset - 2
    file = RemoteFile([*parts, (offset, b"\xee")], size_bytes)
    assert digests(file, entries) == digests(sparse_file(ENTRIES), entries)
    with pytest.raises(HeaderMismatchError):
        digests(file, entries, assumed=True)
    others = [entry for number, entry in enumerate(entries) if number != place]
    assert digests(file, others, assumed=True) == digests(sparse_file(ENTRIES), others)


def test_a_file_that_ends_too_early() -> None:
    for url in (LOCAL, REMOTE):
        file = RemoteFile([], 1000, url)
        with pytest.raises(CheckpointError, match="beyond"):
            digests(file, held()[1:2])


@pytest.mark.parametrize("idle_workers", [0, 1, 5])
def test_idle_workers_read_ahead(tmp_path: Path, idle_workers: int) -> None:
    path = tmp_path / "model.ckpt"
    tensors = {f"w{number}": bytes([number]) * (1000 * number + 1) for number in range(9)}
    path.write_bytes(checkpoint_bytes(*((name, "Int8", (len(data),), data) for name, data in tensors.items())))
    taken: dict[str, bytes] = {}

    def take(name: str, content: memoryview) -> None:
        taken[name] = taken.get(name, b"") + bytes(content)

    with closing(open_source(parse_url(str(path)))) as file, lending(IdleWorkers()) as idle:
        index = ckpt.read_index(file)
        alone = file_digests(file, index, 500)
        idle.offer(idle_workers)
        assert file_digests(file, index, 500, take=take) == alone
        assert idle.lent == 0
        assert alone.parameters == {name: xxhash.xxh3_128_hexdigest(data) for name, data in tensors.items()}
        assert taken == tensors
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(CheckpointError, match="earlier than it should"):
            file_digests(file, index, 500)
        assert idle.lent == 0


@pytest.mark.parametrize("block_bytes", [16, 100, 1000, 4096, 2**20])
@pytest.mark.parametrize("has_crc", [False, True])
def test_many_small_parameters_in_a_block(block_bytes: int, has_crc: bool) -> None:
    contents = {f"p{number}": os.urandom(number % 40) for number in range(300)} | {"long": os.urandom(3000)}
    pieces = [(name, "Int8", (len(content),), content) for name, content in contents.items()]
    pieces[200:200] = [("split", "Int8", (5,), content) for content in (b"12", b"345")]
    contents["split"] = b"12345"
    data = checkpoint_bytes(*pieces)
    if has_crc:
        data += b"crc_num" + zlib.crc32(data).to_bytes(10)
    file = MemoryFile(data, "a.ckpt")
    index = ckpt.read_index(file)
    taken: defaultdict[str, bytes] = defaultdict(bytes)
    advanced: list[int] = []

    def take(name: str, content: memoryview) -> None:
        taken[name] += content

    found = file_digests(file, index, block_bytes, advanced.append, take)
    assert found.parameters == {name: xxhash.xxh3_128_hexdigest(content) for name, content in contents.items()}
    assert taken == {name: content for name, content in contents.items() if content}
    assert sum(advanced) == sum(map(len, contents.values())) == index.content_bytes
    heads, end = b"", 0
    for extent in (extent for entry in index.entries.values() for extent in entry.extents):
        heads, end = heads + data[end : extent.offset], extent.offset + extent.length
    assert found.heads == xxhash.xxh3_128_hexdigest(heads + data[end:])
    assert found.crc == (zlib.crc32(data[:-17]) if has_crc else None)


@pytest.mark.parametrize("mode", [None, *EncryptionMode])
def test_sha256_of_a_file_as_it_is_stored(mode: EncryptionMode | None) -> None:
    stored = CHECKPOINT if mode is None else encrypted(CHECKPOINT, mode)
    file: Any = MemoryFile(stored, "a.ckpt")
    if mode is not None:
        file = DecryptedSource(file, key(mode))
    with running_sha256(needed=True) as sha256:
        assert sha256 is not None
        found = file_digests(file, ckpt.read_index(file), 50, sha256=sha256)
        assert sha256.hexdigest() == hashlib.sha256(stored).hexdigest()
    assert found == file_digests(file, ckpt.read_index(file), 50)

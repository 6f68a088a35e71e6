import time
import zlib
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import xxhash
from msgspec.structs import replace

from reshard.core.errors import CheckpointError, InputError, StorageError
from reshard.core.files.digests import content_digests
from reshard.core.files.model import OutputEntry
from reshard.core.layouts.cataloging import catalog_files
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from tests.support.places import FIXTURES
from tests.support.remote_file import sparse_file
from tests.support.source_directories import Source, catalog, ckpt, everything, failing_on, field, rank_contents, tensor


def test_crc_is_checked_unless_it_is_switched_off(source: Source) -> None:
    content = ckpt("w")
    good = content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big")
    source.add("rank_0/A.ckpt", data=good)
    assert catalog(source.url, 1).records[0].index.has_crc
    source.add("rank_0/A.ckpt", data=good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"(?i)crc"):
        catalog(source.url, 1)
    assert catalog(source.url, 1, check_crc=False).records[0].index.has_crc


def test_equal_indexes_are_one_object(source: Source) -> None:
    source.add_ranks(6)
    source.add("rank_3/CKP-1_2.ckpt", "rank_5/CKP-1_2.ckpt", data=ckpt("v"))
    indexes = [record.index for record in catalog(source.url, 6).records.values()]
    assert len({id(index) for index in indexes}) == 2
    assert indexes[0] is indexes[4]
    assert indexes[3] is indexes[5]
    assert list(indexes[3].entries) == ["v"]


def test_digests_of_the_parameters_asked_for(source: Source) -> None:
    content = bytes(range(200))
    source.add("rank_0/A.ckpt", data=ckpt("w", "v", content=content)).add("rank_1/A.ckpt")
    result = catalog(source.url, 2, digest=lambda rank, entry: rank == 0 and entry.name == "v")
    assert result.records[0].digests == {"v": xxhash.xxh3_128_hexdigest(content)}
    assert result.records[1].digests == {}


def test_digest_covers_blocks_and_pieces_in_order(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.checkpoint.record_reader._BLOCK_BYTES", 48)
    one, two = bytes(range(200)), bytes(range(7, 150))
    data = b"".join(field(1, field(1, b"w") + tensor(343, part)) for part in (one, two))
    source.add("rank_0/A.ckpt", data=data)
    result = catalog(source.url, 1, digest=lambda rank, entry: True)
    assert result.records[0].digests == {"w": xxhash.xxh3_128_hexdigest(one + two)}


def test_digest_of_a_text() -> None:
    result = catalog(str(FIXTURES / "formats/plain.ckpt"), None, digest=lambda rank, entry: entry.text is not None)
    texts = {entry.name: entry.text for entry in result.records[0].index.entries.values() if entry.text is not None}
    assert texts
    assert result.records[0].digests == {name: xxhash.xxh3_128_hexdigest(text.encode()) for name, text in texts.items()}


def test_remote_files_like_another_are_assumed_to_have_its_headers(remote: Source) -> None:
    for rank in range(3):
        remote.add(f"rank_{rank}/A.ckpt", data=rank_contents(rank, "abcdefgh"))
    result = catalog(remote.url, 3, digest=everything)
    assert [record.assumed for record in result.records.values()] == [False, True, True]
    for rank, record in result.records.items():
        digests = {name: xxhash.xxh3_128_hexdigest(bytes([rank]) * 150 + name.encode()) for name in "abcdefgh"}
        assert record.digests == digests
    files = {rank: parse_url(record.location) for rank, record in result.records.items()}
    plain = catalog_files(remote.url, files, digest=everything)
    assert not any(record.assumed for record in plain.records.values())
    assert {rank: replace(record, assumed=False) for rank, record in result.records.items()} == plain.records


def test_a_file_that_turns_out_to_be_unlike_when_digested_is_read_like_the_first(remote: Source) -> None:
    names = ["abcdefghijklmnopqrst", "abcdefghijklmnopqrst", "acbdefghijklmnopqrst"]
    for rank, order in enumerate(names):
        remote.add(f"rank_{rank}/A.ckpt", data=rank_contents(rank, order))
    blind = catalog(remote.url, 3).records[2]
    assert (blind.assumed, list(blind.index.entries)) == (True, list(names[0]))
    result = catalog(remote.url, 3, digest=everything)
    assert [record.assumed for record in result.records.values()] == [False, True, False]
    assert list(result.records[2].index.entries) == list(names[2])
    assert result.records[2].digests["b"] == xxhash.xxh3_128_hexdigest(bytes([2]) * 150 + b"b")


def test_local_files_are_read_each(tmp_path: Path) -> None:
    source = Source(str(tmp_path.resolve() / "ck")).add_ranks(3)
    assert not any(record.assumed for record in catalog(source.url, 3).records.values())


def test_few_requests_for_many_equal_files(remote: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """225 parameters of 16 KiB to 8 MiB, the small ones digested."""
    remote.add_ranks(8)
    sizes = (2**14, 2**14, 2**20, 2**20, 2**21, 2**22, 2**23, 2**23, 2**23)
    entries = [
        OutputEntry(f"layers.{layer}.{part}", dtype_from_name("Int8"), (size,))
        for layer in range(25)
        for part, size in enumerate(sizes)
    ]
    files = {f"{remote.url}/rank_{rank}/CKP-1_2.ckpt": sparse_file(entries) for rank in range(8)}
    monkeypatch.setattr(
        "reshard.core.files.encryption.opening.open_source", lambda location, _version: files[str(location)]
    )
    result = catalog(remote.url, 8, digest=lambda rank, entry: entry.size_bytes == 2**14)
    assert [record.assumed for record in result.records.values()] == [False] + 7 * [True]
    assert all(len(record.digests) == 50 for record in result.records.values())
    assert len({tuple(record.digests.items()) for record in result.records.values()}) == 1
    walked, *others = files.values()
    assert walked.requests < 275 + 25
    # samples, and the two small parameters of each layer by one request
    assert all(file.requests <= 10 + 25 for file in others)


def test_one_long_read_at_a_time_if_no_more_are_allowed(remote: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds what it has read ahead."""
    monkeypatch.setattr("reshard.core.files.remote_reads._WHOLE_FILES_AT_ONCE", 1)
    monkeypatch.setattr("reshard.core.checkpoint.record_reader._BLOCK_BYTES", 100)
    alone = Lock()

    def watched(*arguments: Any, **options: Any) -> list[str]:
        assert alone.acquire(blocking=False)
        time.sleep(0.02)  # for the others to come
        alone.release()
        return list(content_digests(*arguments, **options))

    monkeypatch.setattr("reshard.core.checkpoint.record_reader.content_digests", watched)
    for rank in range(3):
        remote.add(f"rank_{rank}/A.ckpt", data=rank_contents(rank, "ab"))
    assert len(catalog(remote.url, 3, digest=everything).records) == 3


def test_transient_failure_is_not_blamed_on_the_input(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add_ranks(3)
    source.add("rank_0/CKP-1_2.ckpt", data=b"")
    monkeypatch.setattr(
        "reshard.core.files.encryption.opening.open_source",
        failing_on(2, StorageError("slow down", transient=True)),
    )
    with pytest.raises(StorageError, match="slow down"):
        catalog(source.url, 3)


def test_file_that_cannot_be_read_is_the_inputs_fault(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add_ranks(3)
    monkeypatch.setattr(
        "reshard.core.files.encryption.opening.open_source", failing_on(2, StorageError("permission denied"))
    )
    with pytest.raises(InputError, match="permission denied"):
        catalog(source.url, 3)


def test_files_are_closed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add_ranks(2).add("rank_1/CKP-1_2.ckpt", data=b"")
    closed: list[str] = []

    def watched(location: Any, version: str) -> Any:
        file = open_source(location, version)
        close = file.close

        def close_and_record() -> None:
            closed.append(str(location))
            close()

        monkeypatch.setattr(file, "close", close_and_record)
        return file

    monkeypatch.setattr("reshard.core.files.encryption.opening.open_source", watched)
    with pytest.raises(CheckpointError):
        catalog(source.url, 2)
    assert len(closed) == 2

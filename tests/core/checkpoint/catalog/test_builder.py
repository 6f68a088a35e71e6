import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import fsspec
import pytest
import xxhash

from reshard.core.checkpoint.catalog.builder import build_catalog
from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.checkpoint.digests import content_digests
from reshard.core.checkpoint.model import CheckpointFormat, FileIndex, OutputEntry, TensorEntry
from reshard.core.errors import CatalogError, CheckpointError, InputError, StorageError
from reshard.core.storage.reading import open_source
from reshard.core.tensor.dtypes import dtype_from_name
from tests.support.places import FIXTURES
from tests.support.remote_file import sparse_file


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    length, prefix = len(content), bytearray()
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes(prefix) + bytes([length]) + content


def ckpt(*names: str, content: bytes = b"\1\2\3\4") -> bytes:
    """A `.ckpt` file of UInt8 vectors."""
    return b"".join(field(1, field(1, name.encode()) + tensor(len(content), content)) for name in names)


def tensor(length: int, content: bytes) -> bytes:
    """A TensorProto of a vector of `length` and of some or all of its content."""
    dims = b"\x08" + bytes([length & 127 | 128, length >> 7])
    return field(2, dims + field(2, b"UInt8") + field(3, content))


def safetensors(metadata: dict[str, str]) -> bytes:
    header = json.dumps({"__metadata__": metadata, "w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\1\2"


class Source:
    """A directory being filled, under its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._base = fsspec.url_to_fs(url)

    def add(self, *paths: str, data: bytes | None = None) -> "Source":
        for path in paths:
            place = f"{self._base}/{path}"
            self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(place, ckpt("w") if data is None else data)
        return self

    def add_ranks(self, count: int, name: str = "CKP-1_2.ckpt") -> "Source":
        return self.add(*(f"rank_{rank}/{name}" for rank in range(count)))


@pytest.fixture(params=["local", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    if request.param == "local":
        yield Source(str(tmp_path.resolve() / "ck"))
    else:
        yield Source("memory:///catalog/ck")
        fs = fsspec.filesystem("memory")
        if fs.exists("/catalog"):
            fs.rm("/catalog", recursive=True)


def no_digest(rank: int, entry: TensorEntry) -> bool:
    return False


def catalog(url: str, ranks: int | None, **options: Any) -> CheckpointCatalog:
    return build_catalog(url, None if ranks is None else range(ranks), **{"digest": no_digest, **options})


def chosen(result: CheckpointCatalog) -> list[str]:
    assert list(result.records) == sorted(result.records)
    return [record.location.rpartition("/ck/")[2] for record in result.records.values()]


def test_catalog_of_rank_folders(source: Source) -> None:
    source.add_ranks(12).add_ranks(12, "CKP-2_2.ckpt").add_ranks(3, "CKP-10_2.ckpt").add_ranks(2, "CKP-graph.meta")
    result = catalog(source.url, 12)
    assert chosen(result) == [f"rank_{rank}/CKP-2_2.ckpt" for rank in range(12)]
    assert (result.url, result.step, result.format) == (source.url, "2_2", CheckpointFormat.CKPT)
    assert result.notes == (
        "chosen: step 2_2 of prefix CKP, the newest that all ranks have (CKP-2_2.ckpt on rank_0, 12 ranks)",
        "ignored newer steps that are incomplete: 10_2 (not on rank_3, rank_4, rank_5 and 6 more)",
    )
    record = result.records[11]
    assert record.rank == 11
    assert record.size_bytes == record.index.size_bytes == len(ckpt("w"))
    assert record.location == f"{source.url}/rank_11/CKP-2_2.ckpt"
    assert list(record.index.entries) == ["w"]
    assert record.digests == {}


def test_version_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(ckpt("w"))
    before = catalog(str(path), None).records[0].version
    assert before == catalog(str(path), None).records[0].version
    path.write_bytes(ckpt("w", "v"))
    assert before != catalog(str(path), None).records[0].version


def test_options_reach_the_selection(source: Source) -> None:
    source.add_ranks(2, "A-1_1.ckpt").add_ranks(2, "A-1_2.ckpt").add_ranks(2, "B-1_1.ckpt")
    result = catalog(source.url, 2, step="1_1", source_prefix="A")
    assert chosen(result) == ["rank_0/A-1_1.ckpt", "rank_1/A-1_1.ckpt"]
    assert result.step == "1_1"


def test_names_without_a_step(source: Source) -> None:
    source.add("rank_0/checkpoint_0.ckpt", "rank_1/checkpoint_1.ckpt")
    assert catalog(source.url, 2).step is None


def test_pattern_of_files(source: Source) -> None:
    for rank in range(2):
        source.add(f"origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt", f"origin_checkpoint_rank{rank}/x.ckpt")
    result = catalog(source.url + "/origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt", 2)
    assert chosen(result) == [f"origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt" for rank in range(2)]
    assert result.step == "100_2"


def test_pattern_may_name_breakpoint_files(source: Source) -> None:
    source.add("r0/A-1_2_breakpoint.ckpt", "r1/A-1_2_breakpoint.ckpt")
    assert catalog(source.url + "/r{rank}/A-1_2_breakpoint.ckpt", 2).step == "1_2_breakpoint"
    with pytest.raises(CatalogError, match="only checkpoints saved on an exception"):
        catalog(source.url + "/r{rank}", 2)


def test_single_file_is_rank_0(source: Source) -> None:
    source.add("A-1_2.ckpt", "A-1_3.ckpt")
    assert chosen(catalog(f"{source.url}/A-1_2.ckpt", None)) == ["A-1_2.ckpt"]
    assert chosen(catalog(f"{source.url}/A-1_2.ckpt", 1)) == ["A-1_2.ckpt"]


def test_folder_of_a_single_device(source: Source) -> None:
    source.add("A-9_2.ckpt", "A-10_2.ckpt", "A-graph.meta")
    assert chosen(catalog(source.url, None)) == ["A-10_2.ckpt"]
    assert chosen(catalog(source.url, 1)) == ["A-10_2.ckpt"]


@pytest.mark.parametrize(
    ("name", "what"), [("", "files without rank_N folders"), ("/A.ckpt", "a single checkpoint file")]
)
def test_one_rank_where_the_strategy_has_more(name: str, what: str, source: Source) -> None:
    source.add("A.ckpt")
    with pytest.raises(CatalogError) as caught:
        catalog(source.url + name, 3)
    assert str(caught.value) == (
        f"{source.url}{name}: 1 rank, {what}, but the source strategy has 3 ranks; missing: rank_1, rank_2. "
        "Name the directory of the rank folders, or a pattern with {rank}"
    )


def test_missing_ranks_are_all_listed(source: Source) -> None:
    source.add_ranks(2).add("rank_4/CKP-1_2.ckpt", "rank_6/notes.txt")
    with pytest.raises(CatalogError) as caught:
        catalog(source.url, 30)
    listed = ", ".join(f"rank_{rank}" for rank in range(2, 30) if rank != 4)
    assert str(caught.value) == (
        f"{source.url}: 3 ranks, but the source strategy has 30 ranks; missing: {listed} "
        "(rank_6: a folder without checkpoint files)"
    )


def test_more_ranks_than_the_strategy_has(source: Source) -> None:
    source.add_ranks(8)
    with pytest.raises(CatalogError) as caught:
        catalog(source.url, 4)
    assert str(caught.value) == (
        f"{source.url}: 8 ranks, but the source strategy has 4 ranks: it is another checkpoint's strategy, or one "
        "pipeline stage's own. Too many: rank_4, rank_5, rank_6, rank_7"
    )


def test_extra_ranks_may_be_allowed(source: Source) -> None:
    source.add_ranks(3).add("rank_2/CKP-9_9.ckpt", "rank_2/other.safetensors")
    result = catalog(source.url, 2, allow_extra_ranks=True)
    assert chosen(result) == ["rank_0/CKP-1_2.ckpt", "rank_1/CKP-1_2.ckpt"]
    assert result.notes[-1] == "ignored ranks that are not needed: rank_2"


def test_extra_folder_without_checkpoint_files_is_no_rank(source: Source) -> None:
    source.add_ranks(2).add("rank_2/notes.txt")
    assert len(catalog(source.url, 2).records) == 2


def test_no_strategy_but_several_ranks(source: Source) -> None:
    source.add_ranks(4)
    with pytest.raises(CatalogError, match=r"4 ranks \(rank_0, rank_1, rank_2 and 1 more\).*need a source strategy"):
        catalog(source.url, None)


def test_no_strategy_and_rank_0_alone(source: Source) -> None:
    source.add_ranks(1)
    assert chosen(catalog(source.url, None)) == ["rank_0/CKP-1_2.ckpt"]


def test_no_strategy_and_one_other_rank(source: Source) -> None:
    source.add("rank_3/A.ckpt")
    with pytest.raises(CatalogError, match="source strategy"):
        catalog(source.url, None)


def test_unfinished_conversion_is_refused(source: Source) -> None:
    source.add_ranks(1).add(".reshard/plan.json")
    with pytest.raises(CatalogError, match="unfinished conversion"):
        catalog(source.url, 1)
    source.add(".reshard/manifest.json")
    assert len(catalog(source.url, 1).records) == 1


def test_missing_directory(source: Source) -> None:
    with pytest.raises(CatalogError, match="no such file or directory"):
        catalog(source.url, 1)


def test_one_damaged_file_is_reported_as_it_is(source: Source) -> None:
    source.add_ranks(2).add("rank_1/CKP-1_2.ckpt", data=b"")
    with pytest.raises(CheckpointError, match=r"rank_1/CKP-1_2\.ckpt"):
        catalog(source.url, 2)


def test_all_damaged_files_are_listed(source: Source) -> None:
    source.add_ranks(30)
    for rank in range(3, 30):
        source.add(f"rank_{rank}/CKP-1_2.ckpt", data=ckpt("w")[:-2])
    with pytest.raises(CatalogError) as caught:
        catalog(source.url, 30)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{source.url}: 27 of 30 checkpoint files cannot be used:"
    assert [line.split("/rank_")[1].split("/")[0] for line in lines[:-1]] == [str(rank) for rank in range(3, 23)]
    assert lines[-1] == "  and 7 more"


def test_crc_is_checked_unless_told_otherwise(source: Source) -> None:
    content = ckpt("w")
    good = content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big")
    source.add("rank_0/A.ckpt", data=good)
    assert catalog(source.url, 1).records[0].index.has_crc
    source.add("rank_0/A.ckpt", data=good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"(?i)crc"):
        catalog(source.url, 1)
    assert catalog(source.url, 1, check_crc=False).records[0].index.has_crc


def test_removed_redundancy_is_known(source: Source) -> None:
    for said in (True, False):
        source.add("rank_0/A.safetensors", data=safetensors({"remove_redundancy": str(said)}))
        assert catalog(source.url, 1).records[0].index.redundancy_removed is said


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
    monkeypatch.setattr("reshard.core.checkpoint.catalog.record_reader._BLOCK_BYTES", 48)
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


@pytest.fixture
def remote() -> Iterator[Source]:
    yield Source("memory:///assumed/ck")
    fsspec.filesystem("memory").rm("/assumed", recursive=True)


def everything(rank: int, entry: TensorEntry) -> bool:
    return True


def rank_contents(rank: int, names: str) -> bytes:
    """Parameters whose contents tell rank and name."""
    return b"".join(ckpt(name, content=bytes([rank]) * 150 + name.encode()) for name in names)


def test_remote_files_like_another_are_assumed_to_have_its_headers(remote: Source) -> None:
    for rank in range(3):
        remote.add(f"rank_{rank}/A.ckpt", data=rank_contents(rank, "abcdefgh"))
    result = catalog(remote.url, 3, digest=everything)
    assert [record.assumed for record in result.records.values()] == [False, True, True]
    for rank, record in result.records.items():
        digests = {name: xxhash.xxh3_128_hexdigest(bytes([rank]) * 150 + name.encode()) for name in "abcdefgh"}
        assert record.digests == digests
    plain = catalog(remote.url, 3, digest=everything, assume_alike=False)
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
    monkeypatch.setattr("reshard.core.checkpoint.encryption.opening.open_source", lambda location: files[str(location)])
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
    monkeypatch.setattr("reshard.core.checkpoint.catalog.record_reader._LONG_READS_AT_ONCE", 1)
    monkeypatch.setattr("reshard.core.checkpoint.catalog.record_reader._BLOCK_BYTES", 100)
    alone = Lock()

    def watched(*arguments: Any, **options: Any) -> list[str]:
        assert alone.acquire(blocking=False)
        time.sleep(0.02)  # for the others to come
        alone.release()
        return list(content_digests(*arguments, **options))

    monkeypatch.setattr("reshard.core.checkpoint.catalog.record_reader.content_digests", watched)
    for rank in range(3):
        remote.add(f"rank_{rank}/A.ckpt", data=rank_contents(rank, "ab"))
    assert len(catalog(remote.url, 3, digest=everything).records) == 3


def test_transient_failure_is_not_blamed_on_the_input(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add_ranks(3)
    source.add("rank_0/CKP-1_2.ckpt", data=b"")
    monkeypatch.setattr(
        "reshard.core.checkpoint.encryption.opening.open_source",
        failing_on(2, StorageError("slow down", transient=True)),
    )
    with pytest.raises(StorageError, match="slow down"):
        catalog(source.url, 3)


def test_file_that_cannot_be_read_is_the_inputs_fault(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add_ranks(3)
    monkeypatch.setattr(
        "reshard.core.checkpoint.encryption.opening.open_source", failing_on(2, StorageError("permission denied"))
    )
    with pytest.raises(InputError, match="permission denied"):
        catalog(source.url, 3)


def failing_on(rank: int, error: Exception) -> Callable[..., Any]:
    def open_or_fail(location: Any) -> Any:
        if f"rank_{rank}/" in str(location):
            raise error
        return open_source(location)

    return open_or_fail


def test_files_are_closed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add_ranks(2).add("rank_1/CKP-1_2.ckpt", data=b"")
    closed: list[str] = []

    def watched(location: Any) -> Any:
        file = open_source(location)
        close = file.close

        def close_and_tell() -> None:
            closed.append(str(location))
            close()

        monkeypatch.setattr(file, "close", close_and_tell)
        return file

    monkeypatch.setattr("reshard.core.checkpoint.encryption.opening.open_source", watched)
    with pytest.raises(CheckpointError):
        catalog(source.url, 2)
    assert len(closed) == 2


@pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "conversions").iterdir() if path.is_dir()))
def test_real_checkpoints(case: str) -> None:
    root = FIXTURES / "conversions" / case
    ranks = len(list((root / "src").iterdir()))
    result = catalog(str(root / "src"), ranks, digest=lambda rank, entry: True)
    assert list(result.records) == list(range(ranks))
    for record in result.records.values():
        assert record.index.size_bytes == Path(record.location).stat().st_size
        data = Path(record.location).read_bytes()
        for entry in record.index.entries.values():
            assert record.digests[entry.name] == xxhash.xxh3_128_hexdigest(contents(data, entry))
    distinct: list[FileIndex] = []
    for record in result.records.values():
        if not any(record.index is index for index in distinct):
            assert record.index not in distinct
            distinct.append(record.index)
    full = catalog(str(root / "full"), None)
    assert len(full.records) == 1


def contents(data: bytes, entry: TensorEntry) -> bytes:
    if entry.text is not None:
        return entry.text.encode()
    return b"".join(data[extent.offset : extent.offset + extent.length] for extent in entry.extents)


def test_real_file_with_crc() -> None:
    for name in ("crc.ckpt", "crc.safetensors"):
        assert catalog(str(FIXTURES / "formats" / name), None).records[0].index.has_crc


def test_real_files_without_replicas() -> None:
    found = catalog(str(FIXTURES / "formats/redundancy_removed/src_safetensors"), 8)
    assert all(record.index.redundancy_removed for record in found.records.values())

"""CRCs from parts that are read in any order, by many threads, twice, or never."""

import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.files.model import CheckpointFormat, FileIndex, StoredCrc, TensorEntry
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import build_plan
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import Extent
from reshard.core.transfer import read_crcs
from reshard.core.transfer.read_crcs import ReportedCrcs
from reshard.core.transfer.source_crcs import SourceCrcs

SIZE = 1000
EXTENTS = {"a": Extent(3, 200), "b": Extent(203, 1), "c": Extent(300, 600), "none": Extent(250, 0)}
CONTENT = np.random.default_rng(5).bytes(SIZE)
RIGHT = {name: zlib.crc32(CONTENT[each.offset : each.offset + each.length]) for name, each in EXTENTS.items()}


def opened(path: Path, crcs: dict[str, int]) -> tuple[SourceCrcs, CatalogRecord]:
    """The CRCs that a file of bytes is said to have."""
    return opened_with(path, {name: StoredCrc(EXTENTS[name], crc) for name, crc in crcs.items()})


def opened_with(path: Path, stored: dict[str, StoredCrc]) -> tuple[SourceCrcs, CatalogRecord]:
    path.write_bytes(CONTENT)
    int8 = dtype_from_name("Int8")
    entries = {name: TensorEntry(name, int8, (extent.length,), (extent,)) for name, extent in EXTENTS.items()}
    index = FileIndex(CheckpointFormat.SAFETENSORS, SIZE, entries, crcs=stored)
    version = open_source(parse_url(str(path))).version
    record = CatalogRecord(0, str(path), SIZE, version, index)
    catalog = CheckpointCatalog(str(path.parent), CheckpointFormat.SAFETENSORS, None, {0: record})
    return SourceCrcs(build_plan(PlanInputs(catalog, None, None, CheckpointFormat.CKPT, layout=RankFolders()))), record


def read_rest(crcs: SourceCrcs) -> int:
    counts: list[int] = []
    crcs.read_rest(lambda record: open_source(parse_url(record.location)), 2, Event(), counts.append)
    return sum(counts)


READS = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 400)), max_size=30)


@given(reads=READS, wrong=st.sets(st.sampled_from(["a", "b", "c"])), most=st.sampled_from([1, 2, 1024]))
def test_all_is_read_once_and_what_is_wrong_is_named(
    reads: list[tuple[int, int]], wrong: set[str], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("file") / "file"
    crcs, record = opened(path, {name: crc ^ (name in wrong) for name, crc in RIGHT.items()})
    file = crcs.watch(record, open_source(parse_url(record.location)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_crcs, "_MAX_PARTS", most)
        for number, (offset, length) in enumerate(reads):
            length = min(length, SIZE - offset)
            if number % 2:
                buffer = bytearray(length)
                file.read_into(offset, memoryview(buffer))
                assert buffer == CONTENT[offset : offset + length]
            else:
                assert file.read_many([(offset, length)]) == [CONTENT[offset : offset + length]]
        left = crcs.left_bytes()
        assert read_rest(crcs) == left == crcs.read_bytes
    assert crcs.left_bytes() == 0
    problems = crcs.problems()
    assert {name for _, name in problems} == wrong
    for (location, name), problem in problems.items():
        where = f"its {EXTENTS[name].length} bytes at {EXTENTS[name].offset}"
        assert problem.startswith(f"{location}: parameter {name!r}: {where} have the CRC-32 ")


@given(
    processes=st.lists(READS, min_size=1, max_size=4),
    wrong=st.sets(st.sampled_from(["a", "b", "c"])),
    most=st.sampled_from([1, 2, 1024]),
)
def test_what_other_processes_report_counts_as_read_and_only_the_rest_is_read(
    processes: list[list[tuple[int, int]]],
    wrong: set[str],
    most: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("file") / "file"
    crcs, record = opened(path, {name: crc ^ (name in wrong) for name, crc in RIGHT.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_crcs, "_MAX_PARTS", most)
        for number, reads in enumerate(processes):
            reported = ReportedCrcs()
            watched = reported.watch(record, open_source(parse_url(record.location)))
            for offset, length in reads:
                watched.read_many([(offset, min(length, SIZE - offset))])
            before = crcs.left_bytes()
            parts = pickle.loads(pickle.dumps(reported.parts()))
            crcs.add_parts(parts)
            added = sum(stop - start for of_file in parts.values() for start, stop, _ in of_file.tolist())
            if number == 0 and most == 1024:
                assert crcs.left_bytes() == before - added
            crcs.add_parts(parts)  # of a task that was given to two workers
        left = crcs.left_bytes()
        assert read_rest(crcs) == left == crcs.read_bytes
    assert {name for _, name in crcs.problems()} == wrong


@pytest.mark.parametrize("flipped", [0, 1])
def test_a_storage_that_tensors_share_is_checked_with_what_is_read_of_them(tmp_path: Path, flipped: int) -> None:
    storage = Extent(3, 897)
    crc = StoredCrc(storage, zlib.crc32(CONTENT[3:900]) ^ flipped)
    crcs, record = opened_with(tmp_path / "file", {"a": crc, "b": crc, "c": crc})
    file = crcs.watch(record, open_source(parse_url(record.location)))
    file.read_many([(each.offset, each.length) for each in (EXTENTS["c"], EXTENTS["a"], EXTENTS["b"])])
    assert crcs.left_bytes() == read_rest(crcs) == 96, "what lies between b and c"
    problems = crcs.problems()
    assert [name for _, name in problems] == ["a", "b", "c"] * flipped
    assert all("its 897 bytes at 3 have the CRC-32" in problem for problem in problems.values())
    assert len({*problems.values()}) == flipped, "they are listed once"


def test_parts_of_another_file_or_of_no_tensor_are_passed_over(tmp_path: Path) -> None:
    crcs, record = opened(tmp_path / "file", RIGHT)
    left = crcs.left_bytes()
    parts = np.array([[0, 1, 5], [200, 204, 5], [950, 999, 5]], np.int64)
    crcs.add_parts({record.location: parts, "/nowhere/else": parts})
    assert crcs.left_bytes() == left


def test_many_threads(tmp_path: Path) -> None:
    crcs, record = opened(tmp_path / "file", RIGHT)
    file = crcs.watch(record, open_source(parse_url(record.location)))
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda offset: file.read_many([(offset % SIZE, min(7, SIZE - offset % SIZE))]), range(0, 7000, 3))
        )
    assert crcs.left_bytes() == 0
    assert crcs.problems() == {}


def test_a_file_without_crcs_is_not_watched(tmp_path: Path) -> None:
    crcs, record = opened(tmp_path / "file", {})
    file = open_source(parse_url(record.location))
    assert crcs.watch(record, file) is file
    assert read_rest(crcs) == 0

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.errors import CheckpointError
from reshard.core.files import distcp
from reshard.core.files.distcp import archive_extents, plan_file, read_index
from reshard.core.files.model import CheckpointFormat, Content, OutputEntry
from reshard.core.files.running_crc import ContentRange, running_crc
from reshard.core.files.torch_zip import read_stored_tensors
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import INT4, dtype_from_name
from reshard.core.tensor.slices import Extent, Shape
from reshard.core.transfer.writer import heads_digest

FORMAT = CheckpointFormat.DISTCP
NAMES = ("Float32", "BFloat16", "Bool", "UInt16", "UInt64", "Int8")


def entry(name: str, dtype: str = "Float32", shape: Shape = (2, 3)) -> OutputEntry:
    return OutputEntry(name, dtype_from_name(dtype), shape)


ENTRIES = st.lists(
    st.builds(entry, st.text(max_size=3), st.sampled_from(NAMES), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    max_size=5,
    unique_by=lambda each: each.name,
)


def contents_of(each: OutputEntry) -> bytes:
    return bytes((7 * number + len(each.name)) % 251 for number in range(each.size_bytes))


def written(entries: list[OutputEntry], block_bytes: int) -> bytes:
    """The file as it is written in blocks, and that their CRCs are those of the bytes around the contents."""
    plan = plan_file(entries)
    crc = running_crc(FORMAT, plan, entries)
    by_name = {each.name: contents_of(each) for each in entries}
    pieces: list[tuple[str | None, bytes]] = []
    for segment in plan.segments:
        name = segment.name if isinstance(segment, Content) else None
        data = by_name[segment.name] if isinstance(segment, Content) else segment
        pieces += [(name, data[start : start + block_bytes]) for start in range(0, len(data), block_bytes)]
    file, heads = b"", b""
    for name, piece in pieces:
        block = bytearray(piece)
        if crc is not None:
            ranges = [] if name is None else [ContentRange(name, 0, len(block))]
            crc.add(memoryview(block), ranges, crc.sums(memoryview(block), ranges))
        file += block
        heads += b"" if name is not None else block
    assert len(file) == plan.size_bytes
    known = bytearray(plan.heads)
    if crc is not None:
        crc.put_into_heads(known)
    assert known == heads
    assert heads_digest(plan, crc)
    return file


@given(ENTRIES, st.integers(1, 700))
def test_archives_are_zips_that_hold_the_contents(entries: list[OutputEntry], block_bytes: int) -> None:
    file = written(entries, block_bytes)
    for each, place in zip(entries, archive_extents(entries), strict=True):
        with zipfile.ZipFile(io.BytesIO(file[place.offset : place.offset + place.length])) as archive:
            assert archive.testzip() is None
            assert archive.read("archive/data/0") == contents_of(each)
            data = archive.getinfo("archive/data/0")
            start = data.header_offset + 30
            sizes = file[place.offset + start - 4 : place.offset + start]
            assert (start + int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")) % 64 == 0


@given(entries=ENTRIES)
def test_the_tensors_are_found_again(entries: list[OutputEntry], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("files") / "__0_0.distcp"
    path.write_bytes(written(entries, 4096))
    file = open_source(parse_url(str(path)))
    index = read_index(file, entries)
    assert [(each.name, each.dtype, each.shape) for each in index.entries.values()] == [
        (each.name, each.dtype, each.shape) for each in entries
    ]
    for each in entries:
        [extent] = index.entries[each.name].extents
        assert path.read_bytes()[extent.offset : extent.offset + extent.length] == contents_of(each)


def test_another_tensor_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "__0_0.distcp"
    path.write_bytes(written([entry("a"), entry("b", "Int32")], 4096))
    file = open_source(parse_url(str(path)))
    found = read_index(file, [entry("a", "Int32"), entry("b")]).entries
    assert [each.dtype.name for each in found.values()] == ["Float32", "Int32"]
    with pytest.raises(CheckpointError, match=r"has \d+ bytes, its tensors take"):
        read_index(file, [entry("a")])


def test_more_than_4_gib_take_the_long_form(tmp_path: Path) -> None:
    """The file has a hole where the contents are."""
    large = entry("large", "Float32", (1 << 15, 1 << 15, 2))
    assert large.size_bytes == 2**33
    plan = plan_file([large])
    head, _, tail = plan.segments
    assert isinstance(head, bytes)
    assert isinstance(tail, bytes)
    path = tmp_path / "__0_0.distcp"
    with path.open("wb") as file:
        file.write(head)
        file.seek(large.size_bytes, io.SEEK_CUR)
        file.write(tail)
    with zipfile.ZipFile(path) as archive:
        data = archive.getinfo("archive/data/0")
        assert (data.file_size, data.compress_size) == (large.size_bytes, large.size_bytes)
    [stored] = read_stored_tensors(open_source(parse_url(str(path))), [Extent(0, plan.size_bytes)])
    assert stored.extent == Extent(len(head), large.size_bytes)
    assert [tail[place.offset - len(head) - large.size_bytes :][:4] for place in plan.sum_places] == [bytes(4)] * 2


def test_what_torch_has_no_dtype_for_is_refused() -> None:
    for each in (replace(entry("x"), dtype=INT4), replace(entry("x"), text="hello")):
        with pytest.raises(
            CheckpointError, match=r"'x' is a (Int4|text), for which PyTorch has no dtype; if the model"
        ):
            distcp.plan_file([each])

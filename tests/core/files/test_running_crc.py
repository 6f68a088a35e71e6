"""Files that are written with a CRC: whatever is in them, it is what MindSpore would have written."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files import any_format
from reshard.core.files.digests import FileDigests, content_digests, file_digests
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat, Content, FilePlan, OutputEntry
from reshard.core.files.running_crc import ContentRange, RunningCrc, running_crc, with_crc_in_header
from reshard.core.tensor.dtypes import INT4, TEXT, dtype_from_name
from tests.support.ckpt_writer import MemoryFile
from tests.support.places import FIXTURES
from tests.support.remote_file import RemoteFile

FORMATS = FIXTURES / "formats"
NAMES = st.text(st.sampled_from("ab.é昇"), min_size=1, max_size=4)
DTYPES = ("Int8", "UInt8", "Int64", "UInt64", "Float32", "BFloat16", "Bool", "Int4")
ENTRIES = st.lists(
    st.one_of(
        st.builds(
            lambda name, dtype, shape: OutputEntry(name, dtype_from_name(dtype), tuple(shape)),
            NAMES,
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        st.builds(lambda name, text: OutputEntry(name, TEXT, (4 * max(1, len(text)),), text), NAMES, st.text("ab")),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda entry: entry.name,
)


class GrowingFile:
    """What is written, in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, buffer: bytes | bytearray | memoryview) -> None:
        self.data += buffer


def written(format: CheckpointFormat, entries: Sequence[OutputEntry], contents: dict[str, bytes], block: int) -> bytes:
    """The file, written in blocks of at most so many bytes, which may have several parameters in them."""
    plan = any_format.plan_file(format, entries, with_crc=True)
    if format.has_crc_in_header:
        plan = with_crc_in_header(plan, filled(GrowingFile(), format, plan, entries, contents, block))
    file = GrowingFile()
    filled(file, format, plan, entries, contents, block).complete(file, "m")
    assert len(file.data) == plan.size_bytes
    return bytes(file.data)


def filled(
    file: GrowingFile,
    format: CheckpointFormat,
    plan: FilePlan,
    entries: Sequence[OutputEntry],
    contents: dict[str, bytes],
    block: int,
) -> RunningCrc:
    """The CRC of a file that all blocks were written to."""
    crc = running_crc(format, plan, entries)
    assert crc
    for data, ranges in blocks_of(plan, contents, block):
        crc.add(data, ranges, crc.sums(data, ranges))
        file.write(bytes(data))
    return crc


def blocks_of(plan: FilePlan, contents: dict[str, bytes], size: int):
    block, ranges = bytearray(), []
    for segment in plan.segments:
        if isinstance(segment, Content):
            data, name = contents[segment.name][segment.start : segment.stop], segment.name
        else:
            data, name = segment, None
        while data:
            piece, data = data[: size - len(block)], data[size - len(block) :]
            if name:
                ranges.append(ContentRange(name, len(block), len(block) + len(piece)))
            block += piece
            if len(block) == size:
                yield memoryview(bytes(block)), ranges
                block, ranges = bytearray(), []
    yield memoryview(bytes(block)), ranges


def contents_of(entries: Sequence[OutputEntry], seed: int) -> dict[str, bytes]:
    generator = np.random.default_rng(seed)
    return {entry.name: generator.bytes(entry.size_bytes) for entry in entries}


@pytest.mark.parametrize("format", SELF_CONTAINED)
@given(entries=ENTRIES, seed=st.integers(0, 2**32 - 1), block=st.sampled_from([1, 7, 64, 10_000]))
def test_what_is_written_passes_the_check(
    format: CheckpointFormat, entries: list[OutputEntry], seed: int, block: int
) -> None:
    contents = contents_of(entries, seed)
    data = written(format, entries, contents, block)
    file = MemoryFile(data, f"m.{format}")
    index = any_format.read_index(file)
    assert index.has_crc
    any_format.check_crc(file, index)
    # the same in one go with the digests, from a local file and from a remote one
    stored = any_format.stored_crc(file, index)
    digests = content_digests(file, list(index.entries.values()), 9)
    want = dict(zip(index.entries, digests, strict=True))
    around = bytearray(data)
    for extent in sorted((each for entry in index.entries.values() for each in entry.extents), key=lambda e: -e.offset):
        del around[extent.offset : extent.offset + extent.length]
    expected = FileDigests(want, xxhash.xxh3_128_hexdigest(around), stored)
    assert file_digests(file, index, 11) == expected
    remote = RemoteFile([(0, data)], len(data))
    assert file_digests(remote, index, 11) == expected


@pytest.mark.parametrize("format", SELF_CONTAINED)
def test_the_rest_of_the_file_is_as_without(format: CheckpointFormat) -> None:
    entries = [OutputEntry("w", dtype_from_name("Float32"), (3, 5)), OutputEntry("note", TEXT, (4,), "é")]
    contents = contents_of(entries, 1)
    plain = any_format.plan_file(format, entries)
    data = written(format, entries, contents, 50)
    if format is CheckpointFormat.CKPT:
        assert len(data) == plain.size_bytes + 17
        assert data[-17:-10] == b"crc_num"
        assert int.from_bytes(data[-10:], "big") == zlib.crc32(data[:-17])
    else:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        [head, *_] = plain.segments
        assert isinstance(head, bytes)
        without = json.loads(head[8:])
        crc = header["__metadata__"].pop("crc_num")
        assert header == without
        # as MindSpore spells it: no zeros in front
        assert crc == str(zlib.crc32(b"w" + contents["w"]))
        assert length % 8 == 0


def test_a_short_number_leaves_a_valid_header(tmp_path: Path) -> None:
    """The room is for ten digits: that of a CRC of few is filled with spaces."""
    shortest = min(range(3000), key=lambda n: zlib.crc32(b"w" + n.to_bytes(4, "little")))
    content = shortest.to_bytes(4, "little")
    crc = str(zlib.crc32(b"w" + content))
    assert len(crc) < 8
    entries = [OutputEntry("w", dtype_from_name("Int32"), (1,))]
    path = tmp_path / "m.safetensors"
    path.write_bytes(written(CheckpointFormat.SAFETENSORS, entries, {"w": content}, 64))
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"crc_num": crc, "format": "ms", "remove_redundancy": "False"}
        assert file.get_tensor("w").tolist() == [shortest]


@pytest.mark.parametrize(
    ("dtype", "value"), [("Int64", 7), ("UInt8", 200), ("Int4", 3), ("UInt64", 2**63), ("Int32", 0)]
)
def test_an_integer_scalar_counts_as_so_many_zeros(dtype: str, value: int) -> None:
    entry = OutputEntry("step", dtype_from_name(dtype), ())
    content = value.to_bytes(entry.dtype.itemsize, "little")
    data = written(CheckpointFormat.SAFETENSORS, [entry], {"step": content}, 64)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    if value < 2**32:
        assert header["__metadata__"]["crc_num"] == str(zlib.crc32(b"step" + bytes(value)))


def test_a_negative_scalar_counts_by_its_bytes() -> None:
    """MindSpore can write no CRC of it; the file can still be checked."""
    entry, content = OutputEntry("step", dtype_from_name("Int64"), ()), (-3).to_bytes(8, "little", signed=True)
    data = written(CheckpointFormat.SAFETENSORS, [entry], {"step": content}, 64)
    file = MemoryFile(data, "m.safetensors")
    index = any_format.read_index(file)
    assert any_format.stored_crc(file, index) == zlib.crc32(b"step" + content)
    any_format.check_crc(file, index)


@pytest.mark.parametrize("name", ["crc.ckpt", "crc.safetensors"])
def test_the_crc_of_mindspores_files_is_found_again(name: str) -> None:
    data = (FORMATS / name).read_bytes()
    file = MemoryFile(data, name)
    index = any_format.read_index(file)
    entries = [OutputEntry(entry.name, entry.dtype, entry.shape, entry.text) for entry in index.entries.values()]
    contents = {
        entry.name: b"".join(data[extent.offset : extent.offset + extent.length] for extent in entry.extents)
        for entry in index.entries.values()
    }
    ours = MemoryFile(written(index.format, entries, contents, 100), name)
    assert any_format.stored_crc(ours, any_format.read_index(ours)) == any_format.stored_crc(file, index)


def test_a_file_without_a_crc_has_none() -> None:
    entries = [OutputEntry("q", INT4, (3,))]
    for format in SELF_CONTAINED:
        plan = any_format.plan_file(format, entries)
        assert plan.crc_offset is None
        assert running_crc(format, plan, entries) is None
    file = MemoryFile((FORMATS / "plain.ckpt").read_bytes())
    assert any_format.stored_crc(file, any_format.read_index(file)) is None


@pytest.mark.parametrize("content", [b"changed!", bytes(8)])
def test_other_contents_than_those_of_the_crc_in_the_header_are_refused(content: bytes) -> None:
    format, entries = CheckpointFormat.SAFETENSORS, [OutputEntry("w", dtype_from_name("Int8"), (8,))]
    plan = any_format.plan_file(format, entries, with_crc=True)
    crc = filled(GrowingFile(), format, plan, entries, {"w": b"contents"}, 64)
    file = GrowingFile()
    message = "rank_0/m.safetensors: the contents changed between the two readings that a CRC in the header takes"
    for header in (with_crc_in_header(plan, crc), plan):  # the latter has a place for it only
        with pytest.raises(CatalogError, match=message):
            filled(file, format, header, entries, {"w": content}, 64).complete(file, "rank_0/m.safetensors")


@pytest.mark.parametrize("format", SELF_CONTAINED)
def test_any_changed_byte_is_found(format: CheckpointFormat) -> None:
    entries = [OutputEntry("w", dtype_from_name("Int8"), (6,)), OutputEntry("v", dtype_from_name("Int8"), (2,))]
    data = written(format, entries, contents_of(entries, 3), 64)
    for place in range(len(data) - 8 - 17 * (format is CheckpointFormat.CKPT), len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 4
        file = MemoryFile(bytes(damaged), f"m.{format}")
        with pytest.raises(CheckpointError):  # where the mark is gone, bytes are left over
            any_format.check_crc(file, any_format.read_index(file))

"""Checkpoint files written from blocks of their contents."""

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import fsspec
import pytest

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.any_format import check_crc, read_index
from reshard.core.files.block_writing import FileKind, write_checkpoint
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat, Content, OutputEntry
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name

ENTRIES = [OutputEntry("a", dtype_from_name("Int8"), (5,)), OutputEntry("b", dtype_from_name("Int8"), (2, 3))]
CONTENTS = {"a": b"12345", "b": b"abcdef"}


def blocks_of_two_bytes(contents: Sequence[Content]) -> Iterator[memoryview]:
    for content in contents:
        data = CONTENTS[content.name][content.start : content.stop]
        yield from (memoryview(data[start : start + 2]) for start in range(0, len(data), 2))


@pytest.mark.parametrize("with_crc", [False, True])
@pytest.mark.parametrize("format", SELF_CONTAINED)
def test_contents_arrive_in_blocks(format: CheckpointFormat, with_crc: bool, tmp_path: Path) -> None:
    location = parse_url(str(tmp_path / f"net.{format}"))
    write_checkpoint(location, FileKind(format, with_crc), ENTRIES, blocks_of_two_bytes)
    file = open_source(location)
    index = read_index(file)
    assert index.has_crc == with_crc
    check_crc(file, index)
    for name, entry in index.entries.items():
        [extent] = entry.extents
        assert read_bytes(file, extent.offset, extent.length) == CONTENTS[name]
    file.close()
    assert stat.S_IMODE(Path(location.path).stat().st_mode) == 0o400


def test_a_file_that_cannot_be_completed_does_not_appear(tmp_path: Path) -> None:
    def fails(contents: Sequence[Content]) -> Iterator[memoryview]:
        yield from list(blocks_of_two_bytes(contents))[:2]
        raise CheckpointError("truncated")

    with pytest.raises(CheckpointError, match="truncated"):
        write_checkpoint(parse_url(str(tmp_path / "net.ckpt")), FileKind(CheckpointFormat.CKPT), ENTRIES, fails)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("with_crc", [False, True])
def test_other_storages(with_crc: bool) -> None:
    location = parse_url("memory://block_writing/net.safetensors")
    write_checkpoint(location, FileKind(CheckpointFormat.SAFETENSORS, with_crc), ENTRIES, blocks_of_two_bytes)
    file = open_source(location)
    check_crc(file, read_index(file))
    assert fsspec.filesystem("memory").cat("/block_writing/net.safetensors").endswith(b"12345abcdef")


def test_contents_that_change_between_two_readings_are_refused(tmp_path: Path) -> None:
    readings: list[Sequence[Content]] = []

    def blocks(contents: Sequence[Content]) -> Iterator[memoryview]:
        readings.append(contents)
        yield memoryview(CONTENTS["a"])
        yield memoryview(CONTENTS["b"] if len(readings) == 1 else b"abcdeF")

    path = tmp_path / "net.safetensors"
    with pytest.raises(CatalogError, match=f"{path}: the contents changed between the two readings"):
        write_checkpoint(parse_url(str(path)), FileKind(CheckpointFormat.SAFETENSORS, True), ENTRIES, blocks)
    assert len(readings) == 2
    assert not list(tmp_path.iterdir())

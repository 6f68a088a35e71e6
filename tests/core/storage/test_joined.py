"""Files read as one: every byte in its place, whatever part it is in."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.storage.joined import joined_name, parts_of
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location, parse_url

PARTS = [random.Random(7).randbytes(size) for size in (10, 1, 0, 30)]
WHOLE = b"".join(PARTS)


def write_parts(folder: Path) -> Location:
    for number, content in enumerate(PARTS):
        (folder / f"net_part{number}.ckpt").write_bytes(content)
    return parse_url(str(folder)).child(joined_name("net_part", range(len(PARTS)), ".ckpt"))


def test_a_joint_name_denotes_its_parts() -> None:
    location = parse_url("/run").child(joined_name("net_part", [0, 2], ".ckpt"))
    assert location.name == "net_part{0,2}.ckpt"
    assert [part.path for part in parts_of(location)] == ["/run/net_part0.ckpt", "/run/net_part2.ckpt"]


@pytest.mark.parametrize("name", ["net_part0.ckpt", "net{0,1}.ckpt", "net_part{0}.ckpt", "net_part{0,a}.ckpt"])
def test_any_other_name_denotes_one_file(name: str) -> None:
    assert parts_of(parse_url("/run").child(name)) == ()


@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE))), max_size=5))
def test_ranges_cross_borders(tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]]) -> None:
    file = open_source(write_parts(tmp_path_factory.mktemp("parts")))
    ranges = [(min(pair), max(pair) - min(pair)) for pair in edges]
    assert file.size_bytes == len(WHOLE)
    assert file.read_many(ranges) == [WHOLE[offset : offset + length] for offset, length in ranges]
    for offset, length in ranges:
        buffer = bytearray(length)
        file.read_into(offset, memoryview(buffer))
        assert buffer == WHOLE[offset : offset + length]
    file.close()


def test_the_version_changes_with_any_part(tmp_path: Path) -> None:
    location = write_parts(tmp_path)
    before = open_source(location).version
    (tmp_path / "net_part3.ckpt").write_bytes(b"other")
    assert open_source(location).version != before


def test_the_end_is_reported_by_the_last_part(tmp_path: Path) -> None:
    file = open_source(write_parts(tmp_path))
    with pytest.raises(CheckpointError, match=r"net_part3\.ckpt: ends at byte 30, earlier than it should"):
        file.read_into(len(WHOLE) - 1, memoryview(bytearray(2)))

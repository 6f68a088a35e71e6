"""All replicas of a source are compared, and those that differ are named."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from tests.support.damaged import (
    file_of,
    request_of,
    whole_shards,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return whole_shards(tmp_path)


def test_equal_replicas_are_noted(directory: Path) -> None:
    report = convert(request_of(directory, check_replicas=True))
    assert "all replicas of 6 slices that several ranks hold were read, and are equal" in report.notes


def test_differing_replicas_are_named(directory: Path) -> None:
    for rank in (3, 4):
        data = file_of(directory, rank).read_bytes()
        file_of(directory, rank).write_bytes(data[:-1] + bytes([rank]))
    with pytest.raises(CatalogError) as message:
        convert(request_of(directory, check_replicas=True))
    assert str(message.value).splitlines()[1:] == [
        "  - parameter 'c', [0:2]: one content on rank_0, rank_2, another on rank_4",
        "  - parameter 'c', [2:4]: one content on rank_1, rank_5, another on rank_3",
    ]
    assert not (directory / "out").exists()
    convert(request_of(directory))  # reads one of them only

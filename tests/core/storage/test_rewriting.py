"""The beginning of a file is changed when the rest of it is written, and before it appears."""

from pathlib import Path

import fsspec
import pytest

from reshard.core.errors import StorageError
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import takes_rewriting, write_file


def test_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with write_file(parse_url(str(path))) as file:
        file.write(bytes(range(100)))
        file.rewrite(30, b"anew")
        file.write(b"the end")
        assert not path.exists()
    assert path.read_bytes() == bytes(range(30)) + b"anew" + bytes(range(34, 100)) + b"the end"


def test_a_storage_that_only_appends() -> None:
    location = parse_url("memory://rewriting/file")
    message = "memory:///rewriting/file: cannot write 4 bytes at 30: it is only appended to"
    with write_file(location) as file:
        file.write(bytes(100))
        with pytest.raises(StorageError, match=message):
            file.rewrite(30, b"anew")
    fsspec.filesystem("memory").rm("/rewriting", recursive=True)


@pytest.mark.parametrize(
    ("url", "takes"),
    [("/somewhere", True), ("s3://bucket/somewhere", True), ("memory://a", False)],
)
def test_where_it_can_be_done(url: str, takes: bool) -> None:
    assert takes_rewriting(parse_url(url)) is takes

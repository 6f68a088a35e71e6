"""Results are written apart from the source, and over nothing that exists."""

from pathlib import Path

import pytest

from reshard.core.errors import InputError, TargetError
from reshard.core.storage.placement import check_apart, check_new_file
from reshard.core.storage.urls import parse_url


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("/a", "/a", "is the source itself"),
        ("/a/rank_{rank}/x.ckpt", "/a/rank_0/x.ckpt", "can be a part of the source"),
        ("/a", "/a/b", "lies inside the source"),
        ("/a/b", "/a", "lies inside it, or in the directory where it is built"),
        ("/a.reshard-partial", "/a", "lies inside it, or in the directory where it is built"),
        ("/a", "/\udc80", "its name is not UTF-8 text"),
    ],
)
def test_targets_that_overlap_the_source(source: str, target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        check_apart(parse_url(source), parse_url(target))


@pytest.mark.parametrize("target", ["/b", "/ab", "memory://a"])
def test_targets_apart_from_the_source(target: str) -> None:
    check_apart(parse_url("/a"), parse_url(target))


def test_a_new_file(tmp_path: Path) -> None:
    location, source = parse_url(str(tmp_path / "out")), parse_url(str(tmp_path / "source"))
    check_new_file(location, source, overwrite=False)
    (tmp_path / "out").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    check_new_file(location, source, overwrite=True)
    with pytest.raises(InputError, match="out: already exists"):
        check_new_file(location, source, overwrite=False)
    with pytest.raises(InputError, match="is a directory; name the file to be written"):
        check_new_file(parse_url(str(tmp_path / "folder")), source, overwrite=True)

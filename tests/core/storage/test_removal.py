"""Removing files: what does not exist counts as removed, links are not followed."""

from pathlib import Path

import pytest

from reshard.core.errors import StorageError
from reshard.core.storage.removal import remove_file, remove_files
from reshard.core.storage.urls import Location, parse_url
from tests.support.small_files import names_in


def test_files_are_removed_once(folder: Location, file: Location) -> None:
    other = folder.child("other")
    folder.store.put(other.path, b"x")
    remove_files([file, other, folder.child("missing")])
    assert names_in(folder) == []
    remove_file(file)


def test_a_link_is_removed_itself(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_file(parse_url(str(tmp_path)).child("link"))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_directory_is_removed_only_if_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"x")
    folder = parse_url(str(tmp_path))
    remove_file(folder.child("empty"))
    with pytest.raises(StorageError, match="full: cannot remove it"):
        remove_file(folder.child("full"))
    assert [path.name for path in tmp_path.iterdir()] == ["full"]

"""No file appears while the guard of the context forbids it."""

from pathlib import Path

import pytest

from reshard.core.errors import TargetError
from reshard.core.storage.copying import copy_file
from reshard.core.storage.urls import parse_url
from reshard.core.storage.write_guard import check_claim, claimed_while
from reshard.core.storage.writing import write_bytes, write_file


def refuse() -> None:
    raise TargetError("taken over")


def test_nothing_is_checked_outside() -> None:
    with pytest.raises(TargetError), claimed_while(refuse):
        check_claim()
    check_claim()


def test_files_do_not_appear(tmp_path: Path) -> None:
    folder = parse_url(str(tmp_path))
    write_bytes(folder.child("source"), b"x")
    with claimed_while(refuse):
        for write in (
            lambda: write_bytes(folder.child("a"), b"x"),
            lambda: copy_file(folder.child("source"), folder.child("a")),
        ):
            with pytest.raises(TargetError, match="taken over"):
                write()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_target_lost_while_a_file_is_written(tmp_path: Path) -> None:
    lost = False

    def check() -> None:
        if lost:
            refuse()

    def write() -> None:
        nonlocal lost
        with claimed_while(check), write_file(parse_url(str(tmp_path)).child("a")) as file:
            file.write(b"x")
            lost = True

    with pytest.raises(TargetError, match="taken over"):
        write()
    assert list(tmp_path.iterdir()) == []

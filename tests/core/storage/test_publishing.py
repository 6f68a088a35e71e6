"""How finished files appear: all at once, and what was there before goes last."""

import errno
import os
import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reshard.core.errors import StorageError, TargetError
from reshard.core.layouts.targets import is_target_name
from reshard.core.storage.publishing import (
    check_room,
    foreign_names,
    list_names,
    places_beside,
    publish,
    remove_others,
    remove_tree,
    remove_unfinished,
    replaced_location,
    temporary_files,
    working_location,
)
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from tests.support.small_files import contents, forget_memory, names_in

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def final(tmp_path: Path) -> Location:
    return parse_url(str(tmp_path / "out"))


@pytest.fixture
def working(final: Location) -> Location:
    location = working_location(final)
    put(location, **{"rank_0/a.ckpt": "new", ".reshard/manifest.json": "new"})
    return location


@pytest.fixture
def memory() -> Iterator[Location]:
    location = parse_url("memory://bucket/out")
    yield location
    forget_memory()


@pytest.fixture(params=["local", "memory"])
def anywhere(request: pytest.FixtureRequest) -> Location:
    location: Location = request.getfixturevalue({"local": "final", "memory": "memory"}[request.param])
    return location


def put(location: Location, **files: str) -> None:
    for name, text in files.items():
        path = location.child(*name.split("/"))
        path.store.put(path.path, text.encode())


def files_of(location: Location) -> dict[str, str]:
    return {name: contents(location.child(name)).decode() for name in names_in(location)}


NEW = {"rank_0/a.ckpt": "new", ".reshard/manifest.json": "new"}


# ---- publishing ----


def test_work_is_done_beside_a_local_target_and_in_a_remote_one(final: Location, memory: Location) -> None:
    assert working_location(final).parent == final.parent
    assert working_location(final) != final
    assert working_location(memory) == memory
    assert places_beside(final) == (working_location(final), replaced_location(final))
    assert places_beside(memory) == ()


def test_onto_nothing(working: Location, final: Location) -> None:
    publish(working, final, is_target_name)
    assert files_of(final) == NEW
    assert list_names(final.parent) == ["out"]


def test_onto_an_empty_directory(working: Location, final: Location) -> None:
    os.mkdir(final.path)
    publish(working, final, is_target_name)
    assert files_of(final) == NEW
    assert list_names(final.parent) == ["out"]


def test_onto_an_existing_directory(working: Location, final: Location) -> None:
    put(final, **{"rank_0/a.ckpt": "old", "rank_1/a.ckpt": "old"})
    os.chmod(final.child("rank_0", "a.ckpt").path, 0o400)
    publish(working, final, is_target_name)
    assert files_of(final) == NEW
    assert list_names(final.parent) == ["out"]


def test_leftovers_of_a_former_replacement_go(working: Location, final: Location) -> None:
    put(final, **{"rank_0/a.ckpt": "old"})
    put(parse_url(final.path + ".reshard-replaced"), **{"rank_0/a.ckpt": "older"})
    publish(working, final, is_target_name)
    assert files_of(final) == NEW
    assert list_names(final.parent) == ["out"]


@pytest.mark.parametrize("failing_rename", [1, 2])
def test_a_crash_in_between_loses_nothing(
    working: Location, final: Location, failing_rename: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(final, **{"rank_0/a.ckpt": "old"})
    rename, calls = os.rename, iter(range(1, 10))

    def crashing(source: str, target: str) -> None:
        if next(calls) == failing_rename:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", crashing)
        with pytest.raises(StorageError, match="out: cannot give it the finished files .*whole in .*: Input/output"):
            publish(working, final, is_target_name)
    assert files_of(working) == NEW
    old = final if failing_rename == 1 else parse_url(final.path + ".reshard-replaced")
    assert files_of(old) == {"rank_0/a.ckpt": "old"}
    publish(working, final, is_target_name)
    assert files_of(final) == NEW
    assert list_names(final.parent) == ["out"]


def test_a_file_appeared_at_the_target(working: Location, final: Location) -> None:
    Path(final.path).write_text("precious")
    with pytest.raises(StorageError, match="out: cannot give it the finished files"):
        publish(working, final, is_target_name)
    assert Path(final.path).read_text() == "precious"
    assert files_of(working) == NEW


def test_what_somebody_put_into_the_former_target_meanwhile_stays(working: Location, final: Location) -> None:
    put(final, **{"rank_0/a.ckpt": "old", "thesis.tex": "mine"})
    with pytest.raises(TargetError, match=r"out: holds foreign files \(thesis\.tex\), and would be replaced"):
        publish(working, final, is_target_name)
    assert files_of(final) == {"rank_0/a.ckpt": "old", "thesis.tex": "mine"}
    assert files_of(working) == NEW


def test_a_remote_target_is_where_it_was_written(memory: Location) -> None:
    put(memory, **NEW)
    publish(memory, memory, is_target_name)
    assert files_of(memory) == NEW


def test_names(anywhere: Location) -> None:
    assert list_names(anywhere) == []
    put(anywhere, **{"rank_1/a": "", "rank_0/sub/a": "", ".reshard/m": "", "notes.txt": ""})
    assert list_names(anywhere) == [".reshard", "notes.txt", "rank_0", "rank_1"]
    with pytest.raises(TargetError, match="notes.txt: is a file, the target must be a directory"):
        list_names(anywhere.child("notes.txt"))


def test_a_directory_may_hold_one_of_its_own_name(anywhere: Location) -> None:
    rank = anywhere.child("rank_0")
    put(rank, **{"rank_0/a.ckpt": "x"})
    assert list_names(rank) == ["rank_0"]


def test_names_that_are_no_checkpoints(anywhere: Location) -> None:
    mine = ["rank_0/a", "rank_12/b", ".reshard/m"]
    foreign = ["rank_table.json", "rank_", "rank_x/a", "xrank_0/a", ".reshard2", "thesis.tex"]
    put(anywhere, **dict.fromkeys([*mine, *foreign], ""))
    assert foreign_names(anywhere, is_target_name) == sorted(name.split("/")[0] for name in foreign)


# ---- removing ----


def test_leftovers_are_removed_and_nothing_else(anywhere: Location) -> None:
    kept = ["rank_0/b_0.ckpt", "rank_1/b_1.ckpt"]
    others = [".reshard/manifest.json", "rank_table_8p.json", "notes.txt"]
    left = ["rank_0/a_0.ckpt", "rank_0/.b_0.ckpt.0123.tmp", "rank_1/b_0.ckpt", "rank_7/b_7.ckpt"]
    put(anywhere, **dict.fromkeys([*kept, *others, *left], "x"))
    remove_others(anywhere, kept, is_target_name)
    assert sorted(files_of(anywhere)) == sorted(kept + others)
    assert not anywhere.store.has_paths or "rank_7" not in list_names(anywhere), "object stores have no directories"
    remove_others(anywhere.child("nothing"), [], is_target_name)


def test_removing(anywhere: Location) -> None:
    put(anywhere, **{"rank_0/a": "", "rank_1/a": ""})
    remove_file(anywhere.child("rank_0", "a"))
    remove_file(anywhere.child("rank_0", "a"))
    remove_tree(anywhere.child("rank_1"))
    remove_tree(anywhere.child("rank_1"))
    assert files_of(anywhere) == {}


def test_what_others_remove_at_the_same_time_is_removed(tmp_path: Path) -> None:
    """Runs that did other ranks of one target may end at the same moment."""
    for number in range(20):
        directory = tmp_path / str(number)
        for rank in range(10):
            (directory / f"rank_{rank}").mkdir(parents=True)
            for name in "abc":
                (directory / f"rank_{rank}" / name).touch()
        location = parse_url(str(directory))
        begin = threading.Barrier(3)

        def remove(location: Location = location, begin: threading.Barrier = begin) -> None:
            begin.wait()
            remove_tree(location)

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(remove) for _ in range(3)]:
                done.result()
        assert not directory.exists()


def test_what_cannot_be_removed_is_named(final: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    os.mkdir(final.path)
    monkeypatch.setattr(shutil, "rmtree", refusing)
    with pytest.raises(StorageError, match="out: cannot remove it: permission denied"):
        remove_tree(final)


# ---- room ----


def test_room(final: Location, memory: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def usage(path: str) -> Usage:
        asked.append(path)
        return Usage(10**9, 0, 4_000_000)

    monkeypatch.setattr("shutil.disk_usage", usage)
    check_room(final.child("not", "yet", "there"), 4_000_000)
    with pytest.raises(StorageError, match="out: has no room: 4,000,001 bytes are needed, 4,000,000 are free"):
        check_room(final, 4_000_001)
    assert asked == [final.parent.path] * 2
    check_room(memory, 10**15)
    assert len(asked) == 2


def test_only_storages_with_temporary_names_have_unfinished_files(anywhere: Location) -> None:
    name = ".a.ckpt.0123abcd.tmp"
    put(anywhere, **{f"rank_0/{name}": "begun", name: "begun"})
    found = {file.path for file in temporary_files(anywhere, is_target_name)}
    shows_them = anywhere.store.has_paths
    assert found == ({anywhere.child(name).path, anywhere.child("rank_0", name).path} if shows_them else set())
    remove_unfinished(anywhere, lambda _: True)
    assert set(files_of(anywhere)) == {f"rank_0/{name}", *([] if shows_them else [name])}

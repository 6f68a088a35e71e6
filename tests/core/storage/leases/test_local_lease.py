"""Local leases: locked by their holders, whatever becomes of the directory or the process."""

import errno
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reshard.core.errors import StorageError, TargetError
from reshard.core.storage.leases.lease import held_lease, living_holders
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.leases.local_lease import exclusive, remove_lease_directory
from reshard.core.storage.urls import Location, parse_url
from tests.support.leases import leases_in, take
from tests.support.places import PROJECT

HOLDING = """
import sys
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
with held_lease(parse_url(sys.argv[1]), new_holder([0, 1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_it_is_killed(local: Location) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(local)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "held\n"
    with pytest.raises(TargetError, match=f"process {run.pid}, since .* target ranks 1"):
        take(local, 1)
    take(local, 2)
    run.kill()
    run.communicate()
    assert len(leases_in(local)) == 1, "a killed process tidies nothing"
    take(local, 1)
    assert leases_in(local) == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"run": "a"}', b'{"ranks": 5}', b"\xff\xfe\xfa"])
def test_an_unreadable_lease_that_is_held_is_named(local: Location, text: bytes) -> None:
    holder = new_holder([0])
    with held_lease(local, holder):
        path = os.path.join(local.path, f"{holder.run}.json")
        with open(path, "wb") as file:
            file.write(text)
        with pytest.raises(TargetError, match=f"{holder.run}.json: not a readable lease; remove it if no other run"):
            take(local, 5)


def test_an_unreadable_lease_that_nobody_holds_is_removed(local: Location) -> None:
    os.makedirs(local.path)
    Path(local.path, "left.json").write_bytes(b"\xff")
    take(local, 0)
    assert leases_in(local) == []


def test_a_lease_given_back_while_others_look(local: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs(local.path)
    listed = os.listdir
    monkeypatch.setattr("os.listdir", lambda path: [*listed(path), "gone.json"])
    take(local, 0)
    assert living_holders(local, new_holder([])) == []


def test_the_directory_may_be_renamed_or_removed_while_a_lease_is_held(local: Location, tmp_path: Path) -> None:
    with held_lease(local, new_holder([0])):
        os.rename(tmp_path / "state", tmp_path / "published")
        take(local, 0)  # in the new directory of the old name
    assert os.listdir(local.path) == [".gate"]


def test_who_waited_for_a_directory_that_was_renamed_begins_in_a_new_one(local: Location, tmp_path: Path) -> None:
    entered = threading.Event()

    def wait_and_enter() -> None:
        with exclusive(local):
            assert os.path.exists(local.path)
        take(local, 0)
        entered.set()

    waiting = threading.Thread(target=wait_and_enter)
    with exclusive(local):
        waiting.start()
        time.sleep(0.1)
        assert not entered.is_set()
        os.rename(tmp_path / "state", tmp_path / "published")
    waiting.join()
    assert entered.is_set()
    assert (tmp_path / "published" / "leases" / ".gate").exists()


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_a_directory_that_is_moved_while_it_is_made(
    local: Location, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """`os.makedirs` makes one level after another, and looks again at what it finds there."""
    makedirs, moved = os.makedirs, iter([error(errno.ENOENT, "moved")] * 2)

    def while_it_is_moved(*args: object, **kwargs: object) -> None:
        for each in moved:
            raise each
        makedirs(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("os.makedirs", while_it_is_moved)
    take(local, 0)
    assert list(moved) == []


def test_a_place_is_removed_unless_another_run_comes_in_this_moment(
    local: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def while_another_comes(path: str) -> None:
        unlink(path)
        Path(path).touch()

    take(local, 0)
    with monkeypatch.context() as patch, exclusive(local):
        patch.setattr("os.unlink", while_another_comes)
        remove_lease_directory(local, local.parent)
    assert os.listdir(local.path) == [".gate"]
    with exclusive(local):
        remove_lease_directory(local, local.parent)
    assert not os.path.exists(local.parent.path)


def test_one_at_a_time(local: Location) -> None:
    inside, most = [0], [0]

    def enter() -> None:
        for _ in range(20):
            with exclusive(local):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0005)
                inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot lock it: (Not a directory|File exists)"):
        take(parse_url(str(tmp_path / "file")), 0)


def test_a_file_system_without_locks(local: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refusing)
    with pytest.raises(StorageError, match="leases: cannot lock it: No locks available"):
        take(local, 0)


def test_a_full_disk_leaves_no_lease(local: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("reshard.core.storage.leases.lease_holder.json.dumps", full)  # writing it, for the caller
    with pytest.raises(StorageError, match="leases: cannot take a lease: No space left on device"):
        take(local, 0)
    assert leases_in(local) == []


@pytest.mark.parametrize("name", [".gate", "0123abcd.json"])
def test_a_pipe_in_the_place_of_a_lease_is_not_waited_for(local: Location, name: str) -> None:
    os.makedirs(local.path)
    os.mkfifo(local.child(name).path)
    with pytest.raises(StorageError, match="a pipe, not a regular file"), held_lease(local, new_holder([0])):
        pass


@pytest.mark.parametrize("name", [".gate", "0123abcd.json"])
def test_a_link_in_the_place_of_a_lease_is_not_followed(local: Location, tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("mine")
    os.makedirs(local.path)
    os.symlink(tmp_path / "precious", local.child(name).path)
    with pytest.raises(StorageError, match="symbolic links"), held_lease(local, new_holder([0])):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_lease_whose_file_cannot_be_closed(local: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unclosable(io.FileIO):
        def close(self) -> None:
            is_open = not self.closed
            super().close()
            if is_open:
                raise OSError(errno.EIO, "Input/output error")

    def opened(file: str | int, mode: str, *, buffering: int = -1) -> io.FileIO:
        return (Unclosable if mode == "xb" else io.FileIO)(file, mode)

    monkeypatch.setattr("reshard.core.storage.leases.local_lease.open", opened, raising=False)
    with (
        pytest.raises(StorageError, match="leases: cannot close a file in it: Input/output error"),
        held_lease(local, new_holder([0])),
    ):
        pass
    assert os.listdir(local.path) == [".gate"]

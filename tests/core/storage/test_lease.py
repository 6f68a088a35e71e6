"""Leases: who works on what; what becomes of them when their holder ends, well or not."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from reshard.core.errors import StorageError, TargetBusyError, TargetError
from reshard.core.storage.copying import copy_file
from reshard.core.storage.lease import held_lease, living_holders
from reshard.core.storage.lease_holder import LeaseHolder, new_holder, parse_holder
from reshard.core.storage.lease_monitor import seen_holders
from reshard.core.storage.local_lease import exclusive, remove_lease_directory
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import check_claim
from reshard.core.storage.writing import write_bytes, write_file
from tests.support.places import PROJECT

DEAD_AFTER_SECONDS = 0.5
HOLDING = """
import sys, time
from reshard.core.storage.lease import held_lease
from reshard.core.storage.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
with held_lease(parse_url(sys.argv[1]), new_holder([0, 1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def remote(remote: Location, monkeypatch: pytest.MonkeyPatch) -> Location:
    """Where one sees soon that a holder is dead."""
    monkeypatch.setattr("reshard.core.storage.remote_lease._DEAD_AFTER_SECONDS", DEAD_AFTER_SECONDS)
    return remote


def leases_in(directory: Location) -> list[str]:
    if not directory.fs.exists(directory.path):
        return []
    return [path for path in directory.fs.ls(directory.path, detail=False) if str(path).endswith(".json")]


def take(directory: Location, *ranks: int) -> None:
    with held_lease(directory, new_holder(ranks)):
        pass


# ---- both kinds ----


def test_a_second_holder_of_the_same_ranks_is_refused(directory: Location) -> None:
    first = new_holder([0, 1, 2])
    with held_lease(directory, first):
        with pytest.raises(TargetError) as caught:
            take(directory, 2, 1, 7)
        assert f"already converting into this target: run {first.run} of {first.user} on {first.host}" in str(
            caught.value
        )
        assert "It holds target ranks 1, 2. Wait for it, or convert other ranks with --ranks" in str(caught.value)
        assert len(leases_in(directory)) == 1, "who was refused leaves no lease"
    take(directory, 0, 1, 2)
    assert leases_in(directory) == []


def test_many_shared_ranks_are_not_all_listed(directory: Location) -> None:
    with (
        held_lease(directory, new_holder(range(4096))),
        pytest.raises(TargetError, match=r"ranks 0, 1, 2, 3, 4, 5, 6, 7 …\."),
    ):
        take(directory, *range(4096))


def test_other_ranks_are_free(directory: Location) -> None:
    first, second = new_holder([0, 1]), new_holder([2, 3])
    with held_lease(directory, first), held_lease(directory, second):
        assert living_holders(directory, first) == [second]
        assert living_holders(directory, second) == [first]
    assert living_holders(directory, first) == []


def test_who_makes_something_else_is_refused_whatever_the_ranks(directory: Location) -> None:
    with held_lease(directory, new_holder([0], "one")):
        refused = pytest.raises(TargetBusyError, match=r"already converting .* It is converting something else into it")
        with refused, held_lease(directory, new_holder([1], "another")):
            pass
        with held_lease(directory, new_holder([1], "one")):
            pass


def test_a_lease_is_given_back_after_an_error(directory: Location) -> None:
    def failing() -> None:
        with held_lease(directory, new_holder([0])):
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert leases_in(directory) == []
    take(directory, 0)


def test_a_lease_names_its_holder(directory: Location) -> None:
    holder = new_holder([3, 4])
    with held_lease(directory, holder):
        [path] = leases_in(directory)
        fields = json.loads(directory.fs.cat_file(path))
    assert (fields["run"], fields["process"], fields["ranks"]) == (holder.run, os.getpid(), [3, 4])


def test_a_container_without_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("uid not found")))
    assert new_holder([]).user == str(os.getuid())


# ---- local ----


def test_another_process_is_refused_until_it_is_killed(local: Location) -> None:
    run = subprocess.Popen([sys.executable, "-c", HOLDING, str(local)], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "held\n"
    with pytest.raises(TargetError, match=f"process {run.pid}, since .* target ranks 1"):
        take(local, 1)
    take(local, 2)
    run.kill()
    run.wait()
    run.stdout.close()
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
    waiting.join(10)
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

    monkeypatch.setattr("reshard.core.storage.lease_holder.json.dumps", full)  # the write, as far as the caller can see
    with pytest.raises(StorageError, match="leases: cannot take a lease: No space left on device"):
        take(local, 0)
    assert leases_in(local) == []


# ---- remote ----


def leave_lease(directory: Location, *ranks: int, run: str = "0dead000") -> LeaseHolder:
    """What a run that was killed leaves behind."""
    holder = LeaseHolder(run, "far", "someone", 7, "2026-01-01T00:00:00+00:00", ranks)
    directory.fs.pipe_file(directory.child(f"{run}.json").path, json.dumps(asdict(holder) | {"renewal": 3}).encode())
    return holder


def test_a_dead_lease_is_taken_over_after_watching_it(remote: Location) -> None:
    leave_lease(remote, 0, 1)
    started = time.monotonic()
    with held_lease(remote, new_holder([1, 2])):
        assert time.monotonic() - started >= DEAD_AFTER_SECONDS
        assert len(leases_in(remote)) == 1


def test_dead_leases_of_other_ranks_are_not_waited_for(remote: Location) -> None:
    leave_lease(remote, 0, 1)
    started = time.monotonic()
    take(remote, 2)
    assert time.monotonic() - started < DEAD_AFTER_SECONDS


def test_a_dead_run_is_not_among_the_living(remote: Location) -> None:
    leave_lease(remote, 0, 1)
    mine = new_holder([2])
    with held_lease(remote, mine):
        assert living_holders(remote, mine) == []
        assert len(leases_in(remote)) == 1


def test_the_living_among_the_dead(remote: Location) -> None:
    leave_lease(remote, 0)
    living = new_holder([1])
    with held_lease(remote, living):
        assert living_holders(remote, new_holder([2])) == [living]


def renewals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "reshard-lease"]


def await_renewal(directory: Location) -> None:
    [path] = leases_in(directory)
    first = directory.fs.cat_file(path)
    deadline = time.monotonic() + 10
    while directory.fs.cat_file(path) == first:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_lease_is_renewed_until_it_is_given_back(remote: Location) -> None:
    with held_lease(remote, new_holder([0])):
        await_renewal(remote)
        assert len(renewals()) == 1
    assert renewals() == []
    assert leases_in(remote) == []


def test_a_failed_renewal_is_made_up_for(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_file, failures = type(remote.fs).pipe_file, iter([OSError(errno.EBUSY, "SlowDown")] * 2)

    def failing(*args: object, **kwargs: object) -> None:
        for error in failures:
            raise error
        pipe_file(*args, **kwargs)

    with held_lease(remote, new_holder([0])):
        monkeypatch.setattr(type(remote.fs), "pipe_file", failing)
        await_renewal(remote)
    assert list(failures) == []


def test_two_that_start_at_the_same_moment_both_refuse(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_file = type(remote.fs).pipe_file

    def other_writes_first(*args: object, **kwargs: object) -> None:
        monkeypatch.setattr(type(remote.fs), "pipe_file", pipe_file)
        leave_lease(remote, 0, run="0ther000")
        pipe_file(*args, **kwargs)

    monkeypatch.setattr(type(remote.fs), "pipe_file", other_writes_first)
    with pytest.raises(TargetError, match="run 0ther000 of someone on far"):
        take(remote, 0)
    assert leases_in(remote) == [remote.child("0ther000.json").path]


def test_a_lease_that_cannot_be_read_at_the_moment_is_not_taken_for_given_back(
    remote: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_lease(remote, 0)

    def busy(*_: object, **__: object) -> bytes:
        raise OSError(errno.EBUSY, "SlowDown")

    monkeypatch.setattr(type(remote.fs), "cat_file", busy)
    with pytest.raises(StorageError, match="0dead000.json: cannot read .*: SlowDown"):
        take(remote, 0)
    assert len(leases_in(remote)) == 1


@pytest.mark.parametrize("text", [b"{", b"\xff", b'{"ranks": [1]}'])
def test_an_unreadable_remote_lease_is_named(remote: Location, text: bytes) -> None:
    remote.fs.pipe_file(remote.child("bad.json").path, text)
    with pytest.raises(TargetError, match="memory:///bucket/leases/bad.json: not a readable lease; remove it if"):
        take(remote, 0)


# ---- a remote lease that is lost ----


def await_loss(message: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            check_claim()
        except TargetError as error:
            assert message in str(error)
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_whose_lease_was_removed_makes_nothing_appear_any_more(remote: Location) -> None:
    """As a run does that takes it for dead."""
    result = remote.parent.child("result")
    with held_lease(remote, new_holder([0])):
        write_bytes(result, b"before")
        [path] = leases_in(remote)
        remote.fs.rm_file(path)
        await_loss("its lease was removed")
        with pytest.raises(
            TargetError, match="leases: this run was considered dead, because it could not renew its lease"
        ):
            write_bytes(result, b"after")
        with pytest.raises(TargetError, match="Start again when nobody else"), write_file(result) as file:
            file.write(b"after")
        with pytest.raises(TargetError, match="considered dead"):
            copy_file(result, remote.parent.child("copy"))
        time.sleep(0.2)
        assert leases_in(remote) == [], "it is not taken up again"
    assert result.fs.cat_file(result.path) == b"before"
    write_bytes(result, b"after")


def test_a_run_beside_which_another_one_stays_gives_way(remote: Location) -> None:
    with held_lease(remote, new_holder([0, 1])):
        leave_lease(remote, 1, run="0ther000")
        await_loss("another run has taken over: run 0ther000 of someone on far")


def test_runs_for_other_ranks_are_in_nobodys_way(remote: Location) -> None:
    with held_lease(remote, new_holder([0])), held_lease(remote, new_holder([1])):
        await_renewals = time.monotonic() + 0.4
        while time.monotonic() < await_renewals:
            check_claim()
            time.sleep(0.01)


def test_who_cannot_renew_its_lease_waits_until_it_can(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.remote_lease.IN_DOUBT_AFTER_SECONDS", 0.3)
    pipe_file, broken = type(remote.fs).pipe_file, threading.Event()

    def failing(*args: object, **kwargs: object) -> None:
        if broken.is_set():
            raise OSError(errno.EBUSY, "SlowDown")
        pipe_file(*args, **kwargs)

    monkeypatch.setattr(type(remote.fs), "pipe_file", failing)
    with held_lease(remote, new_holder([0])):
        broken.set()
        time.sleep(0.5)
        with pytest.raises(
            StorageError, match=r"the lease could not be renewed for \d+ s, so that another run"
        ) as caught:
            check_claim()
        assert caught.value.transient
        broken.clear()
        await_renewal(remote)
        time.sleep(0.1)
        check_claim()


def test_a_renewal_without_an_answer_holds_nobody_up(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_file, hanging = type(remote.fs).pipe_file, threading.Event()

    def slow(*args: object, **kwargs: object) -> None:
        if threading.current_thread().name == "reshard-renewal":
            hanging.wait(5)
        pipe_file(*args, **kwargs)

    monkeypatch.setattr(type(remote.fs), "pipe_file", slow)
    began = time.monotonic()
    with held_lease(remote, new_holder([0])):
        time.sleep(0.3)
    assert time.monotonic() - began < 3
    hanging.set()


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


def test_looking_at_leases_waits_for_no_pipe(local: Location) -> None:
    os.makedirs(local.path)
    os.mkfifo(local.child("0123abcd.json").path)
    with pytest.raises(StorageError, match="a pipe, not a regular file"):
        seen_holders(local)


def test_the_holder_of_a_lease_is_named_on_one_line() -> None:
    fields = {"run": "1", "host": "h\nreshard: done", "user": "u\x1b[2J", "process": 7, "started": "", "ranks": [0]}
    text = str(parse_holder(json.dumps(fields).encode(), "here"))
    assert text == "run 1 of u\\x1b[2J on h\\nreshard: done (process 7, since )"


def test_a_lease_whose_file_cannot_be_closed(local: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unclosable(io.FileIO):
        def close(self) -> None:
            is_open = not self.closed
            super().close()
            if is_open:
                raise OSError(errno.EIO, "Input/output error")

    def opened(file: str | int, mode: str, *, buffering: int = -1) -> io.FileIO:
        return (Unclosable if mode == "xb" else io.FileIO)(file, mode)

    monkeypatch.setattr("reshard.core.storage.local_lease.open", opened, raising=False)
    with (
        pytest.raises(StorageError, match="leases: cannot close a file in it: Input/output error"),
        held_lease(local, new_holder([0])),
    ):
        pass
    assert os.listdir(local.path) == [".gate"]

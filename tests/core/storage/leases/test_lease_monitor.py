"""Leases as other processes see them: nothing appears once the run is over, and useless work is stopped."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import pytest
from msgspec.structs import asdict

from reshard.core.errors import StorageError, TargetError
from reshard.core.storage.leases.lease import LeaseName, current_lease, held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.leases.lease_monitor import seen_holders, watched_lease
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import check_claim
from reshard.core.storage.writing import write_bytes, write_file
from tests.support.leases import doubted
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.places import PROJECT

HOLDING = """
import sys, time
from reshard.core.storage.leases.lease import current_lease, held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
with held_lease(parse_url(sys.argv[1]), new_holder([0, 1])):
    print(current_lease().run, flush=True)
    sys.stdin.read()
"""
WATCHING = """
import sys, threading
from reshard.core.storage.writing import write_file
from reshard.core.storage.leases.lease import LeaseName
from reshard.core.storage.urls import parse_url
from reshard.core.storage.leases.lease_monitor import watched_lease
with watched_lease(LeaseName(sys.argv[1], sys.argv[2]), threading.Event(), lambda: True):
    with write_file(parse_url(sys.argv[3])) as file:
        file.write(b"late")
        print("under way", flush=True)
        sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.leases.lease_monitor.LOOK_SECONDS", 0.05)


def await_stop(stop: threading.Event) -> None:
    assert stop.wait(PATIENCE_SECONDS), "useless work goes on"


def name_of(lease: LeaseName | None) -> LeaseName:
    assert lease is not None
    return lease


def run(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_living_lease_allows_all(directory: Location, tmp_path: Path) -> None:
    stop = threading.Event()
    assert current_lease() is None
    with held_lease(directory, new_holder([0])), watched_lease(name_of(current_lease()), stop, lambda: True):
        write_bytes(parse_url(str(tmp_path / "file")), b"content")
        time.sleep(0.3)
        check_claim()
    assert (tmp_path / "file").read_bytes() == b"content"
    assert not stop.is_set()
    assert current_lease() is None


def test_a_lease_that_was_given_back_stops_the_work(directory: Location, tmp_path: Path) -> None:
    stop, over = threading.Event(), threading.Event()
    names: SimpleQueue[LeaseName] = SimpleQueue()

    def hold() -> None:
        with held_lease(directory, new_holder([0])):
            names.put(name_of(current_lease()))
            over.wait()

    holder = threading.Thread(target=hold)  # has a context of its own, as another process would
    holder.start()
    lease = names.get()
    with watched_lease(lease, stop, lambda: True):
        over.set()
        holder.join()
        with pytest.raises(TargetError, match=f"nothing more is written for run {lease.run}: it has ended"):
            write_bytes(parse_url(str(tmp_path / "file")), b"content")
        await_stop(stop)
    assert list(tmp_path.glob("file")) == []
    with pytest.raises(TargetError), watched_lease(lease, stop, lambda: True):
        pytest.fail("it was gone before")


def test_another_conversion_in_the_same_place_stops_the_work(directory: Location) -> None:
    stop = threading.Event()
    ours = [True]
    with (
        held_lease(directory, new_holder([0])),
        watched_lease(name_of(current_lease()), stop, lambda: ours[0]),
    ):
        ours[0] = False
        await_stop(stop)
        ours[0] = True
        with pytest.raises(TargetError, match="another conversion was begun in its place"):
            check_claim()  # what was gone once stays gone


def test_a_file_that_was_begun_does_not_appear_when_the_run_is_killed(local: Location, tmp_path: Path) -> None:
    """Three processes: the run, one that works for it, and this one, which takes over."""
    holder = run(HOLDING, local)
    assert holder.stdout
    worker = run(WATCHING, local, holder.stdout.readline().strip(), tmp_path / "file")
    assert worker.stdout
    assert worker.stdout.readline() == "under way\n"
    holder.kill()
    holder.communicate()
    with held_lease(local, new_holder([0, 1])):
        _, _ = worker.communicate("go on\n")
        assert worker.returncode != 0
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_file_that_was_begun_appears_while_the_run_lives(local: Location, tmp_path: Path) -> None:
    holder = run(HOLDING, local)
    assert holder.stdout
    worker = run(WATCHING, local, holder.stdout.readline().strip(), tmp_path / "file")
    worker.communicate("go on\n")
    assert (tmp_path / "file").read_bytes() == b"late"
    holder.communicate("end\n")


def test_who_only_looks_does_not_hold(local: Location) -> None:
    """A dead lease can be taken over however many look at it."""
    holder = run(HOLDING, local)
    assert holder.stdout
    lease = LeaseName(str(local), holder.stdout.readline().strip())
    holder.kill()
    holder.communicate()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            # who takes a lease over locks it for a moment, to find out that it is dead
            with suppress(TargetError), watched_lease(lease, over, lambda: True):
                pass

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        with held_lease(local, new_holder([0, 1])):
            pass
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()


def test_a_remote_lease_that_is_not_renewed_is_in_doubt(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = new_holder([0])
    location = remote.child(f"{holder.run}.json")
    remote.store.put(location.path, json.dumps(asdict(holder)).encode())
    stop = threading.Event()
    with watched_lease(LeaseName(str(remote), holder.run), stop, lambda: True):
        check_claim()
        monkeypatch.setattr("reshard.core.storage.leases.remote_lease.IN_DOUBT_AFTER_SECONDS", 0.3)
        doubt = until(doubted, "the lease is not in doubt")
        assert "has not been renewed for" in str(doubt)
        assert "another run may take over" in str(doubt)
        assert doubt.transient
        numbers = itertools.count(1)

        def trusted_again() -> bool:
            renewed = asdict(holder) | {"renewal": next(numbers)}
            remote.store.put(location.path, json.dumps(renewed).encode())
            return not doubted()

        until(trusted_again, "the lease stays in doubt")
        assert not stop.is_set()
        remote.store.remove(location.path)
        await_stop(stop)
        with pytest.raises(TargetError, match="another run has taken over"), write_file(remote.child("file")):
            pytest.fail("it must not begin")


def test_looking_at_leases_waits_for_no_pipe(local: Location) -> None:
    os.makedirs(local.path)
    os.mkfifo(local.child("0123abcd.json").path)
    with pytest.raises(StorageError, match="a pipe, not a regular file"):
        seen_holders(local)

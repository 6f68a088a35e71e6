"""Leases on object stores: alive as long as they are renewed."""

import errno
import itertools
import json
import threading
import time
from typing import Any

import pytest
from msgspec.structs import asdict

from reshard.core.errors import StoppedError, StorageError, TargetBusyError, TargetError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy, stoppable
from reshard.core.storage.copying import copy_file
from reshard.core.storage.fsspec_store import FsspecStore
from reshard.core.storage.leases.lease import held_lease, living_holders
from reshard.core.storage.leases.lease_holder import LeaseHolder, new_holder
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim
from reshard.core.storage.writing import write_bytes, write_file
from tests.support.leases import DEAD_AFTER_SECONDS, doubted, leases_in, take
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.small_files import contents


def leave_lease(directory: Location, *ranks: int, run: str = "0dead000") -> LeaseHolder:
    """What a run that was killed leaves behind."""
    holder = LeaseHolder(run, "far", "someone", 7, "2026-01-01T00:00:00+00:00", ranks)
    directory.store.put(directory.child(f"{run}.json").path, json.dumps(asdict(holder) | {"renewal": 3}).encode())
    return holder


@pytest.mark.usefixtures("quickly_dead")
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
    assert time.monotonic() - started < PATIENCE_SECONDS, "the time after which it would be dead"


@pytest.mark.usefixtures("quickly_dead")
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


def renewals(name: str = "reshard-lease") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def await_renewal(directory: Location, path: str = "") -> None:
    """Waits until the lease of this path has another text; without a path, there is only one lease."""
    if not path:
        [path] = leases_in(directory)
    first = directory.store.read_beginning(path, 2**20)
    until(lambda: directory.store.read_beginning(path, 2**20) != first, "the lease is not renewed")


def test_the_lease_is_renewed_until_it_is_given_back(remote: Location) -> None:
    with held_lease(remote, new_holder([0])):
        await_renewal(remote)
        assert len(renewals()) == 1
    assert renewals() == []
    assert leases_in(remote) == []


def test_a_failed_renewal_is_made_up_for(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    put, failures = FsspecStore.put, iter([OSError(errno.EBUSY, "SlowDown")] * 2)

    def failing(*args: Any) -> str:
        for error in failures:
            raise error
        return put(*args)

    with held_lease(remote, new_holder([0])):
        monkeypatch.setattr(FsspecStore, "put", failing)
        await_renewal(remote)
    assert list(failures) == []


def test_two_that_start_at_the_same_moment_both_refuse(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    put = FsspecStore.put

    def other_writes_first(*args: Any) -> str:
        monkeypatch.setattr(FsspecStore, "put", put)
        leave_lease(remote, 0, run="0ther000")
        return put(*args)

    monkeypatch.setattr(FsspecStore, "put", other_writes_first)
    with pytest.raises(TargetError, match="run 0ther000 of someone on far"):
        take(remote, 0)
    assert leases_in(remote) == [remote.child("0ther000.json").path]


def test_a_rival_that_came_since_no_lease_was_there_is_seen(remote: Location) -> None:
    with held_lease(remote, new_holder([0, 1])):
        with pytest.raises(TargetBusyError), held_lease(remote, new_holder([1, 2]), alone=True):
            pass
        assert len(leases_in(remote)) == 1


def test_a_lease_that_cannot_be_read_at_the_moment_is_not_taken_for_given_back(
    remote: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_lease(remote, 0)
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))

    def busy(*_: object) -> bytes:
        raise OSError(errno.EBUSY, "SlowDown")

    monkeypatch.setattr(FsspecStore, "read_beginning", busy)
    with pytest.raises(StorageError, match="0dead000.json: cannot read .*: SlowDown"):
        take(remote, 0)
    assert len(leases_in(remote)) == 1


@pytest.mark.parametrize("text", [b"{", b"\xff", b'{"ranks": [1]}'])
def test_an_unreadable_remote_lease_is_named(remote: Location, text: bytes) -> None:
    remote.store.put(remote.child("bad.json").path, text)
    with pytest.raises(TargetError, match="memory:///bucket/leases/bad.json: not a readable lease; remove it if"):
        take(remote, 0)


def await_loss(message: str) -> None:
    def lost() -> str:
        try:
            check_claim()
        except TargetError as error:
            return str(error)
        return ""

    assert message in until(lost, "the lease is not lost")


def test_a_run_whose_lease_was_removed_makes_nothing_appear_any_more(remote: Location) -> None:
    """As a run does that takes it for dead."""
    result = remote.parent.child("result")
    with held_lease(remote, new_holder([0])):
        write_bytes(result, b"before")
        [path] = leases_in(remote)
        remote.store.remove(path)
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
    assert contents(result) == b"before"
    write_bytes(result, b"after")


def test_a_run_beside_which_another_one_stays_gives_way(remote: Location) -> None:
    with held_lease(remote, new_holder([0, 1])):
        leave_lease(remote, 1, run="0ther000")
        await_loss("another run has taken over: run 0ther000 of someone on far")


def test_runs_for_other_ranks_are_in_nobodys_way(remote: Location) -> None:
    with held_lease(remote, new_holder([0])):
        first = {*leases_in(remote)}
        with held_lease(remote, new_holder([1])):
            second = {*leases_in(remote)} - first
            for path in (*first, *second) * 2:
                await_renewal(remote, path)
                check_claim()


def test_who_cannot_renew_its_lease_waits_until_it_can(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    put, broken = FsspecStore.put, threading.Event()

    def failing(*args: Any) -> str:
        if broken.is_set():
            raise OSError(errno.EBUSY, "SlowDown")
        return put(*args)

    monkeypatch.setattr(FsspecStore, "put", failing)
    with held_lease(remote, new_holder([0])):
        check_claim()
        broken.set()
        monkeypatch.setattr("reshard.core.storage.leases.remote_lease.IN_DOUBT_AFTER_SECONDS", 0.3)
        doubt = until(doubted, "the lease is not in doubt")
        assert "the lease could not be renewed for" in str(doubt)
        assert doubt.transient
        broken.clear()
        until(lambda: not doubted(), "the lease stays in doubt")


def test_no_renewal_under_way_brings_a_lease_back_that_was_given_back(
    remote: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several under way, only the last was waited for."""
    put, go_on, numbers = FsspecStore.put, threading.Event(), itertools.count()

    def first_is_slow(*args: Any) -> str:
        if threading.current_thread().name == "reshard-renewal" and next(numbers) == 0:
            go_on.wait(PATIENCE_SECONDS)
        return put(*args)

    monkeypatch.setattr(FsspecStore, "put", first_is_slow)
    with held_lease(remote, new_holder([0])):
        await_renewal(remote)
        [slow, *_] = renewals("reshard-renewal")
        threading.Timer(0.3, go_on.set).start()
    slow.join()
    assert leases_in(remote) == []


def test_a_renewal_without_an_answer_holds_nobody_up(remote: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._LAST_RENEWALS_SECONDS", 0.05)
    put, hanging = FsspecStore.put, threading.Event()

    def slow(*args: Any) -> str:
        if threading.current_thread().name == "reshard-renewal":
            hanging.wait(PATIENCE_SECONDS)
        return put(*args)

    monkeypatch.setattr(FsspecStore, "put", slow)
    with held_lease(remote, new_holder([0])):
        until(lambda: len(renewals("reshard-renewal")) >= 2, "no renewal follows the first")
    left = renewals("reshard-renewal")
    assert left
    hanging.set()
    for thread in left:
        thread.join()


def test_watching_a_lease_ends_when_the_work_is_stopped(remote: Location) -> None:
    leave_lease(remote, 0, 1)
    started = time.monotonic()
    with stoppable() as stop:
        stop.set()
        with pytest.raises(StoppedError):
            take(remote, 0)
    assert time.monotonic() - started < PATIENCE_SECONDS, "the time after which it would be dead"
    assert len(leases_in(remote)) == 1

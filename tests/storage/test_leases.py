"""Leases on S3 servers: one that judges conditions, so that a takeover has one winner; and others, as ever."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reshard import clean
from reshard.core.errors import TargetBusyError, TargetError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.leases import remote_lease
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import LAST_RENEWAL, LeaseHolder, new_holder
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import check_claim
from tests.support.leases import take
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.s3_client import s3_client
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import S3Server
from tests.support.s3_traffic import Exchange, Fault, Kind
from tests.support.stores import BUCKET, Store, forget_connections

DEAD = LeaseHolder("0dead000", "far", "someone", 7, "2026-01-01T00:00:00+00:00", (0, 1))
RIVAL = LeaseHolder("0ther000", "near", "someone", 8, "2026-01-01T00:00:00+00:00", (0, 1))
KEY, RIVAL_KEY = (f"out/.reshard/leases/{holder.run}.json" for holder in (DEAD, RIVAL))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_lease, "RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(remote_lease, "_DEAD_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(remote_lease, "_LAST_RENEWALS_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(remote_lease, "IN_DOUBT_AFTER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))


@pytest.fixture
def proxy(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Before an empty store that judges conditions, in an environment that leads there."""
    with s3_proxy(moto) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        forget_connections()
        yield running
        forget_connections()


@pytest.fixture
def client(moto: S3Server) -> Any:
    """Goes past the proxy."""
    return s3_client(moto.url)


@pytest.fixture
def directory(proxy: S3Proxy) -> Location:
    return parse_url(f"s3://{BUCKET}/out/.reshard/leases")


def lease_text(renewal: int, holder: LeaseHolder = DEAD) -> bytes:
    return holder.dump(renewal=renewal)


def leave_lease(client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key=KEY, Body=lease_text(3))


def keys_in(client: Any) -> list[str]:
    return [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def at(proxy: S3Proxy, operation: str, act: Callable[[Exchange], object], *, number: int = 1) -> None:
    """Acts when the request of this number has come, before anything is done about it."""

    def look(exchange: Exchange) -> None:
        if exchange.call.operation == operation and exchange.number == number:
            act(exchange)

    proxy.before = look


def await_loss() -> str:
    """The message of the error that ends a run whose lease is lost."""

    def message() -> str:
        try:
            check_claim()
        except TargetError as error:
            return str(error)
        return ""

    return until(message, "the lease is not lost")


def puts(proxy: S3Proxy) -> list[int]:
    """The statuses of all writes, in the order in which they came."""
    return [each.status for each in proxy.exchanges() if each.call.operation == "PutObject"]


def await_renewals(proxy: S3Proxy, since: int) -> None:
    """Waits until two writes have succeeded after the first `since`.

    What is answered in between depends on time: renewals overlap on a busy machine, and all but the first of those that
    overlap find another etag than they know.
    """
    until(lambda: puts(proxy)[since:].count(200) >= 2, "the lease is not renewed")


def test_a_renewal_on_its_way_does_not_bring_back_a_lease_that_was_removed(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    at(proxy, "PutObject", lambda put: client.delete_object(Bucket=BUCKET, Key=put.call.key), number=2)
    with held_lease(directory, new_holder([0])):
        assert "its lease was removed" in await_loss()
        assert keys_in(client) == []


def leave_dead_lease_renewed_before_removal(proxy: S3Proxy, client: Any) -> None:
    """Leaves a dead lease that its holder renews when the request to give it its last text has come."""
    leave_lease(client)
    at(proxy, "PutObject", lambda _: client.put_object(Bucket=BUCKET, Key=KEY, Body=lease_text(4)))


def test_a_dead_lease_that_is_renewed_at_the_last_moment_is_not_removed(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    leave_dead_lease_renewed_before_removal(proxy, client)
    with pytest.raises(TargetBusyError, match="already converting into this target: run 0dead000 of someone on far"):
        take(directory, 1)
    assert client.get_object(Bucket=BUCKET, Key=KEY)["Body"].read() == lease_text(4)


def test_a_holder_whose_renewal_meets_its_last_text_is_lost_at_once(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    holder = new_holder([0])
    last_text = holder.dump(renewal=LAST_RENEWAL)
    lease = remote_lease._RemoteLease(directory, holder)
    lease.take()
    at(proxy, "PutObject", lambda put: client.put_object(Bucket=BUCKET, Key=put.call.key, Body=last_text), number=2)
    lease._renew(1, threading.Event())
    assert puts(proxy) == [200, 412]
    with pytest.raises(TargetError, match="this run was considered dead"):
        lease.check()


def test_a_last_text_whose_writer_was_killed_is_a_dead_lease(directory: Location, client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key=KEY, Body=lease_text(LAST_RENEWAL))
    take(directory, 1)
    assert keys_in(client) == []


class Rival:
    """A run that takes the dead lease's place before this run's request of a number, and renews its own from then on.

    Attributes:
        came_first: this run had not asked for its own lease to be written by then.
    """

    def __init__(self, client: Any, number: int) -> None:
        self._client = client
        self._left = number
        self.came_first = True

    @property
    def came(self) -> bool:
        return self._left <= 0

    def __call__(self, exchange: Exchange) -> None:
        self._left -= 1
        if self._left == 0:
            self._client.delete_object(Bucket=BUCKET, Key=KEY)
        if self.came:
            self._client.put_object(Bucket=BUCKET, Key=RIVAL_KEY, Body=lease_text(-self._left, RIVAL))
        elif exchange.call.operation == "PutObject" and exchange.call.key != KEY:
            self.came_first = False


def test_a_rival_that_comes_at_any_moment_of_a_takeover(proxy: S3Proxy, directory: Location, client: Any) -> None:
    """Either it is seen, or it finds this run's lease when it looks for rivals after writing its own."""
    outcomes: list[str] = []
    rival = Rival(client, 1)
    while not outcomes or rival.came:
        leave_lease(client)
        rival = proxy.before = Rival(client, len(outcomes) + 1)
        try:
            take(directory, 1)
        except TargetBusyError as error:
            assert RIVAL.run in str(error)
            outcomes.append("refused")
        else:
            assert not rival.came_first
            outcomes.append("taken")
        assert {*keys_in(client)} == ({RIVAL_KEY} if rival.came else set())
        client.delete_object(Bucket=BUCKET, Key=RIVAL_KEY)
    assert {*outcomes} == {"refused", "taken"}


def test_a_conflict_is_no_refusal_of_conditions(proxy: S3Proxy, directory: Location, client: Any) -> None:
    leave_lease(client)
    proxy.set_faults(Fault(Kind.CONFLICT, ("PutObject",), lambda each: bool(each.call.if_match), most=2))
    with held_lease(directory, new_holder([1])):
        await_renewals(proxy, 3)
        check_claim()
    written = [each for each in proxy.exchanges() if each.call.operation == "PutObject"]
    assert [each.status for each in written][:3] == [409, 409, 200]
    assert len([each for each in written if not each.call.if_match]) == 1, "taking it needs no condition"


def test_cleaning_spares_a_lease_that_is_renewed_at_the_last_moment(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    leave_dead_lease_renewed_before_removal(proxy, client)
    with pytest.raises(TargetBusyError, match="run 0dead000 of someone on far .* is working on it"):
        clean(str(directory.parent.parent), remove=True)
    assert keys_in(client) == [KEY]


@pytest.mark.parametrize("operation", ["PutObject", "DeleteObject"])
def test_a_dead_lease_that_its_holder_gives_back_at_the_last_moment(
    proxy: S3Proxy, directory: Location, client: Any, operation: str
) -> None:
    leave_lease(client)
    at(proxy, operation, lambda _: client.delete_object(Bucket=BUCKET, Key=KEY))
    take(directory, 1)
    assert keys_in(client) == []


def test_a_dead_lease_is_removed_and_a_living_one_renewed(proxy: S3Proxy, directory: Location, client: Any) -> None:
    leave_lease(client)
    with held_lease(directory, new_holder([1])):
        await_renewals(proxy, 1)
        check_claim()
        assert len(keys_in(client)) == 1
    assert keys_in(client) == []


def test_a_renewal_that_was_carried_out_unheard_counts(proxy: S3Proxy, directory: Location) -> None:
    """The next one finds another etag than that of the text last written, and this run's own text."""
    proxy.set_faults(Fault(Kind.ANSWER_LOST, ("PutObject",), lambda put: put.number == 2))
    with held_lease(directory, new_holder([0])):
        await_renewals(proxy, 2)
        assert puts(proxy)[:2] == [200, 0]
        assert proxy.counts()["GetObject"] >= 1
        check_claim()


@pytest.mark.parametrize("kind", [Kind.NOT_IMPLEMENTED, Kind.CONDITION_FAILED])
def test_a_server_that_refuses_every_condition_is_asked_without(
    proxy: S3Proxy, directory: Location, client: Any, kind: Kind
) -> None:
    leave_lease(client)
    refused = kind.value.status
    proxy.set_faults(Fault(kind, ("PutObject", "DeleteObject"), lambda each: bool(each.call.if_match)))
    with held_lease(directory, new_holder([1])):
        await_renewals(proxy, 2)
        assert puts(proxy)[:3] == [refused, 200, refused]
        check_claim()
        assert len(keys_in(client)) == 1
    assert keys_in(client) == []


def test_a_server_that_ignores_conditions(store: Store) -> None:
    directory = parse_url(store.url("out/.reshard/leases"))
    left = store.files("out/.reshard/leases/0dead000.json")
    left.parent.mkdir(parents=True)
    left.write_bytes(lease_text(3))
    store.server.look_again()
    with held_lease(directory, new_holder([1])):
        await_renewals(store.proxy, 1)
        assert {*puts(store.proxy)} == {200}
        check_claim()
    assert list(left.parent.glob("*")) == []

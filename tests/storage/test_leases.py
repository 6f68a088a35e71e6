"""Leases on S3 servers: one that judges conditions, so that a takeover has one winner; and others, as ever."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import asdict

from reshard import clean
from reshard.core.errors import TargetBusyError, TargetError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage import remote_lease
from reshard.core.storage.lease import held_lease
from reshard.core.storage.lease_holder import LeaseHolder, new_holder
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
KEY = "out/.reshard/leases/0dead000.json"


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


def lease_text(renewal: int) -> bytes:
    return json.dumps(asdict(DEAD) | {"renewal": renewal}).encode()


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
    """Leaves a dead lease that its holder renews when the request to remove it has come."""
    leave_lease(client)
    at(proxy, "DeleteObject", lambda _: client.put_object(Bucket=BUCKET, Key=KEY, Body=lease_text(4)))


def test_a_dead_lease_that_is_renewed_at_the_last_moment_is_not_removed(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    leave_dead_lease_renewed_before_removal(proxy, client)
    with pytest.raises(TargetBusyError, match="already converting into this target: run 0dead000 of someone on far"):
        take(directory, 1)
    assert client.get_object(Bucket=BUCKET, Key=KEY)["Body"].read() == lease_text(4)


def test_cleaning_spares_a_lease_that_is_renewed_at_the_last_moment(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    leave_dead_lease_renewed_before_removal(proxy, client)
    with pytest.raises(TargetBusyError, match="run 0dead000 of someone on far .* is working on it"):
        clean(str(directory.parent.parent), remove=True)
    assert keys_in(client) == [KEY]


def test_a_dead_lease_that_its_holder_gives_back_at_the_last_moment(
    proxy: S3Proxy, directory: Location, client: Any
) -> None:
    leave_lease(client)
    at(proxy, "DeleteObject", lambda _: client.delete_object(Bucket=BUCKET, Key=KEY))
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
    """Its repetition finds the etag of the first attempt, which is this run's own."""
    proxy.set_faults(Fault(Kind.ANSWER_LOST, ("PutObject",), lambda put: put.number == 2))
    with held_lease(directory, new_holder([0])):
        await_renewals(proxy, 2)
        assert puts(proxy)[:2] == [200, 0]
        assert 412 in puts(proxy)
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
        assert puts(proxy)[:2] == [200, refused]
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

"""Requests: tried again, counted, many at once."""

import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import pytest

from reshard.core.errors import StorageError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy, counting_retries, retries_counted
from reshard.core.storage.transfers import REQUESTS_AT_ONCE, at_once, requested, submitted
from reshard.core.storage.urls import parse_url
from tests.support.patience import PATIENCE_SECONDS

PLACE = parse_url("memory://bucket/x")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.runtime.retry.REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.0))


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [error] * times

    def work() -> str:
        if left:
            raise left.pop()
        return "answer"

    return work


def test_a_request_is_repeated_and_counted() -> None:
    with counting_retries() as count:
        assert requested(PLACE, "read it", failing(retry.REQUESTS.attempts - 1, ConnectionResetError())) == "answer"
        assert retries_counted() == count.value == retry.REQUESTS.attempts - 1
    assert retries_counted() == 0


def test_too_many_failures_are_told() -> None:
    with counting_retries() as count, pytest.raises(StorageError, match="x: cannot read it: .*reset") as raised:
        requested(PLACE, "read it", failing(retry.REQUESTS.attempts, ConnectionResetError("reset")))
    assert raised.value.transient
    assert count.value == retry.REQUESTS.attempts - 1


def test_what_stays_wrong_is_asked_for_once() -> None:
    with counting_retries() as count, pytest.raises(StorageError, match="x: cannot read it"):
        requested(PLACE, "read it", failing(1, PermissionError("denied")))
    assert count.value == 0


def test_answers_come_in_order_and_requests_run_at_once() -> None:
    together = threading.Barrier(REQUESTS_AT_ONCE, timeout=PATIENCE_SECONDS)

    def ask(number: int) -> int:
        together.wait()  # passes only if that many are under way
        return number

    assert list(at_once(ask, range(3 * REQUESTS_AT_ONCE))) == list(range(3 * REQUESTS_AT_ONCE))


def test_no_more_is_asked_for_than_can_be_waited_for() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            asked.append(number)
            yield number

    answers = at_once(lambda number: number, items())
    assert next(answers) == 0
    assert len(asked) == REQUESTS_AT_ONCE


def test_the_first_error_ends_it() -> None:
    def ask(number: int) -> int:
        if number == 3:
            raise StorageError("the third is broken")
        return number

    answers = at_once(ask, range(100))
    assert [next(answers) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StorageError, match="the third is broken"):
        next(answers)


def test_requests_in_the_background_belong_to_who_made_them() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    whose.set("mine")
    assert submitted(whose.get).result() == "mine"
    with counting_retries() as count:
        work = failing(2, TimeoutError())
        assert list(at_once(lambda _: requested(PLACE, "read it", work), [0])) == ["answer"]
    assert count.value == 2

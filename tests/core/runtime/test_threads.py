"""Work in threads, and how rarely garbage is collected meanwhile."""

import contextvars
import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reshard.core.errors import StoppedError
from reshard.core.runtime.retry import stoppable
from reshard.core.runtime.threads import expect_parameters, in_threads, rare_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ((700, 10, 5), (100_000, 20, 100)),
        ((190_000, 10, 500), (190_000, 20, 500)),
        ((0, 10, 5), (0, 10, 5)),
    ],
)
def test_collections_are_rare_for_a_while(before: tuple[int, int, int], inside: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    with rare_collections():
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == before


def test_they_are_as_before_after_a_failure() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == before


def test_overlapping_blocks_leave_the_thresholds_as_they_were() -> None:
    """As conversions in several threads of a process that goes on."""
    gc.set_threshold(700, 10, 5)
    first, second = ExitStack(), ExitStack()
    first.enter_context(rare_collections())
    second.enter_context(rare_collections())
    first.close()
    assert gc.get_threshold() == (100_000, 20, 100)
    second.close()
    assert gc.get_threshold() == (700, 10, 5)


def test_a_plan_of_many_parameters_makes_them_rarer_until_the_blocks_end() -> None:
    gc.set_threshold(700, 10, 5)
    expect_parameters(20_000)
    assert gc.get_threshold() == (700, 10, 5)
    with rare_collections():
        expect_parameters(100)
        assert gc.get_threshold() == (100_000, 20, 100)
        with rare_collections():
            expect_parameters(20_000)
        expect_parameters(4000)
        assert gc.get_threshold() == (1_000_000, 20, 100)
    assert gc.get_threshold() == (700, 10, 5)


def test_collections_that_are_switched_off_stay_off() -> None:
    gc.set_threshold(0, 10, 5)
    with rare_collections():
        expect_parameters(20_000)
        assert gc.get_threshold() == (0, 10, 5)


def test_results_come_in_order_and_see_the_context() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(10)
    stop = threading.Event()
    assert in_threads(lambda number: number + variable.get(), range(20), 4, stop) == list(range(10, 30))
    assert not stop.is_set()


def test_the_first_error_stops_the_rest() -> None:
    stop = threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise KeyError(number)
        assert stop.wait(60)

    with pytest.raises(KeyError):
        in_threads(work, range(100), 2, stop)
    assert stop.is_set()
    assert len(begun) < 100, "items that had not begun are canceled"


def test_more_parameters_than_memory_has_room_for_are_no_error() -> None:
    gc.set_threshold(700, 10, 5)
    with rare_collections():
        expect_parameters(2**31)
        assert gc.get_threshold() == (50_000_000, 20, 100)


def test_items_do_not_begin_once_the_work_around_them_is_stopped() -> None:
    begun: list[int] = []
    with stoppable() as outer:

        def work(number: int) -> None:
            begun.append(number)
            outer.set()

        with pytest.raises(StoppedError):
            in_threads(work, range(100), 1, threading.Event())
    assert begun == [0]

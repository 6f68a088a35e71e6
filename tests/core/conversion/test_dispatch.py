"""The order of units of work: groups, checks, copies, failures and batches."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from reshard.core.conversion.dispatch import Dispatch, Kind, Unit, batched, run_in_threads
from reshard.core.errors import ConversionError, StoppedError, StorageError
from reshard.core.runtime.idle_workers import current_idle_workers


def write(*ranks: int) -> Unit:
    return Unit(Kind.WRITE, ranks)


def copy(rank: int) -> Unit:
    return Unit(Kind.COPY, (rank,))


def complete(rank: int) -> Unit:
    return Unit(Kind.COMPLETE, (rank,))


def check(rank: int) -> Unit:
    return Unit(Kind.CHECK, (rank,))


def order(dispatch: Dispatch, fails: frozenset[Unit] = frozenset()) -> Iterator[Unit]:
    """The units in the order of a single worker; those of `fails` fail."""
    while dispatch:
        assert dispatch.next(1, 1) is not None
        unit = dispatch.begin()
        dispatch.end(unit, dict.fromkeys(unit.own_ranks, StorageError("broken")) if unit in fails else {})
        yield unit


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def test_each_rank_of_a_group_is_checked_before_the_next_group_begins() -> None:
    units = order(Dispatch([write(0, 1), write(2)], separate_checks=True))
    assert list(units) == [write(0, 1), check(0), complete(1), check(1), write(2), check(2)]


def test_without_separate_checks_there_are_none() -> None:
    assert list(order(Dispatch([write(0, 1), write(2)]))) == [write(0, 1), complete(1), write(2)]


@pytest.mark.parametrize("separate_checks", [False, True])
def test_the_other_ranks_of_a_failed_group_are_tried_by_themselves(separate_checks: bool) -> None:
    dispatch = Dispatch([write(0, 1, 2)], separate_checks=separate_checks)
    made = [unit for unit in order(dispatch, frozenset([write(0, 1, 2)])) if unit.kind is not Kind.CHECK]
    assert made == [write(0, 1, 2), complete(1), complete(2)]
    assert dispatch.failures.keys() == {0}


def test_copies_come_last_and_not_if_their_primary_failed() -> None:
    dispatch = Dispatch([write(0), write(1)], [copy(2), copy(3)], {2: 0, 3: 1})
    assert list(order(dispatch, frozenset([write(1)]))) == [write(0), write(1), copy(2)]
    assert str(dispatch.failures[3]) == "not written, because it is a copy of rank_1, which failed"


def test_a_failed_check_fails_the_copies_as_well() -> None:
    dispatch = Dispatch([write(0)], [copy(1)], {1: 0}, separate_checks=True)
    assert list(order(dispatch, frozenset([check(0)]))) == [write(0), check(0)]
    assert dispatch.failures.keys() == {0, 1}


def test_copies_of_ranks_that_are_done_begin_at_once() -> None:
    assert list(order(Dispatch([], [copy(2)], {2: 0}))) == [copy(2)]


def test_copies_wait_for_what_is_under_way() -> None:
    dispatch = Dispatch([write(0), write(1)], [copy(2)], {2: 0})
    first, second = dispatch.begin(), dispatch.begin()
    dispatch.end(first, {})
    assert dispatch.next(8, 8) is None
    dispatch.end(second, {})
    assert dispatch.next(8, 8) == copy(2)


def test_no_more_units_and_groups_at_once_than_there_may_be() -> None:
    dispatch = Dispatch([write(0, 1), write(2), write(3)])
    assert dispatch.next(1, 1) == dispatch.begin()
    assert dispatch.next(1, 2) is None, "one worker"
    assert dispatch.next(2, 1) is None, "memory for one group"
    dispatch.end(write(0, 1), {})
    assert dispatch.begin() == complete(1)
    assert dispatch.next(2, 1) == write(2), "a rank of a group that is written needs no memory of a group"


def test_workers_that_no_unit_needs_are_idle_once_nothing_is_left_to_begin() -> None:
    dispatch = Dispatch([write(0, 1), write(2)], separate_checks=True)
    dispatch.begin()
    assert dispatch.idle(8, 2) == 0, "another unit may begin"
    dispatch.begin()
    assert dispatch.idle(8, 2) == 4
    assert dispatch.idle(3, 2) == 0
    dispatch.end(write(2), {})
    assert dispatch.idle(8, 2) == 0, "its check may begin"
    dispatch.begin()
    assert dispatch.idle(8, 2) == 5, "a check needs one"


def test_a_group_is_over_when_its_last_rank_is_checked() -> None:
    group = write(0, 1)
    dispatch = Dispatch([group], separate_checks=True)
    over = [dispatch.is_over(dispatch.origin(unit)) for unit in order(dispatch)]
    assert over == [False, False, False, True]


def test_all_that_is_left_fails_when_nothing_can_be_run() -> None:
    dispatch = Dispatch([write(0), write(1, 2)], [copy(3), copy(4)], {3: 1, 4: 9}, separate_checks=True)
    units = order(dispatch)
    assert [next(units), next(units)] == [write(0), check(0)]
    dispatch.begin()
    dispatch.fail_rest("its task was lost")
    assert not dispatch
    assert dispatch.failures.keys() == {1, 2, 3, 4}
    assert str(dispatch.failures[3]).startswith("not written, because it is a copy of rank_1")
    assert str(dispatch.failures[4]) == "its task was lost"


def test_batches_are_of_about_equal_size_and_keep_groups_whole() -> None:
    units = [write(*range(4)), *(write(rank) for rank in range(4, 12))]
    batches = batched(units, 3)
    assert [batch.ranks for batch in batches] == [tuple(range(4)), tuple(range(4, 8)), tuple(range(8, 12))]
    assert batches[0].units == (units[0],)
    assert all(batch.writes for batch in batches)
    assert not any(batch.writes for batch in batched([copy(1)], 3))
    assert batched([], 3) == ()


def test_a_batch_of_copies_is_done_without_those_whose_primary_failed() -> None:
    copied = batched([copy(2), copy(3)], 1)
    dispatch = Dispatch([write(0), write(1)], copied, {2: 0, 3: 1})
    assert list(order(dispatch, frozenset([write(1)])))[2:] == list(batched([copy(2)], 1))
    dispatch = Dispatch([write(0)], batched([copy(2)], 1), {2: 0})
    assert list(order(dispatch, frozenset([write(0)]))) == [write(0)]


def test_threads_do_all_units_and_collect_failures() -> None:
    done: list[Unit] = []

    def do(unit: Unit) -> None:
        done.append(unit)
        if unit == write(2):
            raise StorageError("broken")

    dispatch = Dispatch([write(0, 1), write(2), write(3)], [copy(4)], {4: 3})
    run_in_threads(dispatch, do, 3, 1, lambda: None)
    assert done[-1] == copy(4)
    assert set(done) == {write(0, 1), complete(1), write(2), write(3), copy(4)}
    assert dispatch.failures.keys() == {2}


def test_a_borrowed_thread_counts_as_one_under_way() -> None:
    begun: list[Unit] = []
    borrowed, group_written, checked = threading.Event(), threading.Event(), threading.Event()

    def do(unit: Unit) -> None:
        begun.append(unit)
        idle = current_idle_workers()
        if unit == write(0):
            assert wait_until(idle.borrow)
            borrowed.set()
            assert checked.wait(60)
            idle.give_back(1)
        elif unit == write(1, 2):
            assert borrowed.wait(60)
            group_written.set()
        elif unit == check(1):
            time.sleep(0.05)
            assert complete(2) not in begun, "of three threads one does this, one is lent, one has lent it"
            checked.set()

    dispatch = Dispatch([write(0), write(1, 2)], separate_checks=True)
    run_in_threads(dispatch, do, 3, 1, lambda: None)
    assert group_written.is_set()
    assert not dispatch.failures
    assert {check(0), check(1), check(2)} <= set(begun)


def test_nothing_is_lent_while_units_are_waiting() -> None:
    def do(unit: Unit) -> None:
        time.sleep(0.01)
        done.append(unit)
        if current_idle_workers().borrow():
            assert len(done) >= 3
            current_idle_workers().give_back(1)

    done: list[Unit] = []
    dispatch = Dispatch([write(0), write(1), write(2), write(3)])
    run_in_threads(dispatch, do, 2, 1, lambda: None)
    assert len(done) == 4


@pytest.mark.parametrize("end", [KeyError("a bug"), StoppedError("stopped")])
def test_a_bug_or_a_stop_ends_the_threads(end: Exception) -> None:
    stop = threading.Event()

    def do(unit: Unit) -> None:
        if unit == write(1):
            raise end
        if not stop.wait(60):
            raise ConversionError("not stopped")

    with pytest.raises(type(end)):
        run_in_threads(Dispatch([write(0), write(1), write(2)]), do, 2, 1, stop.set)
    assert stop.is_set()

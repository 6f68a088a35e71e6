"""Idle workers are lent up to what is offered, and come back."""

from reshard.core.runtime.idle_workers import IdleWorkers, current_idle_workers, lending


def test_no_more_are_lent_than_are_offered() -> None:
    idle = IdleWorkers()
    assert not idle.borrow()
    idle.offer(2)
    assert [idle.borrow() for _ in range(3)] == [True, True, False]
    idle.give_back(1)
    assert idle.lent == 1
    assert idle.borrow()


def test_a_withdrawn_offer_leaves_those_that_are_lent() -> None:
    idle = IdleWorkers()
    idle.offer(2)
    assert idle.borrow()
    idle.offer(0)
    assert not idle.borrow()
    assert idle.lent == 1
    idle.offer(1)
    assert not idle.borrow(), "the one offered is lent already"


def test_without_a_scheduler_there_are_none() -> None:
    assert not current_idle_workers().borrow()
    with lending(IdleWorkers()) as idle:
        assert current_idle_workers() is idle
    assert current_idle_workers() is not idle

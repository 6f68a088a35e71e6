"""Who hears of the work: the listener of the context, also in other threads."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from reshard.core.runtime.progress import SilentProgress, current_progress, reporting_to


class Listener(SilentProgress):
    """Somebody."""


def test_nobody_listens_unless_asked() -> None:
    progress = current_progress()
    assert isinstance(progress, SilentProgress)
    progress.note("dropped")
    progress.begin("reading", 5)
    progress.advance(5)


def test_listeners_nest() -> None:
    outer, inner = Listener(), Listener()
    with reporting_to(outer):
        with reporting_to(inner):
            assert current_progress() is inner
        assert current_progress() is outer
    assert current_progress() is not outer


def test_the_listener_goes_even_after_an_error() -> None:
    listener = Listener()

    def failing() -> None:
        with reporting_to(listener):
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert current_progress() is not listener


def test_threads_have_the_listener_of_the_context_that_is_carried_to_them() -> None:
    listener = Listener()
    with ThreadPoolExecutor(1) as pool:
        with reporting_to(listener):
            carried = pool.submit(copy_context().run, current_progress)
            bare = pool.submit(current_progress)
        assert carried.result() is listener
        assert bare.result() is not listener

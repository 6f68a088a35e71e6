"""What is tried again, how often, and who hears of it."""

import errno
from collections.abc import Callable

import pytest

from reshard.core.errors import CheckpointError, StoppedError, StorageError
from reshard.core.runtime.retry import WORK, check_not_stopped, stoppable, with_retries

BUSY = StorageError("s3://bucket/x: busy", transient=True)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


class Flaky:
    """Work that fails with these errors before it succeeds, or for ever."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "result"


def silent(_: str) -> None:
    pass


def test_what_works_is_done_once(pauses: list[float]) -> None:
    work = Flaky()
    assert with_retries(work, pytest.fail) == "result"
    assert (work.calls, pauses) == (1, [])


@pytest.mark.parametrize("error", [BUSY, TimeoutError("slow"), ConnectionResetError("reset"), OSError(errno.EBUSY, "")])
def test_what_may_pass_is_tried_again(pauses: list[float], error: Exception) -> None:
    work = Flaky(error, error)
    assert with_retries(work, silent) == "result"
    assert (work.calls, len(pauses)) == (3, 2)


@pytest.mark.parametrize(
    "error",
    [
        StorageError("denied"),
        CheckpointError("damaged"),
        OSError(errno.ENOSPC, "full"),
        KeyError("bug"),
        KeyboardInterrupt(),
    ],
)
def test_what_stays_is_raised_at_once(pauses: list[float], error: BaseException) -> None:
    work = Flaky(error)
    with pytest.raises(type(error)) as caught:
        with_retries(work, pytest.fail)
    assert caught.value is error
    assert (work.calls, pauses) == (1, [])


def test_it_is_given_up_with_the_last_error(pauses: list[float]) -> None:
    errors = [StorageError(f"busy {number}", transient=True) for number in range(WORK.attempts + 1)]
    work = Flaky(*errors)
    with pytest.raises(StorageError, match=f"busy {WORK.attempts - 1}"):
        with_retries(work, silent)
    assert (work.calls, len(pauses)) == (WORK.attempts, WORK.attempts - 1)


def test_a_permanent_error_after_a_transient_one(pauses: list[float]) -> None:
    with pytest.raises(StorageError, match="denied"):
        with_retries(Flaky(BUSY, StorageError("denied")), silent)
    assert len(pauses) == 1


def test_each_repetition_is_told(pauses: list[float]) -> None:
    message: list[str] = []
    with_retries(Flaky(BUSY, BUSY), message.append)
    assert message == [
        f"s3://bucket/x: busy; trying again in {pauses[0]:.1f} s (attempt 2 of {WORK.attempts})",
        f"s3://bucket/x: busy; trying again in {pauses[1]:.1f} s (attempt 3 of {WORK.attempts})",
    ]


@pytest.mark.parametrize(("chance", "want"), [(min, [0.5, 1.0, 2.0]), (max, [1.5, 3.0, 6.0])])
def test_pauses_grow_and_are_not_all_alike(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch, chance: Callable[[float, float], float], want: list[float]
) -> None:
    monkeypatch.setattr("random.uniform", chance)
    with_retries(Flaky(BUSY, BUSY, BUSY), silent)
    assert pauses == want


def test_nothing_is_tried_again_once_all_is_to_stop() -> None:
    with stoppable() as stop:
        work = Flaky(*[BUSY] * 9)

        def stopping(_: str) -> None:
            stop.set()

        with pytest.raises(StorageError, match="busy"):
            with_retries(work, stopping)
        assert work.calls == 1, "the pause ends at once"
        with pytest.raises(StorageError, match="busy"):
            with_retries(work, pytest.fail)
    assert work.calls == 2


def test_a_stop_reaches_the_blocks_inside() -> None:
    with stoppable() as outer, stoppable() as inner:
        outer.set()
        assert inner.is_set()
        with stoppable() as later:
            assert later.is_set()
        with pytest.raises(StoppedError, match="stopped"):
            check_not_stopped()
    check_not_stopped()


def test_the_failure_of_a_block_does_not_stop_the_outer_one() -> None:
    with stoppable() as outer:
        with pytest.raises(KeyError), stoppable():
            raise KeyError
        assert not outer.is_set()

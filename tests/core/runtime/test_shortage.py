"""Out-of-memory errors become one message, whatever raised them."""

import errno

import pytest

from reshard.core.errors import OutOfMemoryError
from reshard.core.runtime.shortage import naming_shortage


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("can't start new thread")],
)
def test_memory_that_ran_out_is_one_message(error: Exception) -> None:
    with (
        pytest.raises(OutOfMemoryError, match="out of memory: the system refused"),
        naming_shortage(),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), RuntimeError("another"), ValueError()])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, naming_shortage():
        raise error
    assert raised.value is error


def test_what_filled_the_memory_is_let_go() -> None:
    class Large:
        alive = 0

        def __init__(self) -> None:
            Large.alive += 1

        def __del__(self) -> None:
            Large.alive -= 1

    def work() -> None:
        large = Large()
        raise MemoryError(str(type(large)))

    with pytest.raises(OutOfMemoryError), naming_shortage():
        work()
    assert Large.alive == 0

"""Recognizes out-of-memory errors of any kind and raises them as one."""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import OutOfMemoryError
from reshard.core.text.options import option

_MESSAGE = (
    "out of memory: the system refused more to this process. Run it on a larger machine, or with fewer "
    f"{option('workers')} or a smaller {option('memory_limit')}"
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error means that memory ran out, including memory for a new thread's stack."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    )


@contextmanager
def naming_shortage() -> Iterator[None]:
    """Raise an OutOfMemoryError in place of any out-of-memory error inside the block."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release_frames(error)
        raise OutOfMemoryError(_MESSAGE) from None


def release_frames(error: BaseException) -> None:
    """Clear the local variables that an error's traceback keeps alive."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        if cause.__cause__ is None and cause.__suppress_context__:
            cause.__context__ = None  # no traceback shows it; its frames' closures would stay alive
        cause = cause.__context__

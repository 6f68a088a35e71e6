"""Whether what is about to appear on a storage is still this run's to write.

Whoever holds a lease that can be lost says so in the context; whatever makes a file appear asks first.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("reshard_claim", default=None)


@contextmanager
def claimed_while(check: Callable[[], None]) -> Iterator[None]:
    """Has `check` called before a file appears; it raises if that must not happen."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_claim() -> None:
    """Makes sure that files may appear.

    Raises:
        TargetError: another run has taken over.
        StorageError: another run may be about to.
    """
    check = _check.get()
    if check is not None:
        check()

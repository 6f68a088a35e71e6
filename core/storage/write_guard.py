"""Guards writes: before a file appears on a storage, checks that the target still belongs to this run.

The holder of a lease that can be lost puts its check into the context; code that makes a file appear calls it first.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

from reshard.core.runtime.context import having

_check: ContextVar[Callable[[], None] | None] = ContextVar("reshard_claim", default=None)


def claimed_while(check: Callable[[], None]) -> AbstractContextManager[Callable[[], None] | None]:
    """Call `check` before each file appears inside the block; it raises if the file must not."""
    return having(_check, check)


def check_claim() -> None:
    """Check that files may appear.

    Raises:
        TargetError: another run has taken over.
        StorageError: another run may be about to take over.
    """
    check = _check.get()
    if check is not None:
        check()

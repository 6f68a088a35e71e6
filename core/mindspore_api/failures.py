"""What MindSpore's callers catch: built-in exceptions, with the messages of this project's own.

What is wrong with an input is a ValueError, as MindSpore documents it, and so is what cannot be read; what cannot be
written is the OSError of its errno.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import InputError, ReshardError, StorageError


@contextmanager
def reading() -> Iterator[None]:
    """Raises ValueError for all that is wrong with, or happens to, what is read."""
    try:
        yield
    except ReshardError as error:
        raise ValueError(str(error)) from error


@contextmanager
def writing() -> Iterator[None]:
    """Raises OSError for what a storage refuses, ValueError for wrong input, RuntimeError for all else."""
    try:
        yield
    except StorageError as error:
        number = getattr(error.__cause__, "errno", None)
        raise OSError(number or errno.EIO, str(error)) from error
    except InputError as error:
        raise ValueError(str(error)) from error
    except ReshardError as error:
        raise RuntimeError(str(error)) from error

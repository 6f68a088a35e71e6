"""What MindSpore's callers catch: built-in exceptions, with the messages of this project's own.

What is wrong with an input is a ValueError, as MindSpore documents it, and so is what cannot be read; what cannot be
written is the OSError of its errno.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import ConversionError, InputError, ReshardError, StorageError


class MissingDirectoryError(ValueError, NotADirectoryError):
    """A path is not a directory: MindSpore raises a ValueError, and documents a NotADirectoryError."""


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
    except ConversionError as error:
        # of a conversion whose ranks failed the cause is what a storage refused for one of them
        refused = error if isinstance(error, StorageError) else error.__cause__
        if not isinstance(refused, StorageError):
            raise RuntimeError(str(error)) from error
        number = getattr(refused.__cause__, "errno", None)
        raise OSError(number or errno.EIO, str(error)) from error
    except InputError as error:
        raise ValueError(str(error)) from error
    except ReshardError as error:
        raise RuntimeError(str(error)) from error

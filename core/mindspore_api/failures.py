"""Translates errors into the built-in exceptions that MindSpore's callers catch; messages stay.

Wrong input, and input that cannot be read, is a ValueError, as MindSpore documents. Output that cannot be written is
the OSError of its errno.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.errors import ConversionError, InputError, ReshardError, StorageError


class MissingDirectoryError(ValueError, NotADirectoryError):
    """A path is not a directory: MindSpore raises a ValueError, and documents a NotADirectoryError."""


@contextmanager
def reading() -> Iterator[None]:
    """Raise ValueError for wrong input and for failures of reading it."""
    try:
        yield
    except ReshardError as error:
        raise ValueError(str(error)) from error


@contextmanager
def writing() -> Iterator[None]:
    """Raise OSError for failures of a storage, ValueError for wrong input, RuntimeError for all else."""
    try:
        yield
    except ConversionError as error:
        # if ranks of a conversion failed, the cause is one rank's error
        refused = error if isinstance(error, StorageError) else error.__cause__
        if not isinstance(refused, StorageError):
            raise RuntimeError(str(error)) from error
        number = getattr(refused.__cause__, "errno", None)
        raise OSError(number or errno.EIO, str(error)) from error
    except InputError as error:
        raise ValueError(str(error)) from error
    except ReshardError as error:
        raise RuntimeError(str(error)) from error

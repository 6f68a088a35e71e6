"""Translates errors into the built-in exceptions that MindSpore's callers catch; messages stay.

Options that a message names become the parameters of MindSpore's functions; those that these lack, `reshard.convert`'s.

Wrong input, and input that cannot be read, is a ValueError, as MindSpore documents. Output that cannot be written is
the OSError of its errno.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from reshard.core.errors import ConversionError, InputError, ReshardError, StorageError
from reshard.core.text.options import Option, keyword, spelled_by

_PARAMETERS = {
    "source_strategy": "src_strategy_file",
    "target_strategy": "dst_strategy_file",
    "decrypt_key": "dec_key",
    "decrypt_mode": "dec_mode",
}


class MissingDirectoryError(ValueError, NotADirectoryError):
    """A path is not a directory: MindSpore raises a ValueError, and documents a NotADirectoryError."""


@contextmanager
def reading() -> Iterator[None]:
    """Raise ValueError for wrong input and for failures of reading it."""
    try:
        yield
    except ReshardError as error:
        raise ValueError(_message(error)) from error


@contextmanager
def writing() -> Iterator[None]:
    """Raise OSError for failures of a storage, ValueError for wrong input, RuntimeError for all else."""
    try:
        yield
    except ConversionError as error:
        # if ranks of a conversion failed, the cause is one rank's error
        refused = error if isinstance(error, StorageError) else error.__cause__
        if not isinstance(refused, StorageError):
            raise RuntimeError(_message(error)) from error
        number = getattr(refused.__cause__, "errno", None)
        raise OSError(number or errno.EIO, _message(error)) from error
    except InputError as error:
        raise ValueError(_message(error)) from error
    except ReshardError as error:
        raise RuntimeError(_message(error)) from error


def _message(error: ReshardError) -> str:
    with spelled_by(_parameter):
        return str(error)


def _parameter(option: Option) -> str:
    """Spell an option as a parameter of MindSpore's functions if they have it, else as `reshard.convert`'s."""
    if option.name in _PARAMETERS:
        return keyword(replace(option, name=_PARAMETERS[option.name]))
    return f"{keyword(option)} of reshard.convert"

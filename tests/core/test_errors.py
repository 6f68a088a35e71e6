"""The errors: their tree, that they survive a process, and what may go away by itself."""

import copy
import errno
import inspect
import pickle
import re

import pytest

import reshard.core.errors
from reshard.core.errors import (
    CheckpointError,
    ConversionError,
    IndexingError,
    InputError,
    PlanError,
    ReshardError,
    StorageError,
    UnknownNameError,
    UnusableStorageError,
    is_transient,
    raise_problems,
)

CLASSES = {
    name: thing
    for name, thing in inspect.getmembers(reshard.core.errors, inspect.isclass)
    if thing.__module__ == "reshard.core.errors"
}
PARENTS = {
    "ReshardError": "Exception",
    "InputError": "ReshardError",
    "StrategyError": "InputError",
    "LayoutError": "InputError",
    "CheckpointError": "InputError",
    "CatalogError": "InputError",
    "PlanError": "InputError",
    "SignatureError": "InputError",
    "CastError": "InputError",
    "LimitError": "InputError",
    "UnknownNameError": "InputError",
    "IndexingError": "InputError",
    "TargetError": "InputError",
    "TargetBusyError": "TargetError",
    "VerificationError": "ReshardError",
    "DifferenceError": "VerificationError",
    "ConversionError": "ReshardError",
    "StoppedError": "ConversionError",
    "OutOfMemoryError": "ConversionError",
    "StorageError": "ConversionError",
    "UnusableStorageError": "StorageError",
}


def test_the_public_tree() -> None:
    assert {name: kind.__mro__[1].__name__ for name, kind in CLASSES.items()} == PARENTS


def test_the_drawing_shows_the_tree() -> None:
    drawn: dict[str, str] = {}
    above = ["Exception"]
    for line in (reshard.core.errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}([ │├└─]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4 + 1
            drawn[found[2]] = above[depth - 1]
            above[depth:] = [found[2]]
    assert drawn == PARENTS


@pytest.mark.parametrize("kind", CLASSES.values())
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_survive_a_process(kind: type[ReshardError], again) -> None:
    error = again(kind("rank_3: what is wrong"))
    assert type(error) is kind
    assert str(error) == "rank_3: what is wrong"
    assert isinstance(error, Exception)


def test_a_storage_that_cannot_be_used_is_a_wrong_input() -> None:
    assert issubclass(UnusableStorageError, InputError)
    assert not is_transient(UnusableStorageError("s3://b/x: there is no bucket 'b'"))


@pytest.mark.parametrize(("kind", "builtin"), [(UnknownNameError, KeyError), (IndexingError, IndexError)])
def test_errors_of_an_open_checkpoint_are_those_of_a_dict_and_an_array(
    kind: type[ReshardError], builtin: type[Exception]
) -> None:
    error = kind("m: there is no 'w'")
    assert isinstance(error, InputError)
    assert isinstance(error, builtin)
    assert str(error) == "m: there is no 'w'"  # a KeyError would quote it


@pytest.mark.parametrize("transient", [True, False])
def test_whether_it_may_go_away_survives_a_process(transient: bool) -> None:
    error = pickle.loads(pickle.dumps(StorageError("s3://b/x: busy", transient)))
    assert (str(error), error.transient, is_transient(error)) == ("s3://b/x: busy", transient, transient)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (StorageError("said to be", transient=True), True),
        (StorageError("not said to be"), False),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (ConnectionRefusedError(), True),
        (BrokenPipeError(), True),
        (BlockingIOError(errno.EAGAIN, ""), True),
        (InterruptedError(errno.EINTR, ""), True),
        (OSError(errno.EBUSY, "503 SlowDown, as s3fs puts it"), True),
        (OSError(errno.EIO, ""), True),
        (OSError(errno.ESTALE, ""), True),
        (OSError(errno.ENETUNREACH, ""), True),
        (OSError(errno.EHOSTUNREACH, ""), True),
        (OSError(errno.ETIMEDOUT, ""), True),
        (FileNotFoundError(errno.ENOENT, ""), False),
        (PermissionError(errno.EACCES, ""), False),
        (PermissionError(errno.EPERM, ""), False),
        (OSError(errno.ENOSPC, ""), False),
        (OSError(errno.EDQUOT, ""), False),
        (OSError(errno.EROFS, ""), False),
        (OSError(errno.EFBIG, ""), False),
        (OSError("no number"), False),
        (InputError("wrong"), False),
        (CheckpointError("damaged"), False),
        (ConversionError("failed"), False),
        (ValueError("bug"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_may_go_away(error: BaseException, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize("kind", [InputError, StorageError])
def test_a_message_moves_no_cursor_and_repeats_no_secret_whatever_is_in_it(kind: type[ReshardError]) -> None:
    error = kind("a\x1b[2J\r\udc80: https://h/x?token=hunter2\n  - s3://AK:hunter2@b")
    assert str(error) == "a\\x1b[2J\\r\\udc80: https://h/x?token=…\n  - s3://…@b"


def test_a_message_can_be_stored_whatever_names_are_in_it() -> None:
    """Prefect's server, and JSON, take UTF-8 alone; a file's name may be any bytes."""
    for kind in (InputError, StorageError):
        error = pickle.loads(pickle.dumps(kind("/src/bad\udcff: cannot be read")))
        assert str(error) == "/src/bad\\udcff: cannot be read"
        assert repr(error).encode()


def test_one_error_lists_all_problems() -> None:
    raise_problems(PlanError, "no problem", [])
    with pytest.raises(PlanError) as caught:
        raise_problems(PlanError, "two problems", ["one", "two"])
    assert str(caught.value) == "two problems\n  - one\n  - two"
    with pytest.raises(PlanError, match=r"\n  - 19\n  - and 5 more$"):
        raise_problems(PlanError, "many", [str(number) for number in range(25)])

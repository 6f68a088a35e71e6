"""Errors of storages are named, classified and worded, and repeat no secrets."""

import errno
from traceback import format_exception
from typing import Any

import pytest
import requests
from fsspec.exceptions import FSTimeoutError

from reshard.core.errors import CheckpointError, StorageError
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.store import ChangedFileError
from reshard.core.storage.urls import Location, parse_url

MEMORY = parse_url("memory://models/run/file")


def failure(error: BaseException, location: Location = MEMORY, action: str = "read it") -> StorageError:
    with pytest.raises(StorageError) as caught, mapped_errors(location, action):
        raise error
    assert str(caught.value).startswith(f"{location}: cannot {action}: ")
    return caught.value


# ---- of any storage ----


@pytest.mark.parametrize("url", ["/data/file", "memory://models/file"])
def test_a_file_that_changed_may_be_read_again(url: str) -> None:
    """Copies, and the indexes of archives, ended with a bare traceback."""
    shown = failure(ChangedFileError(), parse_url(url), "copy it")
    assert str(shown).endswith("cannot copy it: it changed while it was being read")
    assert shown.transient


LOWER_ERRORS: list[tuple[Any, str, bool]] = [
    (FileNotFoundError(errno.ENOENT, "whatever"), "no such file or directory", False),
    (PermissionError(errno.EACCES, "whatever"), "permission denied", False),
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", False),
    (OSError(errno.EROFS, "Read-only file system"), "Read-only file system", False),
    (OSError(errno.ENAMETOOLONG, "File name too long"), "File name too long", False),
    (OSError("said without a number"), "said without a number", False),
    (OSError(), "OSError", False),
    (OSError(errno.EBUSY, "Please reduce your request rate"), "Please reduce your request rate", True),
    (OSError(errno.EREMOTEIO, "We encountered an internal error"), "We encountered an internal error", True),
    (OSError(errno.EIO, "Input/output error"), "Input/output error", True),
    (OSError(errno.ESTALE, "Stale file handle"), "Stale file handle", True),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "Connection reset by peer", True),
    (ConnectionError("closed"), "closed", True),
    (TimeoutError(), "no answer in time", True),
    (FSTimeoutError(), "no answer in time", True),
    (requests.ConnectionError("refused"), "refused", True),
    (requests.ReadTimeout("no answer"), "no answer", True),
    (requests.exceptions.ChunkedEncodingError("cut short"), "cut short", True),
    (requests.exceptions.InvalidHeader("no header"), "no header", False),
]


@pytest.mark.parametrize(("error", "reason", "transient"), LOWER_ERRORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("url", ["/data/file", "memory://models/file"])
def test_what_a_storage_raises_is_named_and_judged(url: str, error: Exception, reason: str, transient: bool) -> None:
    shown = failure(error, parse_url(url), "read 5 bytes at 7")
    assert reason in str(shown)
    assert shown.transient is transient


@pytest.mark.parametrize(("status", "transient"), [(503, True), (500, True), (429, True), (404, False), (403, False)])
def test_an_http_servers_refusal_is_judged_by_its_status_and_its_url_scrubbed(status: int, transient: bool) -> None:
    answer = requests.Response()
    answer.status_code, answer.url = status, "https://host/x?sig=0123abcd"
    with pytest.raises(requests.HTTPError) as caught:
        answer.raise_for_status()
    shown = failure(caught.value)
    assert str(status) in str(shown)
    assert "0123abcd" not in str(shown)
    assert shown.transient is transient


@pytest.mark.parametrize(
    "error", [ValueError("bug"), KeyError("bug"), CheckpointError("x"), StorageError("x"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("location", [MEMORY, parse_url("/f")], ids=str)
def test_what_no_storage_raises_passes(error: BaseException, location: Location) -> None:
    with pytest.raises(type(error)) as caught, mapped_errors(location, "read it"):
        raise error
    assert caught.value is error


# ---- what tracebacks show ----


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), FileNotFoundError(errno.ENOENT, "no", "f")])
def test_an_error_of_the_system_is_shown_as_the_cause(error: OSError) -> None:
    assert failure(error).__cause__ is error


def test_a_missing_file_is_shown_without_the_words_of_a_client() -> None:
    shown = failure(FileNotFoundError("Object not found: <Token-0>hunter2</Token-0>"))
    assert isinstance(shown.__cause__, FileNotFoundError)
    assert shown.__cause__.errno == errno.ENOENT
    assert "hunter2" not in "".join(format_exception(shown))


def test_an_error_of_a_client_is_not_shown() -> None:
    shown = failure(requests.exceptions.InvalidURL("https://host/?sig=hunter2"))
    assert shown.__cause__ is None
    assert "Traceback" not in "".join(format_exception(shown)).partition("\n")[2]

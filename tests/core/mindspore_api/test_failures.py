"""The built-in exceptions that errors become."""

import errno
import re

import pytest

from reshard.core.errors import CatalogError, ConversionError, ReshardError, StorageError, VerificationError
from reshard.core.mindspore_api.failures import MissingDirectoryError, reading, writing
from reshard.core.text.options import option


def storage_error(number: int | None) -> StorageError:
    error = StorageError("disk: cannot be written")
    error.__cause__ = OSError(number, "why") if number else None
    return error


@pytest.mark.parametrize("error", [CatalogError("files are missing"), storage_error(errno.EACCES)])
def test_all_failures_of_reading_are_value_errors(error: ReshardError) -> None:
    with pytest.raises(ValueError, match=str(error)) as caught, reading():
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, errno.ENOSPC), (None, errno.EIO)])
def test_a_failure_of_the_storage_keeps_its_errno(number: int | None, raised: int) -> None:
    with pytest.raises(OSError, match="disk: cannot be written") as caught, writing():
        raise storage_error(number)
    assert caught.value.errno == raised


def test_the_storages_failure_of_one_rank_is_the_errno_of_all() -> None:
    with pytest.raises(OSError, match="2 ranks failed") as caught, writing():
        raise ConversionError("2 ranks failed") from storage_error(errno.ENOSPC)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CatalogError("wrong"), ValueError),
        (VerificationError("wrong"), RuntimeError),
        (ConversionError("wrong"), RuntimeError),
    ],
)
def test_other_failures_of_writing(error: ReshardError, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="wrong"), writing():
        raise error


@pytest.mark.parametrize("translated", [reading, writing])
def test_advice_names_parameters_that_the_functions_have(translated) -> None:
    message = f"name it with {option('source_strategy')}, or leave it out: {option('exclude', ['w'])}"
    shown = "name it with 'src_strategy_file', or leave it out: exclude=['w'] of reshard.convert"
    with pytest.raises(ValueError, match=re.escape(shown)), translated():
        raise CatalogError(message)


def test_a_missing_directory_is_what_mindspore_raises_and_what_it_documents() -> None:
    assert issubclass(MissingDirectoryError, ValueError)
    assert issubclass(MissingDirectoryError, NotADirectoryError)

"""Files of keys or certificates that an option names."""

from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.signing.pem import MAX_PEM_BYTES
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import parse_url
from reshard.core.text.options import option


def read_pem(name: str, url: str) -> bytes:
    """Read the file that the option `name` names.

    Raises:
        InputError: there is none, it is not a file, or it is too large.
        StorageError: the storage does not answer.
    """
    try:
        return read_small_file(parse_url(url), MAX_PEM_BYTES)
    except StorageError as error:
        if is_transient(error):
            raise
        raise InputError(f"{option(name, url)}: {error.marked}") from error

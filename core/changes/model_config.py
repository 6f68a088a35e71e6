"""`config.json` of a Hugging Face directory: which model the weights beside it are of."""

from typing import Any

from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.runtime.metadata import load_json
from reshard.core.storage.links import check_links
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

CONFIG_NAME = "config.json"
_MAX_BYTES = 256 << 20


def read_config(directory: Location) -> dict[str, Any]:
    """Read `config.json` of a directory.

    Raises:
        InputError: there is none, it is not a JSON object, or it is a link that leads out of the directory.
        StorageError: a transient failure.
    """
    location = directory.child(CONFIG_NAME)
    check_links(directory, [location])
    try:
        data = read_small_file(location, _MAX_BYTES)
    except StorageError as error:
        if is_transient(error):
            raise
        raise InputError(error.marked) from error
    return parse_config(data, location)


def parse_config(data: bytes, location: Location) -> dict[str, Any]:
    """Parse `config.json`; an InputError if it is not a JSON object."""
    try:
        config = load_json(data, location)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: is not readable JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{location}: is not a model's configuration: it must be a JSON object")
    return config

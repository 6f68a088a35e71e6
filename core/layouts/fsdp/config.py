"""`fsdp_config.json`, which rank 0 writes beside its own files; it may be missing."""

from collections.abc import Collection

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.layouts.fsdp.names import CONFIG_NAME
from reshard.core.runtime.metadata import load_json
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

_MAX_BYTES = 1 << 20
_WORLD = "world_size"


def check_config(directory: Location, names: Collection[str], world: int) -> None:
    """Refuse a configuration of another number of ranks than `world`, which the files' names say.

    Raises:
        CatalogError: it is damaged, or of another number.
        StorageError: it cannot be read.
    """
    if CONFIG_NAME not in names:
        return
    location = directory.child(CONFIG_NAME)
    try:
        config = load_json(read_small_file(location, _MAX_BYTES), location)
    except (CheckpointError, ValueError, RecursionError) as error:
        raise CatalogError(f"{location}: is damaged ({error}): move it away if the ranks' files are whole") from error
    said = config.get(_WORLD) if isinstance(config, dict) else None
    if type(said) is not int or said != world:
        raise CatalogError(
            f"{location}: its {_WORLD} is {str(said)[:20]}, the ranks' files are of {world} by their names: they "
            "are of two trainings, or were renamed"
        )

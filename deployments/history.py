"""The history of targets, or of a Prefect server: for the command and for programs."""

from collections.abc import Sequence

from reshard.core.conversion.history import ALL_ENTRIES, History, HistoryFilter, make_history
from reshard.core.conversion.target_history import target_history
from reshard.core.errors import InputError
from reshard.core.storage.named_options import named_storages
from reshard.core.text.options import option
from reshard.flows import server_setting
from reshard.flows.blocks import resolvers_for


def history_of_places(
    places: Sequence[str], wanted: HistoryFilter = ALL_ENTRIES, limit: int = 0, *, storage: str = ""
) -> History:
    """Read the conversions into targets, or into the targets in directories; a `limit` of 0 is none.

    Raises:
        InputError: nothing is at one of the places, or too many directories.
        StorageError: the storage does not answer.
    """
    with named_storages([(place, storage) for place in places], resolvers_for(storage)):
        found = [entry for place in dict.fromkeys(places) for entry in target_history(place, wanted)]
    return make_history(found, limit or None)


def history_of_server(url: str = "", wanted: HistoryFilter = ALL_ENTRIES, limit: int = 0) -> History:
    """Read the conversions of the Prefect server at `url`, or of the one that is configured; a `limit` of 0 is none.

    Raises:
        InputError: no server is configured, or its URL is none.
        ConversionError: the server does not answer.
    """
    if not url and server_setting.configured_server() is None:
        raise InputError(
            "no Prefect server is configured: set PREFECT_API_URL=http://HOST:4200/api, name one with "
            f"{option('server')}, or name a target or a directory of targets"
        )
    # importing Prefect takes a second
    from reshard.deployments.described import configured_server
    from reshard.tasks.history import server_history

    with configured_server(url) as client:
        return server_history(client, wanted, limit or None)

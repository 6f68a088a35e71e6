"""The history of targets, or of a Prefect server: for the command and for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reshard.core.conversion.history import (
    ALL_ENTRIES,
    ConversionState,
    History,
    HistoryEntry,
    HistoryFilter,
    make_history,
)
from reshard.core.conversion.lineage import Lineage, lineage_of
from reshard.core.conversion.target_history import target_history
from reshard.core.errors import InputError
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.urls import parse_url
from reshard.core.text.options import option
from reshard.flows import server_setting
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.signing.verifier import Verifier


def history_of_places(
    places: Sequence[str],
    wanted: HistoryFilter = ALL_ENTRIES,
    limit: int = 0,
    *,
    storage: str = "",
    signed_by: str = "",
) -> History:
    """Read the conversions into targets, or into the targets in directories; a `limit` of 0 is none.

    The only conversion of a single place comes with the way from training to it. With `signed_by`, a PEM file of
    public keys or certificates, there has to be one, with statements, whose signatures are checked.

    Raises:
        InputError: nothing is at one of the places, or too many directories; or there is no way whose signatures could
            be checked.
        StorageError: the storage does not answer.
    """
    with named_storages([(place, storage) for place in places], resolvers_for(storage)):
        verifier = _verifier(signed_by) if signed_by else None
        found = [entry for place in dict.fromkeys(places) for entry in target_history(place, wanted)]
        lineage = _lineage(found, verifier) if len(places) == 1 else None
    if signed_by and lineage is None:
        raise InputError(
            f"{option('signed_by', signed_by)}: needs a single finished conversion that has statements, which "
            f"{option('sha256', 'target')} makes"
        )
    return make_history(found, limit or None).model_copy(update={"lineage": lineage})


def _verifier(signed_by: str) -> "Verifier":
    from reshard.core.custody.checking import read_verifier  # with cryptography

    return read_verifier(signed_by, resolvers_for(signed_by))


def _lineage(entries: Sequence[HistoryEntry], verifier: "Verifier | None") -> Lineage | None:
    finished = [entry for entry in entries if entry.state is ConversionState.COMMITTED]
    if len(entries) != 1 or not finished or finished[0].target is None:
        return None
    return lineage_of(parse_url(finished[0].target), verifier)


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

"""A look at a target: what is there before a run changes anything.

Where each look at a file is a request, everything is listed once, and only files that are there are read.
"""

from collections.abc import Callable, Collection

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import find_files
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY, is_built_beside, list_names
from reshard.core.storage.transfers import submitted
from reshard.core.storage.urls import Location
from reshard.core.target.workspace import IDENTITY_NAME, LEASES_DIRECTORY, read_identity


class Look(Record):
    """A target's state at the time of a look.

    Attributes:
        names: names at the target, without the state directory of one built in its place.
        identity: of the workspace's plan, as `read_identity` returns it.
        manifest: of a target built in its place; of another it is read when it is needed.
        has_state: True unless it is built in its place, without a state directory.
        leftovers: state files of one built in its place, without leases, listed before identity and manifest were read.
    """

    names: Collection[str]
    identity: str | None
    manifest: Manifest | None = None
    has_state: bool = True
    leftovers: tuple[Location, ...] = ()


def look_at(final: Location, state: Location, read_manifest: Callable[[], Manifest | None]) -> Look:
    """Look at a target, and at the `state` directory of its workspace; `read_manifest` reads the target's manifest."""
    if is_built_beside(final):
        return Look(list_names(final), read_identity(state))
    names = set(list_names(final))
    # identity and manifest are read after they were listed: what another run of this plan writes meanwhile is not a
    # leftover
    found = state_files(state) if STATE_DIRECTORY in names else ()
    there = {file.name for file in found if file.parent.path == state.path}
    manifest = submitted(read_manifest) if MANIFEST_NAME in there else None
    identity = read_identity(state) if IDENTITY_NAME in there else None
    return Look(
        names - {STATE_DIRECTORY},
        identity,
        manifest.result() if manifest else None,
        has_state=STATE_DIRECTORY in names,
        leftovers=found,
    )


def state_files(state: Location) -> tuple[Location, ...]:
    """Return the files in a state directory, without leases."""
    leases = state.child(LEASES_DIRECTORY).path
    return tuple(file for file in find_files(state) if file.parent.path != leases)

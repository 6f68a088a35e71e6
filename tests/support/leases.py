"""Leases taken and looked for in tests."""

from reshard.core.errors import StorageError
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.listing import find_entries
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim

DEAD_AFTER_SECONDS = 0.5
"""A remote lease that is not renewed is dead after so long, where the fixture `quickly_dead` is used."""


def leases_in(directory: Location) -> list[str]:
    return [entry.path for entry in find_entries(directory).values() if entry.name.endswith(".json")]


def take(directory: Location, *ranks: int) -> None:
    with held_lease(directory, new_holder(ranks)):
        pass


def doubted() -> StorageError | None:
    """The doubt about this run's lease, if there is one."""
    try:
        check_claim()
    except StorageError as error:
        return error
    return None

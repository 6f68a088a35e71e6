"""Leases: which run works on which ranks of a target, so that two runs never do the same, nor different things.

A lease is a small file in a lease directory that names its holder. It is alive while its holder keeps it locked
(`local_lease`) or rewrites it (`remote_lease`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from reshard.core.runtime.context import having
from reshard.core.runtime.records import Record
from reshard.core.storage.leases.lease_holder import LeaseHolder
from reshard.core.storage.leases.local_lease import has_locks, hold_local, living_local
from reshard.core.storage.leases.remote_lease import hold_remote, living_remote
from reshard.core.storage.urls import Location


class LeaseName(Record):
    """The name by which other processes find a lease.

    Attributes:
        directory: URL of the lease directory.
        run: the run that holds the lease.
    """

    directory: str
    run: str


_current: ContextVar[LeaseName | None] = ContextVar("reshard_lease", default=None)


@contextmanager
def held_lease(directory: Location, holder: LeaseHolder, *, alone: bool = False) -> Iterator[None]:
    """Hold a lease in a lease directory while the block runs.

    Args:
        directory: the lease directory.
        holder: the content of the lease.
        alone: no lease was there a moment ago, so that an object store need not be asked for them first.

    Raises:
        TargetBusyError: a living run holds one of the ranks, or carries out another plan; the message names it.
        StorageError: the directory cannot be read or written.
    """
    held = hold_local(directory, holder) if has_locks(directory) else hold_remote(directory, holder, alone=alone)
    with held, having(_current, LeaseName(str(directory), holder.run)):
        yield


def current_lease() -> LeaseName | None:
    """The lease held in this context, hence by this process; None without one."""
    return _current.get()


def living_holders(directory: Location, holder: LeaseHolder) -> list[LeaseHolder]:
    """Other live holders in a lease directory, for any ranks: at least one, if there are any.

    Call it while `exclusive`.
    """
    if not has_locks(directory):
        return living_remote(directory, holder.run)
    return [other for other in living_local(directory) if other.run != holder.run]

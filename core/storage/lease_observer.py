"""Who holds leases, as far as it can be seen without taking part: nothing is made, and local leases are left there."""

import fcntl
import os
from contextlib import suppress

from reshard.core.runtime.local_files import open_regular
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.lease import LARGEST_LEASE_BYTES, LeaseHolder, living_holders, new_holder, parse_holder
from reshard.core.storage.urls import Location


def seen_holders(directory: Location) -> list[LeaseHolder]:
    """Living runs that hold a lease in a directory of leases; who takes one in this moment may not be seen.

    On an object store that takes some seconds if there are any leases, and removes those of the dead.

    Raises:
        TargetError: a lease cannot be understood.
        StorageError: they cannot be read.
    """
    if not directory.is_local:
        return living_holders(directory, new_holder(()))
    with mapped_errors(directory, "look at the leases"):
        try:
            names = sorted(os.listdir(directory.path))
        except FileNotFoundError:
            return []
        found = [_seen_local(os.path.join(directory.path, name)) for name in names if name.endswith(".json")]
    return [holder for holder in found if holder is not None]


def _seen_local(path: str) -> LeaseHolder | None:
    # it may be given back, or moved with its directory, at any moment
    with suppress(FileNotFoundError), open(open_regular(path), "rb") as file:
        text = file.read(LARGEST_LEASE_BYTES)
        if not text:
            return None  # about to be locked, which looking must not hinder
        try:
            # shared: who else looks is no holder
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return parse_holder(text, path)
    return None

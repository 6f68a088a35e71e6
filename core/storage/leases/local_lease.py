"""Leases on a local (or mounted) file system: files that their holders keep locked with flock.

The kernel releases the lock when the process dies, however it dies, so a lease that can be locked is dead.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO

from reshard.core.runtime.local_files import open_regular
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.leases.lease_holder import MAX_LEASE_BYTES, LeaseHolder, parse_holder
from reshard.core.storage.urls import Location

GATE_NAME = ".gate"
"""Name of a file in a lease directory, locked for steps that must not interleave."""
_MAX_LOCK_ATTEMPTS = 3
_RETRY_SECONDS = 0.02
_MAX_GATE_ATTEMPTS = 100
"""Other runs do not move a directory away that often just between its creation and the opening of a file in it."""


def has_locks(directory: Location) -> bool:
    """True if runs can lock files in a directory."""
    return directory.store.has_paths


@contextmanager
def hold_local(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    """Hold a local lease while the block runs."""
    path = os.path.join(directory.path, f"{holder.run}.json")
    with ExitStack() as stack:
        with exclusive(directory):
            holder.refuse_rivals(living_local(directory))
            with mapped_errors(directory, "take a lease"):
                file = stack.enter_context(_closing(directory, open(path, "xb", buffering=0)))
                # the directory may be renamed with the target: the lock is on the file, its name is only tidied up
                stack.callback(_give_back, directory, path)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(holder.dump())
        yield


@contextmanager
def exclusive(directory: Location) -> Iterator[None]:
    """Run the block in one process at a time; without effect on object stores, which have no locks."""
    if not has_locks(directory):
        yield
        return
    path = os.path.join(directory.path, GATE_NAME)
    while True:
        with mapped_errors(directory, "lock it"):
            gate = _open_gate(path)
        with _closing(directory, gate):
            with mapped_errors(directory, "lock it"):
                fcntl.flock(gate, fcntl.LOCK_EX)
                # its last owner may have renamed or removed the directory: then this gate guards nothing
                is_current = _is_at(gate, path)
            if is_current:
                yield
                return


def is_entered(directory: Location) -> bool:
    """True if a run is in the `exclusive` block of a local directory; nothing is created or removed."""
    path = os.path.join(directory.path, GATE_NAME)
    with (
        mapped_errors(directory, "look at its lock"),
        suppress(FileNotFoundError),
        open(open_regular(path), "rb") as gate,
    ):
        try:
            fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove_lease_directory(directory: Location, root: Location) -> None:
    """Remove a local directory of leases that are all given back, and then-empty directories above it, up to `root`.

    Call it while `exclusive`. A run that arrives concurrently creates them again, or keeps those that still exist.
    """
    path = directory.path
    with mapped_errors(directory, "remove it"):
        try:
            os.unlink(os.path.join(path, GATE_NAME))
            os.rmdir(path)
            while path != root.path:
                path = os.path.dirname(path)
                os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def living_local(directory: Location) -> list[LeaseHolder]:
    """Holders of living local leases; dead leases are removed."""
    with mapped_errors(directory, "read the leases"):
        paths = [os.path.join(directory.path, name) for name in sorted(os.listdir(directory.path))]
        found = [_living_holder(path) for path in paths if path.endswith(".json")]
    return [holder for holder in found if holder is not None]


def _open_gate(path: str) -> BinaryIO:
    for _ in range(_MAX_GATE_ATTEMPTS):
        # another run may rename or remove the directory at any moment
        with suppress(FileNotFoundError, FileExistsError):
            return _create_gate(path)
    return _create_gate(path)


def _create_gate(path: str) -> BinaryIO:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW), "ab")


@contextmanager
def _closing(directory: Location, file: BinaryIO) -> Iterator[BinaryIO]:
    try:
        yield file
    finally:
        with mapped_errors(directory, "close a file in it"):
            file.close()


def _is_at(file: BinaryIO, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def _give_back(directory: Location, path: str) -> None:
    with mapped_errors(directory, "give back a lease"), suppress(FileNotFoundError):
        os.unlink(path)


def _living_holder(path: str) -> LeaseHolder | None:
    """Read a lease, or remove it if it is dead."""
    # it may be given back at any moment
    with suppress(FileNotFoundError), open(open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "rb+") as file:
        if not _lock(file):
            return parse_holder(file.read(MAX_LEASE_BYTES), path)
        os.unlink(path)
    return None


def _lock(file: BinaryIO) -> bool:
    """Lock a dead lease; False if it is alive."""
    for attempt in range(_MAX_LOCK_ATTEMPTS):
        if attempt:  # observers lock a dead lease, too, for some microseconds
            time.sleep(_RETRY_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False

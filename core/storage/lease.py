"""Leases: who is working on which ranks of a target, so that two runs never do the same.

A lease is a small file naming its holder. On a local (or mounted) file system the holder keeps it locked with flock:
the kernel lets go when the process dies, however it dies, so a lease that can be locked is a dead one. Object stores
have no locks: there the holder rewrites its lease every few seconds, and a lease that stays the same while being
watched for longer than that is a dead one. Neither rule needs the holder's process id to mean anything here, nor clocks
that agree.
"""

import fcntl
import getpass
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from core.errors import StorageError, TargetError
from core.storage.files import mapped_errors, read_small_file, write_bytes
from core.storage.urls import Location

RENEWAL_SECONDS = 5.0
_DEAD_AFTER_SECONDS = 4 * RENEWAL_SECONDS
_LARGEST_LEASE_BYTES = 2**20


@dataclass(frozen=True)
class LeaseHolder:
    """Who holds a lease, and for which ranks."""

    run: str
    host: str
    user: str
    process: int
    started: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"run {self.run} of {self.user} on {self.host} (process {self.process}, since {self.started})"


def new_holder(ranks: Sequence[int]) -> LeaseHolder:
    """A lease holder for this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run under ids that have no name
        user = str(os.getuid())
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return LeaseHolder(uuid.uuid4().hex[:8], socket.gethostname(), user, os.getpid(), started, tuple(ranks))


@contextmanager
def held_lease(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    """Holds a lease in a directory of leases while the block runs.

    Raises:
        TargetError: a living run holds one of the ranks; the message names it.
        StorageError: the directory cannot be read or written.
    """
    hold = _local_lease if directory.is_local else _remote_lease
    with hold(directory, holder):
        yield


def living_holders(directory: Location, holder: LeaseHolder) -> list[LeaseHolder]:
    """Other runs that hold a lease in a directory of leases, for whatever ranks."""
    if not directory.is_local:
        return [other for other, _ in _read_leases(directory) if other.run != holder.run]
    with exclusive(directory):
        return [other for other in _living_local(directory) if other.run != holder.run]


@contextmanager
def _local_lease(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    path = os.path.join(directory.path, f"{holder.run}.json")
    with exclusive(directory):
        _refuse_overlap(holder, _living_local(directory))
        with mapped_errors(directory, "take a lease"):
            file = open(path, "w+", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        json.dump(asdict(holder), file)
        file.flush()
    try:
        yield
    finally:
        # the directory may have been renamed with the target: what is locked is the file, the name is only tidied
        if os.path.exists(path):
            os.unlink(path)
        file.close()


@contextmanager
def exclusive(directory: Location) -> Iterator[None]:
    """One process at a time, for steps that must not be interleaved; object stores have nothing for it."""
    if not directory.is_local:
        yield
        return
    with mapped_errors(directory, "lock it"):
        os.makedirs(directory.path, exist_ok=True)
        gate = open(os.path.join(directory.path, ".gate"), "a", encoding="utf-8")
    with gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


def _living_local(directory: Location) -> Iterator[LeaseHolder]:
    for name in sorted(os.listdir(directory.path)):
        if not name.endswith(".json"):
            continue
        path = os.path.join(directory.path, name)
        with open(path, "r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield _parse_holder(file.read(), path)
            else:
                os.unlink(path)


@contextmanager
def _remote_lease(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    location = directory.child(f"{holder.run}.json")
    _refuse_overlap(holder, _living_remote(directory, holder))
    write_bytes(location, _renewed(holder, 0))
    # two that started at the same moment have both written by now: both see the other and both refuse
    stop = threading.Event()
    renewal = threading.Thread(target=_renew, args=(location, holder, stop), daemon=True, name="reshard-lease")
    try:
        _refuse_overlap(holder, (other for other, _ in _read_leases(directory) if other.run != holder.run))
        renewal.start()
        yield
    finally:
        stop.set()
        if renewal.ident is not None:
            renewal.join()
        with mapped_errors(location, "give the lease back"):
            if location.fs.exists(location.path):
                location.fs.rm_file(location.path)


def _renew(location: Location, holder: LeaseHolder, stop: threading.Event) -> None:
    count = 0
    while not stop.wait(RENEWAL_SECONDS):
        count += 1
        try:
            write_bytes(location, _renewed(holder, count))
        except StorageError:
            continue  # the next renewal may succeed; if none does, others rightly take this run for dead


def _renewed(holder: LeaseHolder, count: int) -> bytes:
    return json.dumps(asdict(holder) | {"renewal": count}).encode()


def _living_remote(directory: Location, holder: LeaseHolder) -> Iterator[LeaseHolder]:
    """Leases of other runs that overlap and are renewed while being watched; dead ones are removed."""
    watched = {other.run: text for other, text in _read_leases(directory) if set(other.ranks) & set(holder.ranks)}
    deadline = time.monotonic() + _DEAD_AFTER_SECONDS
    while watched and time.monotonic() < deadline:
        time.sleep(RENEWAL_SECONDS / 5)
        now = {other.run: (other, text) for other, text in _read_leases(directory)}
        watched = {run: text for run, text in watched.items() if run in now}
        renewed = [now[run][0] for run, text in watched.items() if now[run][1] != text]
        if renewed:
            yield from renewed
            return
    for run in watched:
        directory.fs.rm_file(directory.child(f"{run}.json").path)


def _read_leases(directory: Location) -> list[tuple[LeaseHolder, str]]:
    with mapped_errors(directory, "list the leases"):
        if not directory.fs.exists(directory.path):
            return []
        directory.fs.invalidate_cache(directory.path)
        paths = [path for path in directory.fs.ls(directory.path, detail=False) if str(path).endswith(".json")]
    leases = []
    for path in paths:
        location = Location(directory.fs, str(path))
        try:
            text = read_small_file(location, _LARGEST_LEASE_BYTES).decode()
        except StorageError:
            continue  # given back in the meantime
        leases.append((_parse_holder(text, str(location)), text))
    return leases


def _parse_holder(text: str, origin: str) -> LeaseHolder:
    try:
        fields = json.loads(text)
        fields.pop("renewal", None)
        return LeaseHolder(**(fields | {"ranks": tuple(fields["ranks"])}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{origin}: not a readable lease; remove it if no other run uses this target") from error


def _refuse_overlap(holder: LeaseHolder, living: Iterator[LeaseHolder]) -> None:
    for other in living:
        shared = sorted(set(other.ranks) & set(holder.ranks))
        if shared:
            told = ", ".join(map(str, shared[:8])) + (" …" if len(shared) > 8 else "")
            raise TargetError(
                f"another run is already converting into this target: {other}. It holds target ranks {told}. "
                "Wait for it, or convert other ranks with --ranks"
            )

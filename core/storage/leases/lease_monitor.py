"""Leases seen from outside: by observers, and by work that must end when the run that it belongs to ends.

Work handed out to other processes does not hold its run's lease, so it watches it: a local lease must exist and be
locked; one on an object store must exist and be rewritten. A lease once found gone never returns: a run that takes a
target over removes dead leases first.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import BinaryIO

from reshard.core.errors import StorageError, TargetError
from reshard.core.runtime.local_files import open_regular
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.leases import remote_lease
from reshard.core.storage.leases.lease import LeaseName, living_holders
from reshard.core.storage.leases.lease_holder import MAX_LEASE_BYTES, LeaseHolder, new_holder, parse_holder
from reshard.core.storage.leases.local_lease import has_locks
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import claimed_while

LOOK_SECONDS = 1.0
"""Interval of checks while nothing is written, and so the longest that work goes on without its lease."""


@contextmanager
def watched_lease(lease: LeaseName, stop: threading.Event, is_ours: Callable[[], bool]) -> Iterator[None]:
    """Watch a lease held by another process: without it no file appears inside the block, and `stop` is set soon.

    `is_ours` tells, at every check, if the target still belongs to the same conversion.

    Raises:
        TargetError: the lease is gone already.
        StorageError: the lease cannot be read.
    """
    watch = _WatchedLease(lease, is_ours)
    watch.check()
    ended = threading.Event()
    checks = partial(copy_context().run, watch.check_until, ended, stop)  # notes go to this context's listener
    threading.Thread(target=checks, daemon=True, name="reshard-watch").start()
    try:
        with claimed_while(watch.check):
            yield
    finally:
        ended.set()


def seen_holders(directory: Location) -> list[LeaseHolder]:
    """Live holders in a lease directory; one being taken concurrently may be missed.

    Nothing is created, and local leases are left alone. On an object store it takes some seconds if there are any
    leases, and dead ones are removed.

    Raises:
        TargetError: a lease is not readable.
        StorageError: the leases cannot be read.
    """
    if not has_locks(directory):
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
        text = file.read(MAX_LEASE_BYTES)
        # an empty one is about to be locked, which observing must not hinder
        if text and _is_locked(file):
            return parse_holder(text, path)
    return None


def _is_locked(file: BinaryIO) -> bool:
    try:
        # shared: other observers are no holders
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class _WatchedLease:
    def __init__(self, lease: LeaseName, is_ours: Callable[[], bool]) -> None:
        self._lease = lease
        self._location = parse_url(lease.directory).child(f"{lease.run}.json")
        self._look = self._look_at_lock if has_locks(self._location) else self._look_at_text
        self._is_ours = is_ours
        self._lock = threading.Lock()
        self._gone = ""
        self._text: bytes | None = None
        self._renewed = self._looked = time.monotonic()

    def check(self) -> None:
        """Check that the lease is still held."""
        with self._lock:
            if not self._gone:
                self._gone = self._look()
            if not self._gone and not self._is_ours():
                self._gone = "another conversion was begun in its place"
            if self._gone:
                raise TargetError(
                    f"{self._lease.directory}: nothing more is written for run {self._lease.run}: {self._gone}"
                )
            self._check_renewed()

    def check_until(self, ended: threading.Event, stop: threading.Event) -> None:
        """Check from time to time until `ended`; set `stop` when the lease is gone."""
        while not ended.wait(LOOK_SECONDS):
            try:
                self.check()
            except TargetError as error:
                current_progress().note(str(error))
                stop.set()
                return
            except StorageError:
                continue  # reported when a file is about to appear

    def _look_at_lock(self) -> str:
        with mapped_errors(self._location, "look at the lease"):
            try:
                file = open(open_regular(self._location.path), "rb")
            except FileNotFoundError:
                return "it has ended"
            with file:
                if not _is_locked(file):
                    return "its process has died"
        self._renewed = time.monotonic()
        return ""

    def _look_at_text(self) -> str:
        begun = time.monotonic()
        text = unless_missing(lambda: read_small_file(self._location, MAX_LEASE_BYTES))
        if text is None:
            return "it has ended, or another run has taken over"
        if text != self._text:
            # it was rewritten at any moment since the last look
            self._text, self._renewed = text, self._looked
        self._looked = begun
        return ""

    def _check_renewed(self) -> None:
        silent_seconds = time.monotonic() - self._renewed
        if silent_seconds > remote_lease.IN_DOUBT_AFTER_SECONDS:
            raise StorageError(
                f"{self._location}: the lease has not been renewed for {silent_seconds:.0f} s, so that another run may "
                "take over",
                transient=True,
            )

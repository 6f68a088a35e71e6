"""A run's lease as other processes see it: what a run handed out to them must end when the run does.

Such work does not hold the lease of the run that it belongs to, so it looks at it: a local one has to be there and be
locked by somebody; one on an object store has to be there, and be seen to be rewritten. A lease once found gone is gone
for good: who takes a target over removes the leases of the dead before anything else.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial

from reshard.core.errors import StorageError, TargetError
from reshard.core.runtime.local_files import open_regular
from reshard.core.runtime.progress import current_progress
from reshard.core.storage import lease as leases
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.lease import (
    LARGEST_LEASE_BYTES,
    LeaseHolder,
    LeaseName,
    living_holders,
    new_holder,
    parse_holder,
)
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import claimed_while

LOOK_SECONDS = 1.0
"""How often work that writes nothing at the moment looks, and so how long it may go on in vain."""


@contextmanager
def watched_lease(lease: LeaseName, stop: threading.Event, is_ours: Callable[[], bool]) -> Iterator[None]:
    """Inside the block nothing appears that the lease does not allow; `stop` is set soon after it is gone.

    To be used outside of the process that holds it. `is_ours` says whether the place that the lease is for is still
    used for the same purpose; it is asked whenever the lease is looked at.

    Raises:
        TargetError: it is gone already.
        StorageError: it cannot be looked at.
    """
    watch = _WatchedLease(lease, is_ours)
    watch.check()
    ended = threading.Event()
    look = partial(copy_context().run, watch.look_until, ended, stop)  # in the context that notes are told in
    regularly = threading.Thread(target=look, daemon=True, name="reshard-watch")
    regularly.start()
    try:
        with claimed_while(watch.check):
            yield
    finally:
        ended.set()


class _WatchedLease:
    def __init__(self, lease: LeaseName, is_ours: Callable[[], bool]) -> None:
        self._lease = lease
        self._location = parse_url(lease.directory).child(f"{lease.run}.json")
        self._is_ours = is_ours
        self._lock = threading.Lock()
        self._gone = ""
        self._text: bytes | None = None
        self._renewed = self._looked = time.monotonic()

    def check(self) -> None:
        """Looks at it anew.

        Raises:
            TargetError: it is gone.
            StorageError: it cannot be looked at, or has not been renewed for so long that another run may take over.
        """
        with self._lock:
            if not self._gone:
                self._gone = self._look_local() if self._location.is_local else self._look_remote()
            if not self._gone and not self._is_ours():
                self._gone = "another conversion was begun in its place"
            if self._gone:
                raise TargetError(
                    f"{self._lease.directory}: nothing more is written for run {self._lease.run}: {self._gone}"
                )
            if not self._location.is_local:
                self._check_renewed()

    def look_until(self, ended: threading.Event, stop: threading.Event) -> None:
        """Looks from time to time, and sets `stop` when the lease is gone."""
        while not ended.wait(LOOK_SECONDS):
            try:
                self.check()
            except TargetError as error:
                current_progress().note(str(error))
                stop.set()
                return
            except StorageError:
                continue  # whoever is about to let a file appear is told

    def _look_local(self) -> str:
        with mapped_errors(self._location, "look at the lease"):
            try:
                file = open(open_regular(self._location.path), "rb")
            except FileNotFoundError:
                return "it has ended"
            with file:
                try:
                    # shared: who else looks at it is no holder
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return ""
                return "its process has died"

    def _look_remote(self) -> str:
        begun = time.monotonic()
        text = unless_missing(lambda: read_small_file(self._location, LARGEST_LEASE_BYTES))
        if text is None:
            return "it has ended, or another run has taken over"
        if text != self._text:
            # it was rewritten at any moment since the look before
            self._text, self._renewed = text, self._looked
        self._looked = begun
        return ""

    def _check_renewed(self) -> None:
        silent_seconds = time.monotonic() - self._renewed
        if silent_seconds > leases.IN_DOUBT_AFTER_SECONDS:
            raise StorageError(
                f"{self._location}: the lease has not been renewed for {silent_seconds:.0f} s, so that another run may "
                "take over",
                transient=True,
            )


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

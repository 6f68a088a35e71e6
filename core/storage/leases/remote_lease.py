"""Leases on object stores, which have no locks: files that their holders rewrite every few seconds.

A lease that stays the same while being watched for longer than that is dead. The rule depends neither on process ids
of other machines nor on clocks that agree.

Where a storage judges conditions, a takeover has one winner. The holder's renewal is put only in the place of its last
one, so that one that was long on its way never brings back a lease that was removed or given back. A dead lease gets a
last text before it is removed, only in the place of the text that was watched: that fails if the holder came back to
life after the last look, and a holder that comes back later does not find its own text. Whether a server judges
conditions is not tried, because nothing rests on it: one that ignores them does what it did without them, and after
each refusal the lease is looked at, so that a server that refuses where nothing has changed gets plain requests.

Taking a lease needs no condition: each has a name of its own, since runs for other ranks hold theirs beside it, and of
two rivals each sees the other after writing. `If-None-Match` would only make a repetition fail after a lost answer.
"""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from reshard.core.errors import StoppedError, StorageError, TargetError
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import sleep_unless_stopped
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.leases.lease_holder import (
    LAST_RENEWAL,
    MAX_LEASE_BYTES,
    LeaseHolder,
    is_last_text,
    parse_holder,
)
from reshard.core.storage.listing import find_entries, is_missing, unless_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.transfers import requested
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import claimed_while

RENEWAL_SECONDS = 5.0
_DEAD_AFTER_SECONDS = 4 * RENEWAL_SECONDS
IN_DOUBT_AFTER_SECONDS = 3 * RENEWAL_SECONDS
"""Shorter than the time after which others consider the lease dead."""
_LAST_RENEWALS_SECONDS = RENEWAL_SECONDS
"""How long a run's end waits for renewals under way: one may never be answered."""
_REMOVED = "its lease was removed"


class SeenLease(Record):
    """A lease as it was last seen.

    Attributes:
        version: of the text; empty where the storage takes no conditions.
    """

    location: Location
    holder: LeaseHolder
    text: bytes
    version: str


@contextmanager
def hold_remote(directory: Location, holder: LeaseHolder, *, alone: bool = False) -> Iterator[None]:
    """Hold a lease on an object store while the block runs; `alone`: none was there a moment ago."""
    if not alone:
        rivals = [lease for lease in _read_leases(directory) if holder.is_rival(lease.holder)]
        holder.refuse_rivals(_renewed_holders(directory, rivals))
    lease = _RemoteLease(directory, holder)
    lease.take()
    # of two runs that started at the same moment, both have written by now: each sees the other, and both refuse; a run
    # that was not there a moment ago is seen here, too
    try:
        holder.refuse_rivals([other.holder for other in _read_leases(directory, besides=holder.run)])
        with lease.renewed(), claimed_while(lease.check):
            yield
    finally:
        try:
            remove_file(lease.location)
        except StorageError as error:
            # it is dead soon; the user has to know the block's outcome
            current_progress().note(f"could not remove the lease: {error}")


def living_remote(directory: Location, run: str) -> list[LeaseHolder]:
    """Holders, other than `run`, of living remote leases; at least one, if there are any. Dead leases are removed."""
    return _renewed_holders(directory, _read_leases(directory, besides=run))


class _RemoteLease:
    """A lease that lives as long as it is rewritten.

    A holder that cannot rewrite it for long is considered dead, and another run may take over. So the holder checks
    that its lease is still the only one there, and lets no file appear while it cannot tell.
    """

    def __init__(self, directory: Location, holder: LeaseHolder) -> None:
        self.location = directory.child(f"{holder.run}.json")
        self._directory = directory
        self._holder = holder
        self._lock = threading.Lock()
        self._renewed = time.monotonic()
        self._known: dict[str, LeaseHolder] = {}
        self._suspects: set[str] = set()
        self._lost_to = ""
        self._takes_conditions = directory.store.puts_conditionally
        self._version = ""
        """Of the text that was written last."""

    def take(self) -> None:
        """Write the lease for the first time."""
        text = self._holder.dump(renewal=0)
        store, path = self.location.store, self.location.path
        self._version = requested(self.location, "take a lease", lambda: store.put(path, text))

    def check(self) -> None:
        """Check that the lease is still held."""
        if self._lost_to:
            raise TargetError(
                f"{self._directory}: this run was considered dead, because it could not renew its lease in time, and "
                f"{self._lost_to}. Start again when nobody else is converting into this target"
            )
        silent_seconds = time.monotonic() - self._renewed
        if silent_seconds > IN_DOUBT_AFTER_SECONDS:
            raise StorageError(
                f"{self.location}: the lease could not be renewed for {silent_seconds:.0f} s, so that another run may "
                "take over",
                transient=True,
            )

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease while the block runs."""
        stop = threading.Event()
        renewals = threading.Thread(target=self._renew_until, args=(stop,), daemon=True, name="reshard-lease")
        renewals.start()
        try:
            yield
        finally:
            stop.set()
            renewals.join()

    def _renew_until(self, stop: threading.Event) -> None:
        count = 0
        under_way: list[threading.Thread] = []
        while not stop.wait(RENEWAL_SECONDS):
            count += 1
            # each in a thread of its own: one without an answer must not hold up the next, nor the end of the run
            renewal = threading.Thread(target=self._renew, args=(count, stop), daemon=True, name="reshard-renewal")
            renewal.start()
            under_way = [*(each for each in under_way if each.is_alive()), renewal]
        # they might write the lease again after its removal
        deadline = time.monotonic() + _LAST_RENEWALS_SECONDS
        for renewal in under_way:
            renewal.join(max(0.0, deadline - time.monotonic()))

    def _renew(self, count: int, stop: threading.Event) -> None:
        begun = time.monotonic()
        # a single attempt: the next renewal may succeed, and if none does, `check` raises
        with suppress(StorageError), mapped_errors(self.location, "renew the lease"):
            versions = self._list_leases()
            self._look_for_rivals(versions)
            if self._lost_to or stop.is_set():
                return
            if not self._rewrite(count, versions[self.location.path]):
                self._lost_to = _REMOVED
                return
            with self._lock:
                self._renewed = max(self._renewed, begun)

    def _rewrite(self, count: int, found: str) -> bool:
        """Write the lease again, where `found` is its version now; False if another run has removed it."""
        store, path = self.location.store, self.location.path
        if self._takes_conditions and found:
            if found != self._version and not self._is_own_text():
                return False
            version = store.put_if(path, self._holder.dump(renewal=count), found)
            if version is not None:
                self._version = version
                return True
            now = self._list_leases().get(path)
            if now is None:
                return False
            if now != found:  # an earlier renewal of this run has arrived, or a last text
                return self._is_own_text()
            self._takes_conditions = False
        self._version = store.put(path, self._holder.dump(renewal=count))
        return True

    def _is_own_text(self) -> bool:
        """True if the lease's text is one that this run wrote: an answer was lost, or came late."""
        text = unless_missing(lambda: read_small_file(self.location, MAX_LEASE_BYTES))
        return text is not None and not is_last_text(text)

    def _list_leases(self) -> dict[str, str]:
        """Return the version of each lease, by path."""
        found = self._directory.store.find(self._directory.path)
        return {entry.path: entry.version for entry in found if entry.path.endswith(".json")}

    def _look_for_rivals(self, paths: Collection[str]) -> None:
        """Find out if another run has taken over: this run's lease is gone, or another one stays beside it."""
        if self.location.path not in paths:
            self._lost_to = _REMOVED
            return
        rivals = set()
        for path in set(paths) - {self.location.path}:
            if path not in self._known:
                text = self._directory.store.read_beginning(path, MAX_LEASE_BYTES)
                self._known[path] = parse_holder(text, path)
            if self._holder.is_rival(self._known[path]):
                rivals.add(path)
        # a run that began at the same moment gives way at once: only one that stays has taken over
        with self._lock:
            staying = rivals & self._suspects
            self._suspects = rivals
        if staying:
            self._lost_to = f"another run has taken over: {self._known[min(staying)]}"


def watched_leases(directory: Location, run: str) -> tuple[list[LeaseHolder], list[SeenLease]]:
    """Holders of living leases, at least one if there are any; and, if there are none, the dead leases.

    Nothing is removed. The lease of `run` does not count.
    """
    return _watched(directory, _read_leases(directory, besides=run))


def remove_dead(lease: SeenLease) -> bool:
    """Remove a dead lease; False if it was renewed after it was last seen."""
    location = lease.location
    if lease.version:
        last_text, put_if = lease.holder.dump(renewal=LAST_RENEWAL), location.store.put_if
        put = requested(location, "remove it", lambda: put_if(location.path, last_text, lease.version))
        if put is None:
            text = unless_missing(lambda: read_small_file(location, MAX_LEASE_BYTES))
            if text is None:
                return True
            if text not in (lease.text, last_text):  # the last one: put by a request whose answer was lost
                return False
    remove_file(location)
    return True


def _renewed_holders(directory: Location, leases: Sequence[SeenLease]) -> list[LeaseHolder]:
    """Watch leases until one is renewed, and return its holder; none if all are dead, and removed."""
    renewed, dead = _watched(directory, leases)
    return renewed or [lease.holder for lease in dead if not remove_dead(lease)]


def _watched(directory: Location, leases: Sequence[SeenLease]) -> tuple[list[LeaseHolder], list[SeenLease]]:
    """Watch leases until one is renewed, and return its holder; if none is, return the dead ones as last seen."""
    watched = {lease.location.path: lease for lease in leases}
    deadline = time.monotonic() + _DEAD_AFTER_SECONDS
    while watched and time.monotonic() < deadline:
        if not sleep_unless_stopped(RENEWAL_SECONDS / 5):
            raise StoppedError("stopped")
        now = {lease.location.path: lease for lease in _read_leases(directory)}
        renewed = [now[path].holder for path, lease in watched.items() if path in now and now[path].text != lease.text]
        if renewed:
            return renewed, []
        # with the etags of now: the first ones may be those of earlier texts, since the text is read after the listing
        watched = {path: now[path] for path in watched if path in now}
    return [], list(watched.values())


def _read_leases(directory: Location, besides: str = "") -> list[SeenLease]:
    """Read all leases but that of the run `besides`."""
    leases = []
    for entry in find_entries(directory).values():
        location = Location(directory.store, entry.path)
        if not location.name.endswith(".json") or location.name == f"{besides}.json":
            continue
        try:
            text = read_small_file(location, MAX_LEASE_BYTES)
        except StorageError as error:
            if is_missing(error):
                continue  # given back in the meantime
            raise
        version = entry.version if directory.store.puts_conditionally else ""
        leases.append(SeenLease(location, parse_holder(text, str(location)), text, version))
    return leases

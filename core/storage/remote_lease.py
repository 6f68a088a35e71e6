"""Leases on object stores, which have no locks: files that their holders rewrite every few seconds.

A lease that stays the same while being watched for longer than that is dead. The rule depends neither on process ids
of other machines nor on clocks that agree.
"""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from reshard.core.errors import StorageError, TargetError
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.lease_holder import MAX_LEASE_BYTES, LeaseHolder, parse_holder
from reshard.core.storage.listing import find_files, is_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import claimed_while
from reshard.core.storage.writing import write_bytes

RENEWAL_SECONDS = 5.0
_DEAD_AFTER_SECONDS = 4 * RENEWAL_SECONDS
IN_DOUBT_AFTER_SECONDS = 3 * RENEWAL_SECONDS
"""Shorter than the time after which others consider the lease dead."""


@contextmanager
def hold_remote(directory: Location, holder: LeaseHolder, *, alone: bool = False) -> Iterator[None]:
    """Hold a lease on an object store while the block runs; `alone`: none was there a moment ago."""
    if not alone:
        rivals = [(other, text) for other, text in _read_leases(directory) if holder.is_rival(other)]
        holder.refuse_rivals(_renewed_holders(directory, rivals))
    lease = _RemoteLease(directory, holder)
    write_bytes(lease.location, lease.text(0))
    # of two runs that started at the same moment, both have written by now: each sees the other, and both refuse; a run
    # that was not there a moment ago is seen here, too
    try:
        holder.refuse_rivals([other for other, _ in _read_leases(directory, besides=holder.run)])
        with lease.renewed(), claimed_while(lease.check):
            yield
    finally:
        try:
            remove_file(lease.location)
        except StorageError as error:
            # it is dead soon; the user has to know the block's outcome
            current_progress().note(f"the lease is left there: {error}")


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

    def text(self, count: int) -> bytes:
        """Return the lease's content, different for each renewal."""
        return self._holder.dump(renewal=count)

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
        renewal: threading.Thread | None = None
        while not stop.wait(RENEWAL_SECONDS):
            count += 1
            # each in a thread of its own: one without an answer must not hold up the next, nor the end of the run
            renewal = threading.Thread(target=self._renew, args=(count, stop), daemon=True, name="reshard-renewal")
            renewal.start()
        if renewal is not None:
            renewal.join(RENEWAL_SECONDS)  # it might write the lease again after its removal

    def _renew(self, count: int, stop: threading.Event) -> None:
        begun = time.monotonic()
        # a single attempt: the next renewal may succeed, and if none does, `check` raises
        with suppress(StorageError), mapped_errors(self.location, "renew the lease"):
            self._look_for_rivals()
            if self._lost_to or stop.is_set():
                return
            self.location.fs.pipe_file(self.location.path, self.text(count))
            with self._lock:
                self._renewed = max(self._renewed, begun)

    def _look_for_rivals(self) -> None:
        """Find out if another run has taken over: this run's lease is gone, or another one stays beside it."""
        fs = self._directory.fs
        fs.invalidate_cache(self._directory.path)
        paths = {str(path) for path in fs.find(self._directory.path) if str(path).endswith(".json")}
        if self.location.path not in paths:
            self._lost_to = "its lease was removed"
            return
        rivals = set()
        for path in paths - {self.location.path}:
            if path not in self._known:
                self._known[path] = parse_holder(bytes(fs.cat_file(path)), path)
            if self._holder.is_rival(self._known[path]):
                rivals.add(path)
        # a run that began at the same moment gives way at once: only one that stays has taken over
        with self._lock:
            staying = rivals & self._suspects
            self._suspects = rivals
        if staying:
            self._lost_to = f"another run has taken over: {self._known[min(staying)]}"


def watched_holders(directory: Location, run: str) -> tuple[list[LeaseHolder], list[LeaseHolder]]:
    """Holders of living leases, at least one if there are any; and, if there are none, those of dead leases.

    Nothing is removed. The lease of `run` does not count.
    """
    leases = _read_leases(directory, besides=run)
    renewed, dead = _watched(directory, leases)
    return renewed, [holder for holder, _ in leases if holder.run in dead]


def _renewed_holders(directory: Location, leases: Sequence[tuple[LeaseHolder, bytes]]) -> list[LeaseHolder]:
    """Watch leases until one is renewed, and return its holder; none if all are dead, and removed."""
    renewed, dead = _watched(directory, leases)
    for run in dead:
        remove_file(directory.child(f"{run}.json"))
    return renewed


def _watched(
    directory: Location, leases: Sequence[tuple[LeaseHolder, bytes]]
) -> tuple[list[LeaseHolder], Collection[str]]:
    """Watch leases until one is renewed, and return its holder; if none is, return the runs whose leases are dead."""
    watched = {holder.run: text for holder, text in leases}
    deadline = time.monotonic() + _DEAD_AFTER_SECONDS
    while watched and time.monotonic() < deadline:
        time.sleep(RENEWAL_SECONDS / 5)
        now = {other.run: (other, text) for other, text in _read_leases(directory)}
        watched = {run: text for run, text in watched.items() if run in now}
        renewed = [now[run][0] for run, text in watched.items() if now[run][1] != text]
        if renewed:
            return renewed, ()
    return [], list(watched)


def _read_leases(directory: Location, besides: str = "") -> list[tuple[LeaseHolder, bytes]]:
    """Read all leases but that of the run `besides`."""
    leases = []
    for location in find_files(directory):
        if not location.name.endswith(".json") or location.name == f"{besides}.json":
            continue
        try:
            text = read_small_file(location, MAX_LEASE_BYTES)
        except StorageError as error:
            if is_missing(error):
                continue  # given back in the meantime
            raise
        leases.append((parse_holder(text, str(location)), text))
    return leases

"""Leases: who is working on which ranks of a target, so that two runs never do the same, nor different things.

A lease is a small file naming its holder. On a local (or mounted) file system the holder keeps it locked with flock:
the kernel lets go when the process dies, however it dies, so a lease that can be locked is a dead one. Object stores
have no locks: there the holder rewrites its lease every few seconds, and a lease that stays the same while being
watched for longer than that is a dead one. Neither rule needs the holder's process id to mean anything here, nor clocks
that agree.
"""

import errno
import fcntl
import getpass
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import BinaryIO

from reshard.core.errors import StorageError, TargetBusyError, TargetError
from reshard.core.runtime.local_files import open_regular
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import printable
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.listing import find_files, is_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import claimed_while
from reshard.core.storage.writing import write_bytes

RENEWAL_SECONDS = 5.0
_DEAD_AFTER_SECONDS = 4 * RENEWAL_SECONDS
IN_DOUBT_AFTER_SECONDS = 3 * RENEWAL_SECONDS
"""Earlier than others give it up for dead."""
LARGEST_LEASE_BYTES = 2**20
_LOOKS = 3
_MOST_MOVES = 100
"""So often a directory is not moved away by others in the moment between making it and opening a file in it."""
_BETWEEN_LOOKS_SECONDS = 0.02
GATE_NAME = ".gate"
"""Name of a file in a lease directory, locked for steps that must not interleave."""


@dataclass(frozen=True)
class LeaseName:
    """By which other processes find a lease.

    Attributes:
        directory: URL of the directory of leases.
        run: whose it is.
    """

    directory: str
    run: str


_held: ContextVar[LeaseName | None] = ContextVar("reshard_lease", default=None)


@dataclass(frozen=True)
class LeaseHolder:
    """Who holds a lease, and for which ranks of what: runs of different plans are in each other's way in any case."""

    run: str
    host: str
    user: str
    process: int
    started: str
    ranks: tuple[int, ...]
    plan: str = ""

    def __str__(self) -> str:
        text = f"run {self.run} of {self.user} on {self.host} (process {self.process}, since {self.started})"
        return printable(text)  # any process may have written it


def new_holder(ranks: Sequence[int], plan: str = "") -> LeaseHolder:
    """A lease holder for this process; `plan` is the identity of what it makes, if it makes anything."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run under ids that have no name
        user = str(os.getuid())
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return LeaseHolder(uuid.uuid4().hex[:8], socket.gethostname(), user, os.getpid(), started, tuple(ranks), plan)


@contextmanager
def held_lease(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    """Holds a lease in a directory of leases while the block runs.

    Raises:
        TargetBusyError: a living run holds one of the ranks, or makes something else; the message names it.
        StorageError: the directory cannot be read or written.
    """
    hold = _local_lease if directory.is_local else _remote_lease
    with hold(directory, holder):
        token = _held.set(LeaseName(str(directory), holder.run))
        try:
            yield
        finally:
            _held.reset(token)


def current_lease() -> LeaseName | None:
    """The lease that is held in this context, and so in this process; None if none is."""
    return _held.get()


def living_holders(directory: Location, holder: LeaseHolder) -> list[LeaseHolder]:
    """Other runs that hold a lease in a directory of leases, for whatever ranks: at least one, if there are any.

    To be called while `exclusive`.
    """
    if not directory.is_local:
        return _still_living(directory, [lease for lease in _read_leases(directory) if lease[0].run != holder.run])
    return [other for other in _living_local(directory) if other.run != holder.run]


@contextmanager
def _local_lease(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    path = os.path.join(directory.path, f"{holder.run}.json")
    with ExitStack() as held:
        with exclusive(directory):
            _refuse_rivals(holder, _living_local(directory))
            with mapped_errors(directory, "take a lease"):
                file = held.enter_context(_closed_at_end(directory, open(path, "xb", buffering=0)))
                # the directory may be renamed with the target: what is locked is the file, the name is only tidied
                held.callback(_give_back, directory, path)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(json.dumps(asdict(holder)).encode())
        yield


@contextmanager
def exclusive(directory: Location) -> Iterator[None]:
    """One process at a time, for steps that must not be interleaved; object stores have nothing for it."""
    if not directory.is_local:
        yield
        return
    path = os.path.join(directory.path, GATE_NAME)
    while True:
        with mapped_errors(directory, "lock it"):
            gate = _opened_gate(path)
        with _closed_at_end(directory, gate):
            with mapped_errors(directory, "lock it"):
                fcntl.flock(gate, fcntl.LOCK_EX)
                # who had it until now may have renamed or removed the directory: then this gate leads nowhere
                leads_in = _is_at(gate, path)
            if leads_in:
                yield
                return


def remove_place(directory: Location, root: Location) -> None:
    """Removes a local directory of leases that are all given back, and those above up to `root` that are empty then.

    To be called while `exclusive`. Who comes in this moment makes them anew, or is left what there is.
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


def _opened_gate(path: str) -> BinaryIO:
    for _ in range(_MOST_MOVES):
        # another run may give the directory its final name, or remove it, at any moment
        with suppress(FileNotFoundError, FileExistsError):
            return _made_gate(path)
    return _made_gate(path)


def _made_gate(path: str) -> BinaryIO:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW), "ab")


@contextmanager
def _closed_at_end(directory: Location, file: BinaryIO) -> Iterator[BinaryIO]:
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


def _living_local(directory: Location) -> list[LeaseHolder]:
    with mapped_errors(directory, "read the leases"):
        paths = [os.path.join(directory.path, name) for name in sorted(os.listdir(directory.path))]
        found = [_living_holder(path) for path in paths if path.endswith(".json")]
    return [holder for holder in found if holder is not None]


def _living_holder(path: str) -> LeaseHolder | None:
    """Who holds a lease; a lease that nobody holds is removed."""
    # it may be given back at any moment
    with suppress(FileNotFoundError), open(open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "rb+") as file:
        if not _locked(file):
            return parse_holder(file.read(LARGEST_LEASE_BYTES), path)
        os.unlink(path)
    return None


def _locked(file: BinaryIO) -> bool:
    """Locks a lease that nobody holds; False if somebody does."""
    for look in range(_LOOKS):
        if look:  # who only watches a lease locks it for some microseconds, once its holder is dead
            time.sleep(_BETWEEN_LOOKS_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


@contextmanager
def _remote_lease(directory: Location, holder: LeaseHolder) -> Iterator[None]:
    rivals = [(other, text) for other, text in _read_leases(directory) if _are_rivals(other, holder)]
    _refuse_rivals(holder, _still_living(directory, rivals))
    lease = _RemoteLease(directory, holder)
    write_bytes(lease.location, lease.text(0))
    # two that started at the same moment have both written by now: both see the other and both refuse
    try:
        _refuse_rivals(holder, [other for other, _ in _read_leases(directory) if other.run != holder.run])
        with lease.renewed(), claimed_while(lease.check):
            yield
    finally:
        try:
            remove_file(lease.location)
        except StorageError as error:
            # it is dead soon; what the block ended with is what the user has to know
            current_progress().note(f"the lease is left there: {error}")


class _RemoteLease:
    """A lease that is alive as long as it is rewritten.

    Who cannot rewrite it for long is taken for dead, and another run may take over: so the holder looks whether its
    lease is still there, and nobody else's is, and makes nothing appear while it cannot tell.
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
        """The lease's content; another one each time."""
        return json.dumps(asdict(self._holder) | {"renewal": count}).encode()

    def check(self) -> None:
        """Makes sure that the lease is still held.

        Raises:
            TargetError: another run has taken over.
            StorageError: it could not be renewed for so long that another run may be about to.
        """
        if self._lost_to:
            raise TargetError(
                f"{self._directory}: this run was taken for dead, because it could not renew its lease in time, and "
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
        """Renews it while the block runs."""
        stop = threading.Event()
        regularly = threading.Thread(target=self._renew_until, args=(stop,), daemon=True, name="reshard-lease")
        regularly.start()
        try:
            yield
        finally:
            stop.set()
            regularly.join()

    def _renew_until(self, stop: threading.Event) -> None:
        count = 0
        renewal: threading.Thread | None = None
        while not stop.wait(RENEWAL_SECONDS):
            count += 1
            # each in a thread of its own: one that gets no answer must not hold up the next, nor the end of the run
            renewal = threading.Thread(target=self._renew, args=(count, stop), daemon=True, name="reshard-renewal")
            renewal.start()
        if renewal is not None:
            renewal.join(RENEWAL_SECONDS)  # or it might write the lease again once it is given back

    def _renew(self, count: int, stop: threading.Event) -> None:
        begun = time.monotonic()
        # a single attempt: the next renewal may succeed, and if none does, `check` says so
        with suppress(StorageError), mapped_errors(self.location, "renew the lease"):
            self._look_around()
            if self._lost_to or stop.is_set():
                return
            self.location.fs.pipe_file(self.location.path, self.text(count))
            with self._lock:
                self._renewed = max(self._renewed, begun)

    def _look_around(self) -> None:
        """Finds out whether another run has taken over: this run's lease is gone, or another one stays beside it."""
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
            if _are_rivals(self._known[path], self._holder):
                rivals.add(path)
        # who began at the same moment gives way at once: only who stays has taken over
        with self._lock:
            staying = rivals & self._suspects
            self._suspects = rivals
        if staying:
            self._lost_to = f"another run has taken over: {self._known[min(staying)]}"


def _still_living(directory: Location, leases: Sequence[tuple[LeaseHolder, bytes]]) -> list[LeaseHolder]:
    """Holders of remote leases that are seen to be renewed; none if all are dead: then they are removed."""
    watched = {holder.run: text for holder, text in leases}
    deadline = time.monotonic() + _DEAD_AFTER_SECONDS
    while watched and time.monotonic() < deadline:
        time.sleep(RENEWAL_SECONDS / 5)
        now = {other.run: (other, text) for other, text in _read_leases(directory)}
        watched = {run: text for run, text in watched.items() if run in now}
        renewed = [now[run][0] for run, text in watched.items() if now[run][1] != text]
        if renewed:
            return renewed
    for run in watched:
        remove_file(directory.child(f"{run}.json"))
    return []


def _read_leases(directory: Location) -> list[tuple[LeaseHolder, bytes]]:
    leases = []
    for location in find_files(directory):
        if not location.name.endswith(".json"):
            continue
        try:
            text = read_small_file(location, LARGEST_LEASE_BYTES)
        except StorageError as error:
            if is_missing(error):
                continue  # given back in the meantime
            raise
        leases.append((parse_holder(text, str(location)), text))
    return leases


def parse_holder(text: bytes, origin: str) -> LeaseHolder:
    """Who holds a lease, from its content.

    Raises:
        TargetError: it cannot be understood.
    """
    try:
        fields = json.loads(text)
        fields.pop("renewal", None)
        holder = LeaseHolder(**(fields | {"ranks": tuple(fields["ranks"])}))
        # a lease is removed by its run's name
        if "/" in holder.run or not all(type(rank) is int for rank in holder.ranks):
            raise ValueError("no names of runs, or numbers of ranks, are like that")
        return holder
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(f"{origin}: not a readable lease; remove it if no other run uses this target") from error


def _shared_ranks(one: LeaseHolder, other: LeaseHolder) -> list[int]:
    return sorted(set(one.ranks) & set(other.ranks))


def _are_rivals(one: LeaseHolder, other: LeaseHolder) -> bool:
    return one.plan != other.plan or bool(_shared_ranks(one, other))


def _refuse_rivals(holder: LeaseHolder, living: Sequence[LeaseHolder]) -> None:
    for other in living:
        if other.plan != holder.plan:
            raise TargetBusyError(
                f"another run is already converting into this target: {other}. It is converting something else into "
                "it, or a source that has changed since; wait for it"
            )
        shared = _shared_ranks(holder, other)
        if shared:
            told = ", ".join(map(str, shared[:8])) + (" …" if len(shared) > 8 else "")
            raise TargetBusyError(
                f"another run is already converting into this target: {other}. It holds target ranks {told}. "
                "Wait for it, or convert other ranks with --ranks"
            )

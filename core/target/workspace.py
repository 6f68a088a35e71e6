"""The working directory of a plan: its identity, its plan file, and the records of its ranks."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate

import xxhash
from msgspec import field

from reshard.core.checkpoint.manifest import (
    MAX_RECORD_BYTES,
    PLAN_NAME,
    PREDECESSORS_DIRECTORY,
    RECORDS_DIRECTORY,
    STATEMENT_NAMES,
    ShardRecord,
    dump_record,
    record_content,
)
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import CheckpointError, InputError, StorageError, TargetError, is_transient
from reshard.core.layouts.manifests import parse_shard_record
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.sealing import keyed_digest, seal, unseal
from reshard.core.storage.leases.local_lease import GATE_NAME
from reshard.core.storage.listing import find_files, unless_missing
from reshard.core.storage.own_files import Listing
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY, WITHDRAWN_NAME
from reshard.core.storage.reading import read_own_file, read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.transfers import each_at
from reshard.core.storage.uploads import abort_uploads
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes

IDENTITY_NAME = "identity"

LEASES_DIRECTORY = "leases"

_RECORD = "record"

_RECORD_NAME = re.compile(r"rank_([0-9]{1,18})\.json")

STATE_LISTING = Listing(
    {PLAN_NAME, IDENTITY_NAME, MANIFEST_NAME, WITHDRAWN_NAME, *STATEMENT_NAMES}.__contains__,
    {
        re.compile(RECORDS_DIRECTORY): Listing(lambda name: _RECORD_NAME.fullmatch(name) is not None),
        re.compile(PREDECESSORS_DIRECTORY): Listing(
            lambda name: False, {re.compile(r"[1-9][0-9]?"): Listing({*STATEMENT_NAMES, "model.sig"}.__contains__)}
        ),
        re.compile(LEASES_DIRECTORY): Listing(lambda name: name == GATE_NAME or name.endswith(".json")),
    },
)

_MAX_KNOWN_RECORDS = 16
_MAX_KNOWN_BYTES = 10 * 2**20
"""Size of the files of known records; the records themselves take three times as much."""


def record_name(rank: int) -> str:
    """Return the name of a rank's record in the directory of records."""
    return f"rank_{rank}.json"


class ForeignRecordError(TargetError):
    """A record belongs to another conversion, and must not be removed."""


class _KnownRecords:
    """The latest records that this process wrote, one for each rank, with the bytes of their files.

    To compare bytes takes a hundredth of the time of parsing them. Safe for use by many threads.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[bytes, ShardRecord], ...] = ()

    def find(self, data: bytes) -> ShardRecord | None:
        """Return the record that was written as these very bytes, if it is still known."""
        return next((record for known, record in self._known if known == data), None)

    def learn(self, record: ShardRecord, data: bytes) -> None:
        """Remember a record instead of the rank's earlier one; a thread that does so too may undo it."""
        others = (each for each in self._known if each[1].rank != record.rank)
        known = [(data, record), *others][:_MAX_KNOWN_RECORDS]
        total_bytes = accumulate(len(data) for data, _ in known)
        self._known = tuple(each for each, total in zip(known, total_bytes, strict=True) if total <= _MAX_KNOWN_BYTES)


class Workspace(Record, eq=False):
    """A directory to which any number of processes write a plan's files and records.

    That of a local target does not have its final name yet. Records `known` need not be parsed again. `lift_signature`
    is called before a record is replaced by one that says more: False if a signature stays, and with it the record.
    Where `sums` are wanted, they get the SHA-256 of each record's file as it was last read or written, by rank.
    """

    directory: Location
    identity: str
    known: _KnownRecords = field(default_factory=_KnownRecords)
    lift_signature: Callable[[], bool] = lambda: True
    sums: dict[int, str] | None = None

    @property
    def state(self) -> Location:
        """The directory of everything but checkpoint files."""
        return self.directory.child(STATE_DIRECTORY)

    @property
    def plan_url(self) -> str:
        """URL of the plan's file."""
        return str(self.state.child(PLAN_NAME))

    def record_location(self, rank: int) -> Location:
        """Return the place of a rank's record."""
        return self.state.child(RECORDS_DIRECTORY, record_name(rank))

    def write_record(self, record: ShardRecord) -> None:
        """Store the record of a rank whose file is written."""
        data, key = dump_record(record), target_key()
        stored = data if key is None else seal(data, key, _RECORD)
        write_bytes(self.record_location(record.rank), stored)
        self._note_sum(record.rank, stored)
        self.known.learn(record, data)

    def read_record(self, rank: int, *, needs_digest: bool = False) -> ShardRecord:
        """Read the record of a rank; with `needs_digest` its file must end in a digest, as newer manifests demand.

        Raises:
            ForeignRecordError: the record belongs to another plan.
            TargetError: the record is damaged, or cannot be decrypted.
            StorageError: there is no record.
        """
        location = self.record_location(rank)
        data = read_own_file(location, MAX_RECORD_BYTES)
        self._note_sum(rank, data)
        try:
            data = unseal(data, target_key(), _RECORD, str(location))
        except InputError as error:
            raise TargetError(error.marked) from None
        record = self.known.find(data) or parse_shard_record(data, str(location), needs_digest=needs_digest)
        if record.identity != self.identity or record.rank != rank:
            raise ForeignRecordError(f"{location}: is of another conversion")
        return record

    def _note_sum(self, rank: int, data: bytes) -> None:
        if self.sums is not None:
            self.sums[rank] = hashlib.sha256(data).hexdigest()

    def find_record(self, rank: int) -> ShardRecord | None:
        """Read the record of a rank as `read_record` does; None if there is none."""
        return unless_missing(lambda: self.read_record(rank))

    def recorded_ranks(self) -> set[int]:
        """Return the ranks that have a record."""
        records = self.state.child(RECORDS_DIRECTORY)
        names = [_RECORD_NAME.fullmatch(file.name) for file in find_files(records)]
        return {int(name[1]) for name in names if name}

    def remove_record(self, rank: int) -> None:
        """Remove a rank's record; its file no longer counts."""
        remove_file(self.record_location(rank))

    def withdraw_record(self, record: ShardRecord) -> None:
        """Remove a rank's record if it is still this one: another run may have repeated the rank."""
        with suppress(TargetError):  # another conversion's, or damaged a moment ago
            if self.find_record(record.rank) == record:
                self.remove_record(record.rank)

    def is_current(self) -> bool:
        """True if the directory is still this plan's, and nothing else was begun in it."""
        return read_identity(self.state) == self.identity

    def abort_abandoned_uploads(self, files: Sequence[str]) -> None:
        """Abort uploads of `files` that killed runs left: stores keep and charge for them unseen."""
        if not self.directory.store.keeps_parts:
            return
        try:
            count = abort_uploads(self.directory, [self.directory.child(file) for file in files])
        except StorageError as error:  # the run itself does not depend on it
            current_progress().note(f"uploads that a killed run may have left are left there: {error}")
            return
        if count:
            current_progress().note(f"{count} unfinished uploads of an earlier run were given up")

    @classmethod
    def of_plan(cls, plan_url: str, identity: str) -> "Workspace":
        """Return the workspace that contains a plan's file."""
        return cls(parse_url(plan_url).parent.parent, identity)


def record_digest(record: ShardRecord) -> str:
    """Return the digest of a rank's record in the manifest; it does not depend on what may be added to it later."""
    bare = record.model_copy(update={"verified": VerifyLevel.NONE, "parts": (), "sha256": None, "signs": False})
    data, key = record_content(bare), target_key()
    return xxhash.xxh3_128_hexdigest(data) if key is None else keyed_digest(data, key)


def read_identity(state: Location) -> str | None:
    """Read the identity of a state directory's plan: None without a plan, "" (no plan's) if it is unreadable."""
    location = state.child(IDENTITY_NAME)
    try:
        content = unless_missing(lambda: read_small_file(location, 1024))
        return None if content is None else content.decode("ascii", "replace")
    except CheckpointError:
        return ""
    except StorageError as error:
        if is_transient(error):
            raise
        return ""


def read_records(workspace: Workspace, ranks: Sequence[int]) -> Iterator[ShardRecord]:
    """Read the records of some ranks, one after another; a damaged record is removed, so its rank is repeated.

    A record that vanishes meanwhile is no error: another run may have given the workspace its final name.
    """

    def read(rank: int) -> ShardRecord | None:
        try:
            return workspace.find_record(rank)
        except ForeignRecordError:
            return None
        except TargetError:
            workspace.remove_record(rank)
            return None

    recorded = sorted(workspace.recorded_ranks() & set(ranks))
    return filter(None, each_at(workspace.directory.store, read, recorded))

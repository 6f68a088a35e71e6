"""The working directory of a plan: its identity, its plan file, and the records of its ranks."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import xxhash

from reshard.core.checkpoint.manifest import (
    MAX_RECORD_BYTES,
    PLAN_NAME,
    RECORDS_DIRECTORY,
    ShardRecord,
    dump_record,
    parse_shard_record,
    record_content,
)
from reshard.core.errors import (
    CheckpointError,
    InputError,
    StorageError,
    TargetError,
    is_transient,
)
from reshard.core.request.conversion import VerifyLevel
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.sealing import keyed_digest, seal, unseal
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.local_lease import GATE_NAME
from reshard.core.storage.own_files import Listing
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    STATE_DIRECTORY,
    list_names,
)
from reshard.core.storage.reading import read_own_file, read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.transfers import at_once
from reshard.core.storage.uploads import abort_uploads, takes_parts
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes

IDENTITY_NAME = "identity"

LEASES_DIRECTORY = "leases"

_RECORD = "record"

_RECORD_NAME = re.compile(r"rank_([0-9]{1,18})\.json")

STATE_LISTING = Listing(
    {PLAN_NAME, IDENTITY_NAME, MANIFEST_NAME}.__contains__,
    {
        re.compile(RECORDS_DIRECTORY): Listing(lambda name: _RECORD_NAME.fullmatch(name) is not None),
        re.compile(LEASES_DIRECTORY): Listing(lambda name: name == GATE_NAME or name.endswith(".json")),
    },
)


class ForeignRecordError(TargetError):
    """A record is another conversion's, and not ours to remove."""


@dataclass(frozen=True)
class Workspace:
    """A directory that a plan's files and records are written in, by any number of processes.

    Attributes:
        directory: where; for a local target not yet its own name.
        identity: identity of the plan.
    """

    directory: Location
    identity: str

    @property
    def state(self) -> Location:
        """Where everything that is not a checkpoint file is."""
        return self.directory.child(STATE_DIRECTORY)

    @property
    def plan_url(self) -> str:
        """Where the plan is."""
        return str(self.state.child(PLAN_NAME))

    def record_location(self, rank: int) -> Location:
        """Where a rank's record is."""
        return self.state.child(RECORDS_DIRECTORY, f"rank_{rank}.json")

    def write_record(self, record: ShardRecord) -> None:
        """Stores the record of a rank whose file is written."""
        data, key = dump_record(record), target_key()
        write_bytes(self.record_location(record.rank), data if key is None else seal(data, key, _RECORD))

    def read_record(self, rank: int, *, needs_digest: bool = False) -> ShardRecord:
        """The record of a rank; `needs_digest`: its file must end in a digest, as beside newer manifests.

        Raises:
            ForeignRecordError: the record belongs to another plan.
            TargetError: the record is damaged, or cannot be decrypted.
            StorageError: there is no record.
        """
        location = self.record_location(rank)
        data = read_own_file(location, MAX_RECORD_BYTES)
        try:
            data = unseal(data, target_key(), _RECORD, str(location))
        except InputError as error:
            raise TargetError(str(error)) from None
        record = parse_shard_record(data, str(location), needs_digest=needs_digest)
        if record.identity != self.identity or record.rank != rank:
            raise ForeignRecordError(f"{location}: is of another conversion")
        return record

    def find_record(self, rank: int) -> ShardRecord | None:
        """The record of a rank; None if there is none.

        Raises:
            TargetError: as `read_record`.
            StorageError: it cannot be read.
        """
        return unless_missing(lambda: self.read_record(rank))

    def recorded_ranks(self) -> set[int]:
        """Ranks that have a record."""
        names = map(_RECORD_NAME.fullmatch, list_names(self.state.child(RECORDS_DIRECTORY)))
        return {int(name[1]) for name in names if name}

    def remove_record(self, rank: int) -> None:
        """Forgets a rank's record; its file no longer counts."""
        remove_file(self.record_location(rank))

    def withdraw_record(self, record: ShardRecord) -> None:
        """Forgets a rank's record, if it is still this one: another run may have done the rank anew."""
        with suppress(TargetError):  # another conversion's, or damaged a moment ago
            if self.find_record(record.rank) == record:
                self.remove_record(record.rank)

    def is_current(self) -> bool:
        """True if the directory is still this plan's, and nothing else was begun in it."""
        return read_identity(self.state) == self.identity

    def abort_abandoned_uploads(self, files: Sequence[str]) -> None:
        """Abort uploads of `files` that killed runs left: stores keep and charge for them unseen."""
        if not takes_parts(self.directory):
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
        """The workspace that a plan's file stands in."""
        return cls(parse_url(plan_url).parent.parent, identity)


def record_digest(record: ShardRecord) -> str:
    """The digest by which a manifest knows a rank's record, whatever it says about how it was verified."""
    data, key = record_content(record.model_copy(update={"verified": VerifyLevel.NONE, "parts": ()})), target_key()
    return xxhash.xxh3_128_hexdigest(data) if key is None else keyed_digest(data, key)


def read_identity(state: Location) -> str | None:
    """The identity of the plan that a state directory is of: None if of none, "" (nobody's) if that cannot be read.

    Raises:
        StorageError: a transient failure.
    """
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
    """The readable records of some ranks, one after another; a damaged one counts as none: its rank is done again.

    Nor is one that is gone by the time it is read an error: another run may have given the workspace its final name.
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
    # local ones are read faster than they could be handed to threads
    found = map(read, recorded) if workspace.directory.is_local else at_once(read, recorded)
    return filter(None, found)

"""The target of a conversion: what stands there already, what may be done to it, and its records.

What is found                                   without overwrite           with overwrite
nothing, or an empty directory                  begin                       begin
unfinished work of the same plan                resume                      resume
a finished conversion by the same plan          done, or mend what differs  the same
unfinished work of another plan                 refuse                      begin anew
a finished conversion, or another checkpoint    refuse                      replace, at the end
anything else                                   refuse                      refuse
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property

import xxhash

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.checkpoint.manifest import (
    LARGEST_RECORD_BYTES,
    PLAN_NAME,
    RECORDS_DIRECTORY,
    Manifest,
    ShardRecord,
    dump_record,
    parse_shard_record,
    read_manifest,
    record_content,
    with_plan,
)
from reshard.core.errors import (
    CheckpointError,
    InputError,
    StorageError,
    TargetBusyError,
    TargetError,
    VerificationError,
    is_transient,
)
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.plan_file import dump_plan, load_sources, plan_identity
from reshard.core.request.conversion import VerifyLevel
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.sealing import keyed_digest, seal, unseal
from reshard.core.runtime.wording import printable
from reshard.core.storage.file_versions import TOUCHED, is_only_touched, is_same_version
from reshard.core.storage.files import (
    find_files,
    read_own_file,
    read_small_file,
    remove_file,
    remove_files,
    unless_missing,
    write_bytes,
)
from reshard.core.storage.lease import (
    GATE_NAME,
    LeaseHolder,
    exclusive,
    held_lease,
    living_holders,
    new_holder,
    remove_place,
)
from reshard.core.storage.own_files import Listing, check_replaced, check_unlinked, check_working
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    REMOVING_NAME,
    STATE_DIRECTORY,
    foreign_names,
    list_names,
    other_files,
    publish,
    remove_others,
    remove_tree,
    replaced_location,
    temporary_files,
    working_location,
)
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.index import index_of, index_problem, places_problem

IDENTITY_NAME = "identity"
LEASES_DIRECTORY = "leases"
_RECORD = "record"
_RECORD_NAME = re.compile(r"rank_([0-9]{1,18})\.json")
_STATE_LISTING = Listing(
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
        data = read_own_file(location, LARGEST_RECORD_BYTES)
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

    @classmethod
    def of_plan(cls, plan_url: str, identity: str) -> "Workspace":
        """The workspace that a plan's file stands in."""
        return cls(parse_url(plan_url).parent.parent, identity)


@dataclass(frozen=True)
class Target:
    """The target of one plan.

    Attributes:
        final: where the finished checkpoint is to be.
        plan: how it is made.
        overwrite: whether what is there may be replaced.
    """

    final: Location
    plan: ConversionPlan
    overwrite: bool = False

    @cached_property
    def identity(self) -> str:
        """Identity of the plan."""
        return plan_identity(self.plan)

    @cached_property
    def workspace(self) -> Workspace:
        """Where its files are written: apart, unless it is this plan's own finished target that is to be mended."""
        mended = read_identity(self.final.child(STATE_DIRECTORY)) == self.identity
        return Workspace(self.final if mended else working_location(self.final), self.identity)

    @contextmanager
    def claimed(self, ranks: Sequence[int]) -> Iterator[Workspace]:
        """The workspace, ready for this plan, with a lease on `ranks` while the block runs.

        Raises:
            TargetError: the target is occupied; a TargetBusyError if another run works on one of the ranks, or
                converts something else into it.
            StorageError: it cannot be read or written.
        """
        self.check_usable()
        try:
            with self._leased(new_holder(ranks, self.identity)) as workspace:
                yield workspace
        finally:
            self._leave()

    @contextmanager
    def _leased(self, holder: LeaseHolder) -> Iterator[Workspace]:
        with held_lease(self._leases, holder):
            self.check_usable()
            with exclusive(self._leases):  # or two that begin at once would clear away each other's beginnings
                found = read_identity(self.workspace.state)
                if found != self.identity and self.final.is_local and self.is_mended_in_place:
                    raise TargetError(f"{self.final}: was replaced by another conversion a moment ago; start again")
                if found != self.identity and not self.is_committed():
                    # on an object store nothing keeps two apart that clear away what another plan left there
                    unguarded = found is not None and not self.final.is_local
                    if unguarded and (others := living_holders(self._leases, holder)):
                        raise TargetBusyError(
                            f"{self.final}: {others[0]} is about to replace what is there; start again in a moment"
                        )
                    self._begin()
            yield self.workspace

    def _leave(self) -> None:
        """Removes the place of the leases, if no other run is there; with it goes what nobody's plan stands beside."""
        working = working_location(self.final)
        if not self.final.is_local or not os.path.isdir(working.path):
            return
        try:
            with exclusive(self._leases):
                if living_holders(self._leases, new_holder(())):
                    return
                state = working.child(STATE_DIRECTORY)
                if read_identity(state) is None:  # by a run that noted what it had checked while another one published
                    remove_tree(state.child(RECORDS_DIRECTORY))
                remove_place(self._leases, working)
        except StorageError as error:
            # what the run ended with is what the user has to know
            current_progress().note(f"the place of its lease is left there: {error}")

    def check_usable(self) -> None:
        """Makes sure that what is at the target leaves room for this plan; see the module's table.

        Raises:
            TargetError: it does not.
        """
        if self.final.is_local:
            _check_place(self.final)
            check_beside(self.final)
            if self.is_mended_in_place:
                check_unlinked(self.final, _STATE_LISTING)
        unfinished = read_identity(self.workspace.state)
        published_here = not self.final.is_local and self._read_manifest() is not None
        if unfinished not in (None, self.identity) and not published_here and not self.overwrite:
            raise TargetError(
                f"{self.final}: an unfinished conversion by another plan, or of a source that has changed since, is in "
                f"{self.workspace.directory}. Finish that one, or pass --overwrite to discard it"
                f"{self._touched_text(self.workspace)}"
            )
        names = set(list_names(self.final))
        if not self.final.is_local:  # the leases stand there even before anything is begun
            names.discard(STATE_DIRECTORY)
        if not names or self.is_committed() or (self.is_mended_in_place and unfinished == self.identity):
            return
        _refuse_occupied(
            self.final,
            overwrite=self.overwrite,
            unified=self.plan.inputs.unified is not None,
            touched=lambda: self._touched_text(Workspace(self.final, "")),
        )

    def check_nothing_foreign(self) -> None:
        """Makes sure that the finished target's rank folders hold just its files.

        Raises:
            TargetError: they hold others.
        """
        index = index_of(self.plan)
        known = [self.plan.file_name(rank) for rank in self.plan.target_ranks]
        others = other_files(self.final, [*known, *([index.name] if index else [])])
        if others and self.is_committed():  # or another conversion has replaced it in this moment
            raise TargetError(
                f"{others[0]}: does not belong to this checkpoint, and MindSpore may take it for a rank's newest file "
                f"({len(others)} such in all). Move it away"
            )

    def is_committed(self) -> bool:
        """Whether the finished target of this very plan is there."""
        return self.read_committed() is not None

    def read_committed(self) -> Manifest | None:
        """The manifest of the finished target of this plan; None without one."""
        manifest = self._read_manifest()
        return manifest if manifest is not None and manifest.identity == self.identity else None

    def check_not_taken(self) -> None:
        """Makes sure that nobody has begun another conversion in the workspace; local leases cannot be lost.

        Raises:
            TargetError: somebody has.
        """
        if not self.final.is_local and read_identity(self.workspace.state) != self.identity:
            raise TargetError(f"{self.final}: another run is converting something else into it, and has taken it over")

    def reopen(self) -> None:
        """Withdraws the finished target's manifest, because files of it are missing or wrong: it is mended in place.

        Raises:
            StorageError: it could not be.
        """
        remove_file(self.final.child(STATE_DIRECTORY, MANIFEST_NAME))

    def confirm(self, level: VerifyLevel) -> None:
        """Ends what an interrupted run left undone at the finished target, and records that it was verified anew.

        Raises:
            StorageError: it could not be.
        """
        if self.final.is_local:
            self._remove_replaced()
        manifest = self.read_committed()
        if manifest is not None and manifest.verified.is_below(level):
            raised = manifest.model_copy(update={"verified": level})
            write_bytes(self.final.child(STATE_DIRECTORY, MANIFEST_NAME), dump_record(raised))

    def _remove_replaced(self) -> None:
        replaced = replaced_location(self.final)
        try:
            check_replaced(replaced)
        except TargetError as error:
            current_progress().note(f"{replaced} is left there: {error}")
            return
        remove_tree(replaced)

    def restore_state(self) -> None:
        """Rewrites the finished target's changed or lost plan and identity, and the manifest to match.

        Call it while the target is claimed.

        Raises:
            StorageError: writing failed.
        """
        manifest = self.read_committed()
        if manifest is None:  # another run has begun to replace it
            return
        state, plan = self.final.child(STATE_DIRECTORY), dump_plan(self.plan)
        restored = with_plan(manifest, plan, target_key(), str(self.final))
        write_bytes(state.child(IDENTITY_NAME), self.identity.encode())
        write_bytes(state.child(PLAN_NAME), plan)
        write_bytes(state.child(MANIFEST_NAME), dump_record(restored))

    def commit(self, manifest: Manifest, plan: bytes) -> None:
        """Publishes the finished files; `manifest` is the commit marker, `plan` the plan's file that goes with it.

        Raises:
            StorageError: publishing failed; all files are still in the workspace.
        """
        workspace = self.workspace
        with exclusive(self._leases):
            self.check_not_taken()
            if self.final.is_local and self.is_committed():  # by a run that did other ranks, a moment ago
                return
            if self.final.is_local:
                check_beside(self.final)
                for left in temporary_files(workspace.directory):  # by killed runs: all ranks are there
                    remove_file(left)
            if not (self.final.is_local and self.is_mended_in_place):
                # leftovers, and a former checkpoint's ranks; in place of a local one nothing but ours was ever written
                remove_others(workspace.directory, manifest.files)
            self._write_index(workspace.directory)
            # left by a removal that was killed, before the same plan was carried out here again
            remove_file(workspace.state.child(REMOVING_NAME))
            # another run may have written the first one with another zlib: the manifest has the digest of this one
            write_bytes(workspace.state.child(PLAN_NAME), plan)
            write_bytes(workspace.state.child(MANIFEST_NAME), dump_record(manifest))
            publish(workspace.directory, self.final)
            if self.final.is_local:  # not before: who waits for the gate in there must not pass while files are moved
                remove_tree(self.final.child(STATE_DIRECTORY, LEASES_DIRECTORY))

    def _write_index(self, directory: Location) -> None:
        """Writes the index of a unified target, and looks at it.

        Raises:
            VerificationError: it is not what was written.
        """
        index = index_of(self.plan)
        if index is None:
            return
        write_bytes(directory.child(index.name), index.data)
        records = read_records(self.workspace, self.plan.target_ranks)
        problem = index_problem(directory, index.summary) or places_problem(directory, index.summary, records)
        if problem is not None:
            raise VerificationError(problem)

    def _read_manifest(self) -> Manifest | None:
        """The target's manifest; None if there is none, or a damaged one that may be overwritten."""
        return _manifest_to_keep(self.final, overwrite=self.overwrite)

    def _touched_text(self, other: Workspace) -> str:
        """What to add to a message about another plan's work, if only touched source files tell the plans apart."""
        try:
            theirs = load_sources(other.plan_url, read_identity(other.state) or "").records
        except (InputError, StorageError):  # unreadable, the other work is still in the way
            return ""
        file = _touched_file(self.plan.inputs.catalog.records, theirs)
        if file is None:
            return ""
        is_final = other.directory.path == self.final.path
        advice = f"; reshard verify {self.final} --level content compares the values" if is_final else ""
        return f" (it was made from the same source, of which {file} is {TOUCHED}{advice})"

    @property
    def is_mended_in_place(self) -> bool:
        """Whether files are written where the finished target is, so that removing the workspace would remove that."""
        return self.workspace.directory.path == self.final.path

    @property
    def _leases(self) -> Location:
        # also of who mends a target in its place: or another run could replace it meanwhile
        return working_location(self.final).child(STATE_DIRECTORY, LEASES_DIRECTORY)

    def _begin(self) -> None:
        """Makes the workspace this plan's: what another plan left there goes, its commit marker first."""
        state = self.workspace.state
        # listed before it is asked whose they are: on an object store another run of this plan may begin as well
        in_turn = {state.child(name).path for name in (MANIFEST_NAME, PLAN_NAME, IDENTITY_NAME)}
        leases = state.child(LEASES_DIRECTORY).path
        left = [file for file in find_files(state) if file.path not in in_turn and file.parent.path != leases]
        found = read_identity(state)
        if found == self.identity:
            return
        remove_file(state.child(MANIFEST_NAME))
        if (index := index_of(self.plan)) is not None:  # or loaders would find a former one, with files of this plan
            remove_file(self.workspace.directory.child(index.name))
        if found is not None:
            remove_file(state.child(IDENTITY_NAME))
        remove_files(left)
        if self.final.is_local:
            remove_others(self.workspace.directory, ())
            for unfinished in temporary_files(self.workspace.directory):
                if unfinished.parent.name != LEASES_DIRECTORY:  # which are the living's
                    remove_file(unfinished)  # what is to be encrypted may stand in it
        write_bytes(state.child(PLAN_NAME), dump_plan(self.plan))
        write_bytes(state.child(IDENTITY_NAME), self.identity.encode())


def check_free(final: Location, source: Location, *, overwrite: bool, unified: bool = False) -> None:
    """Checks before planning, from the target alone, that it can be written.

    A conversion of the same source may have the plan to come, so that is decided after planning.

    Raises:
        TargetError: the target is occupied, or its place cannot be used.
        StorageError: a transient failure.
    """
    with _refused_as_target():
        names = _names_at(final)
        manifest = _manifest_to_keep(final, overwrite=overwrite) if names else None
        if manifest is not None and not overwrite and manifest.source not in (str(source), str(source.parent)):
            raise TargetError(
                f"{final}: is not empty: it was converted from another source, {manifest.source}. Name another target, "
                "or pass --overwrite to replace it"
            )
        if names and manifest is None and read_identity(final.child(STATE_DIRECTORY)) is None:
            _refuse_occupied(final, overwrite=overwrite, unified=unified)


def check_place(final: Location) -> None:
    """Checks without writing that files can be written at a place.

    Raises:
        TargetError: the storage cannot be used, or no directory can be created there.
        StorageError: a transient failure.
    """
    with _refused_as_target():
        _names_at(final)


@contextmanager
def _refused_as_target() -> Iterator[None]:
    """Turns storage errors of a target into TargetErrors, wrong inputs; transient ones pass unchanged."""
    try:
        yield
    except StorageError as error:
        if error.transient:
            raise
        raise TargetError(str(error)) from error


def _names_at(final: Location) -> list[str]:
    """The names at a target, without an object store's directory of leases and records.

    Raises:
        TargetError: no directory can be created there.
        StorageError: the target cannot be listed.
    """
    if final.is_local:
        _check_directory(final)
    names = [name for name in list_names(final) if final.is_local or name != STATE_DIRECTORY]
    if final.is_local and not names:  # a finished one may be where nothing can be written any more
        _check_writable(final)
    return names


def _refuse_occupied(
    final: Location, *, overwrite: bool, unified: bool = False, touched: Callable[[], str] = str
) -> None:
    """Refuses a target that is not empty, unless it is a checkpoint that may be overwritten.

    `touched` gives an addition to the message.
    """
    foreign = foreign_names(final)
    if foreign:
        # such as config.json, which loaders of unified checkpoints expect beside the files
        later = ", and back again when the checkpoint is there" if unified else ""
        raise TargetError(
            f"{final}: is not empty and holds what is not a checkpoint's ({', '.join(map(printable, foreign[:5]))}). "
            f"Name another target, or move that away{later}"
        )
    if not overwrite:
        raise TargetError(f"{final}: is not empty. Name another target, or pass --overwrite to replace it{touched()}")


def _manifest_to_keep(final: Location, *, overwrite: bool) -> Manifest | None:
    """The manifest at a target; None if there is none, or a damaged one that may be overwritten."""
    try:
        return read_manifest(final)
    except TargetError as error:
        if overwrite:
            return None
        raise TargetError(f"{error}. Restore it, or pass --overwrite to convert again") from error


def record_digest(record: ShardRecord) -> str:
    """The digest by which a manifest knows a rank's record, whatever it says about how it was verified."""
    data, key = record_content(record.model_copy(update={"verified": VerifyLevel.NONE, "parts": ()})), target_key()
    return xxhash.xxh3_128_hexdigest(data) if key is None else keyed_digest(data, key)


def check_beside(final: Location) -> None:
    """Makes sure that existing local working directories beside a target hold only files that conversions write.

    Raises:
        TargetError: a directory is a link, or holds a foreign file.
        StorageError: a directory cannot be read.
    """
    working = working_location(final)
    check_working(working, _STATE_LISTING)
    state = working.child(STATE_DIRECTORY)
    # in this order: another run may publish the directory in between
    if not os.path.lexists(state.child(IDENTITY_NAME).path) and os.path.lexists(state.child(MANIFEST_NAME).path):
        raise TargetError(
            f"{working}: holds a finished conversion, but not its {IDENTITY_NAME}. {final} is put together there: move "
            "it away"
        )
    check_replaced(replaced_location(final))


def _touched_file(mine: Mapping[int, CatalogRecord], theirs: Mapping[int, CatalogRecord]) -> str | None:
    """A source file whose change time differs; None if any file differs in more than that, or none at all."""
    touched = None
    if mine.keys() != theirs.keys():
        return None
    for rank, record in mine.items():
        known, found = theirs[rank].version, record.version
        if is_only_touched(known, found):
            touched = record.location
        elif not is_same_version(known, found):
            return None
        if theirs[rank].location != record.location:
            return None
    return touched


def _check_place(final: Location) -> None:
    """Makes sure that a local directory could be made at a place."""
    _check_directory(final)
    _check_writable(final)


def _check_directory(final: Location) -> None:
    existing = _existing(final)
    if not os.path.isdir(existing):
        what = "is" if existing == final.path else f"cannot be made: {existing} is"
        raise TargetError(f"{final}: {what} a file, not a directory")


def _check_writable(final: Location) -> None:
    if os.path.ismount(final.path):
        raise TargetError(
            f"{final}: is a mount point, and the finished files could not get its name at once. Name a directory in it"
        )
    existing = _existing(final)
    parent = os.path.dirname(final.path) if existing == final.path else existing
    if not os.access(parent, os.W_OK | os.X_OK):
        raise TargetError(f"{final}: cannot be made: {parent} is not writable")


def _existing(final: Location) -> str:
    """A place, or of the directories that it is in the nearest that is there."""
    existing = final.path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    return existing


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

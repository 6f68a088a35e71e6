"""Removes unfinished work at a target: unfinished conversions, replaced checkpoints, uploads, leases.

Removed are only local directories in which every name is one that conversions write, and on object stores the files
that the unfinished conversion recorded. Anything else is refused or kept, and named. While files are removed, a lease
keeps other runs away.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

from reshard.core.checkpoint.manifest import RECORDS_DIRECTORY, Manifest, read_manifest
from reshard.core.errors import InputError, StorageError, TargetBusyError, TargetError
from reshard.core.plan.plan_file import rebuild_plan
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.joined import parts_of
from reshard.core.storage.lease_holder import LeaseHolder, new_holder
from reshard.core.storage.lease_monitor import seen_holders
from reshard.core.storage.listing import exists, find_entries, find_files, kind_of
from reshard.core.storage.own_files import check_replaced_files, check_unlinked
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    PARTIAL_SUFFIX,
    RANK_FOLDER,
    REMOVING_NAME,
    REPLACED_SUFFIX,
    STATE_DIRECTORY,
    list_names,
    other_files,
    remove_tree,
    replaced_location,
    temporary_files,
    working_location,
)
from reshard.core.storage.remote_lease import SeenLease, remove_dead, watched_leases
from reshard.core.storage.removal import remove_file
from reshard.core.storage.target_names import is_target_name
from reshard.core.storage.transfers import at_once
from reshard.core.storage.uploads import UnfinishedUpload, takes_parts, unfinished_uploads
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import check_claim
from reshard.core.target.claim import leased, leases_of
from reshard.core.target.companions import recorded_companions
from reshard.core.target.place import check_beside
from reshard.core.target.workspace import IDENTITY_NAME, LEASES_DIRECTORY, STATE_LISTING, Workspace, read_identity


class LeftoverKind(StrEnum):
    """Kind of unfinished work."""

    UNFINISHED = "unfinished conversion"
    REPLACED = "replaced checkpoint"
    TEMPORARY = "unfinished file"
    UPLOAD = "unfinished upload"
    LEASE = "stale lease"


class Leftover(Summary):
    """Unfinished work at one place.

    Attributes:
        kind: what it is.
        url: where it is.
        files: number of files; of an upload, 1.
        size_bytes: their size.
        changed: time of the latest change, ISO 8601, UTC; None if unknown.
        ranks_done: number of ranks of an unfinished conversion that are recorded as done; otherwise None.
        ranks: number of its ranks; None if its plan cannot be read.
    """

    kind: LeftoverKind
    url: str
    files: int
    size_bytes: int
    changed: str | None
    ranks_done: int | None = None
    ranks: int | None = None


class CleanReport(Summary):
    """Unfinished work at a target.

    Attributes:
        target: URL of the target.
        found: the unfinished work.
        removed: True if it was removed.
        kept: what is there besides, and is not removed, in sentences.
    """

    target: str
    found: tuple[Leftover, ...]
    removed: bool
    kept: tuple[str, ...]


@frozen
class _Found:
    leftover: Leftover
    remove: Callable[[], None]


@frozen
class _Survey:
    found: Sequence[_Found] = ()
    kept: tuple[str, ...] = ()


def clean(target: str, *, remove: bool = False) -> CleanReport:
    """Find unfinished work at a target; with `remove`, remove it.

    Raises:
        InputError: nothing at all is there.
        TargetBusyError: a living run works on the target.
        TargetError: what is there may be a checkpoint, or holds what no conversion wrote, or is a directory of targets.
        StorageError: the storage cannot be read, or something cannot be removed.
    """
    final = parse_url(target)
    _check_is_target(final)
    survey = _survey(final, "")
    if not survey.found:
        _check_is_there(final)
    if remove and survey.found:
        for each in survey.found:  # a run that takes a lease would watch the dead ones first
            if each.leftover.kind is LeftoverKind.LEASE and not final.is_local:
                each.remove()
        holder = new_holder(())
        # a plan of its own: it excludes every other run, and other removals
        holder = LeaseHolder(**(vars(holder) | {"plan": f"removal by {holder.run}"}))
        with leased(final, holder):
            for each in _survey(final, holder.run).found:
                check_claim()
                each.remove()
    return CleanReport(
        target=str(final),
        found=tuple(each.leftover for each in survey.found),
        removed=remove and bool(survey.found),
        kept=survey.kept,
    )


def _check_is_target(final: Location) -> None:
    for suffix in (PARTIAL_SUFFIX, REPLACED_SUFFIX):
        if final.name.endswith(suffix):
            raise TargetError(f"{final}: is beside a target: name the target, {final.path.removesuffix(suffix)}")
    if final.name == STATE_DIRECTORY:
        raise TargetError(f"{final}: is in a target: name the target, {final.parent}")
    if kind_of(final) == "file":
        raise TargetError(f"{final}: is a file, the target of a conversion is a directory")


def _check_is_there(final: Location) -> None:
    """Check that a target without unfinished work is one: the path may be mistyped, or a directory of targets."""
    if not any(map(exists, {working_location(final), replaced_location(final), final})):
        raise InputError(f"{final}: nothing is there, and no unfinished work of a conversion into it. Check the path")
    if read_manifest(final) is not None:
        return
    inside = {
        name.removesuffix(suffix)
        for name in list_names(final)
        for suffix in (PARTIAL_SUFFIX, REPLACED_SUFFIX)
        if name.endswith(suffix)
    }
    if inside:
        targets = [str(final.child(name)) for name in sorted(inside)]
        raise TargetError(f"{final}: holds unfinished work of targets in it. Name the target: {listed(targets, 3)}")


def _survey(final: Location, run: str) -> _Survey:
    """Find what is left; the lease of `run` does not count."""
    return _survey_local(final, run) if final.is_local else _survey_remote(final, run)


def _survey_local(final: Location, run: str) -> _Survey:
    working, replaced = working_location(final), replaced_location(final)
    state = final.child(STATE_DIRECTORY)
    check_beside(final)
    check_unlinked(final, STATE_LISTING)
    moved_leases = state.child(LEASES_DIRECTORY)
    _refuse_living(final, [*seen_holders(leases_of(final)), *seen_holders(moved_leases)], run)
    manifest = read_manifest(final)
    is_finished = manifest is not None
    found = []
    if exists(working.child(STATE_DIRECTORY, MANIFEST_NAME)):
        raise TargetError(
            f"{working}: holds a complete conversion, which was about to become {final}. The same conversion, "
            "repeated, gives it its name; if you do not want it, remove it yourself"
        )
    if entries := _without_leases(working):
        found.append(_Found(_unfinished(working, entries), partial(_remove_working, working)))
    elif exists(working):
        # removed, as empty directories are, with the lease under which leftovers are removed
        found.append(_Found(_leftover(LeftoverKind.LEASE, working, find_entries(working)), lambda: None))
    if exists(replaced):
        if manifest is None:
            raise TargetError(
                f"{replaced}: holds the checkpoint that was at {final}, where no finished conversion has replaced it. "
                f"Move it back, or repeat the conversion: {replaced} may be the only copy"
            )
        if (damaged := _damaged_file(final, manifest)) is not None:
            raise TargetError(
                f"{damaged}: is missing, or has another size than when it was written. Repeat the conversion, which "
                f"mends it, or move back the checkpoint that it replaced: {replaced} may be the only copy"
            )
        check_replaced_files(replaced, STATE_LISTING, recorded_companions(replaced))
        entries = find_entries(replaced)
        found.append(_Found(_leftover(LeftoverKind.REPLACED, replaced, entries), partial(remove_tree, replaced)))
    if is_finished:
        found += [
            _Found(_leftover(LeftoverKind.TEMPORARY, file, find_entries(file)), partial(remove_file, file))
            for file in temporary_files(final)
        ]
        if exists(moved_leases):
            leases = find_entries(moved_leases)
            found.append(
                _Found(_leftover(LeftoverKind.LEASE, moved_leases, leases), partial(remove_tree, moved_leases))
            )
    return _Survey(found, _kept_states(final, is_finished=is_finished))


def _damaged_file(final: Location, manifest: Manifest) -> Location | None:
    """Return a file of a finished conversion that is missing, or has another size; nothing is read."""
    entries = find_entries(final)
    written = {summary.file: summary.size_bytes for summary in manifest.ranks}
    written |= {each.file: each.size_bytes for each in manifest.beside}
    for name, size_bytes in written.items():
        location = final.child(name)
        sizes = [entries[file.path]["size"] for file in parts_of(location) or (location,) if file.path in entries]
        if not sizes or sum(sizes) != size_bytes:
            return location
    return None


def _survey_remote(final: Location, run: str) -> _Survey:
    state, leases = final.child(STATE_DIRECTORY), leases_of(final)
    if [name for name in list_names(leases) if name != f"{run}.json"]:
        current_progress().note("watching the leases of other runs for some seconds, to see if one is renewed")
    living, dead = watched_leases(leases, run)
    _refuse_living(final, living, run)
    found = [
        _Found(
            _leftover(LeftoverKind.LEASE, lease.location, find_entries(lease.location)),
            partial(_remove_lease, final, lease),
        )
        for lease in dead
    ]
    is_finished, identity = read_manifest(final) is not None, read_identity(state)
    kept = _kept_states(final, is_finished=is_finished)
    if not is_finished and identity is None:
        return _Survey(found, kept)
    if takes_parts(final):
        uploads = [each for each in unfinished_uploads(final) if _is_of_conversion(final, each.location)]
        found += [_Found(_uploaded(upload), upload.abort) for upload in uploads]
    if not is_finished and not exists(state.child(REMOVING_NAME)):
        unfinished, others = _recorded_files(final, identity or "")
        entries = find_entries(final)
        ours = {path: entries[path] for path in unfinished if path in entries}
        ours |= {file.path: entries[file.path] for file in _state_files(state) if file.path in entries}
        remove = partial(_remove_remote, final, [Location(final.fs, path) for path in unfinished])
        found.append(_Found(_unfinished(final, ours), remove))
        if others:
            kept += (_unrecorded_text(others),)
    return _Survey(found, kept)


def _unrecorded_text(files: Sequence[Location]) -> str:
    return (
        f"{counted(len(files), 'checkpoint file')} without a manifest, of which the unfinished conversion has no "
        f"record: {listed([str(file) for file in files], 3)}. They may be of an earlier checkpoint"
    )


def _refuse_living(final: Location, holders: Iterable[LeaseHolder], run: str) -> None:
    for holder in holders:
        if holder.run != run:
            raise TargetBusyError(f"{final}: {holder} is working on it. Nothing was removed: wait for it, or stop it")


def _kept_states(final: Location, *, is_finished: bool) -> tuple[str, ...]:
    """Sentences on states of a target that are not unfinished work to be removed."""
    state = final.child(STATE_DIRECTORY)
    if is_finished:
        return ()
    if exists(state.child(REMOVING_NAME)):
        return (f"{final}: a conversion that was being removed; the next run of convert-latest goes on with it",)
    if final.is_local and read_identity(state) is not None:
        return (f"{final}: a conversion that was being mended; the same conversion, repeated, completes it",)
    names = list_names(final)
    if names and STATE_DIRECTORY not in names:
        return (f"{final}: has no manifest and no records of a conversion",)
    return ()


def _recorded_files(final: Location, identity: str) -> tuple[list[str], list[Location]]:
    """Return the paths of the files that an unfinished remote conversion recorded, and all other checkpoint files."""
    workspace = Workspace(final, identity)
    entries = find_entries(final)
    recorded: list[str] = []
    names: list[str] = []
    for rank in sorted(workspace.recorded_ranks()):
        record = workspace.read_record(rank)
        location = final.child(record.file)
        paths = [file.path for file in parts_of(location) or (location,)]
        # an object of another size was written by something else since
        if sum(entries[path]["size"] for path in paths if path in entries) == record.size_bytes:
            recorded += paths
            names.append(record.file)
    return recorded, other_files(final, names)


def _remove_lease(final: Location, lease: SeenLease) -> None:
    if not remove_dead(lease):
        _refuse_living(final, [lease.holder], "")


def _remove_remote(final: Location, files: Sequence[Location]) -> None:
    """Remove the files, then their records, and the conversion's identity last: removal can be interrupted anywhere."""
    state = final.child(STATE_DIRECTORY)
    _remove_files(files)
    _remove_files([file for file in _state_files(state) if file.name != IDENTITY_NAME])
    _remove_files([state.child(IDENTITY_NAME)])


def _remove_files(files: Iterable[Location]) -> None:
    def remove(file: Location) -> None:
        check_claim()  # a run considered dead might remove files that another run has written
        remove_file(file)

    for _ in at_once(remove, files):
        pass


def _remove_working(working: Location) -> None:
    """Remove a checked working directory but its leases: records first, the conversion's identity last."""
    state = working.child(STATE_DIRECTORY)
    remove_tree(state.child(RECORDS_DIRECTORY))
    for name in list_names(working):
        if name != STATE_DIRECTORY:
            _remove(working.child(name))
    for name in sorted(list_names(state), key=lambda name: name == IDENTITY_NAME):
        if name != LEASES_DIRECTORY:
            _remove(state.child(name))


def _remove(location: Location) -> None:
    if kind_of(location) == "directory":
        remove_tree(location)
    else:
        remove_file(location)


def _without_leases(working: Location) -> dict[str, dict[str, Any]]:
    """Return the entries of files in a working directory but its leases."""
    leases = working.child(STATE_DIRECTORY, LEASES_DIRECTORY).path
    return {path: entry for path, entry in find_entries(working).items() if not path.startswith(f"{leases}/")}


def _state_files(state: Location) -> list[Location]:
    """Return the files of a conversion in a remote state directory; not its leases."""
    return [
        *(state.child(name) for name in list_names(state) if STATE_LISTING.is_file(name)),
        *find_files(state.child(RECORDS_DIRECTORY)),
    ]


def _unfinished(location: Location, entries: dict[str, dict[str, Any]]) -> Leftover:
    """Describe an unfinished conversion, and how much of it is done: other machines may be still to come."""
    workspace = Workspace(location, "")
    done, ranks = len(workspace.recorded_ranks()), None
    with suppress(InputError, StorageError):  # no plan, one of another version, or one whose key is not given
        ranks = len(rebuild_plan(workspace.plan_url).target_ranks)
    unfinished = _leftover(LeftoverKind.UNFINISHED, location, entries)
    return unfinished.model_copy(update={"ranks_done": done, "ranks": ranks})


def _leftover(kind: LeftoverKind, location: Location, entries: dict[str, dict[str, Any]]) -> Leftover:
    times = [time for entry in entries.values() if (time := _time_of(entry)) is not None]
    return Leftover(
        kind=kind,
        url=str(location),
        files=len(entries),
        size_bytes=sum(entry["size"] or 0 for entry in entries.values()),
        changed=max(times).isoformat(timespec="seconds") if times else None,
    )


def _is_of_conversion(final: Location, file: Location) -> bool:
    """True if conversions write files of this name; others, such as config.json, may be on their way to a target."""
    name = file.path.removeprefix(f"{final.path}/")
    folder = name.partition("/")[0]
    return folder == STATE_DIRECTORY or RANK_FOLDER.fullmatch(folder) is not None or is_target_name(name)


def _uploaded(upload: UnfinishedUpload) -> Leftover:
    size_bytes = 0
    with suppress(StorageError):  # aborted meanwhile, or parts cannot be listed
        size_bytes = upload.size_bytes()
    begun = upload.begun.astimezone(UTC).isoformat(timespec="seconds") if upload.begun else None
    return Leftover(kind=LeftoverKind.UPLOAD, url=str(upload.location), files=1, size_bytes=size_bytes, changed=begun)


def _time_of(entry: dict[str, Any]) -> datetime | None:
    time = entry.get("mtime", entry.get("LastModified"))
    if isinstance(time, datetime):
        return time.astimezone(UTC)
    return datetime.fromtimestamp(time, UTC) if isinstance(time, int | float) else None

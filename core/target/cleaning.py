"""Removes unfinished work at a target: unfinished conversions, replaced checkpoints, uploads, leases.

Removed are only local directories in which every name is one that conversions write, and on object stores the files
that the unfinished conversion wrote (see `written_objects`). Anything else is refused or kept, and named. While files
are removed, a lease keeps other runs away.

Some layouts put a target into a directory of several, such as that of all iterations. So each target below the one
that is named is a place to look at as well.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import PLAN_NAME, PREDECESSORS_DIRECTORY, RECORDS_DIRECTORY, Manifest
from reshard.core.errors import InputError, TargetBusyError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.targets import all_sides, is_target_name
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.joined import parts_of
from reshard.core.storage.leases.lease_holder import LeaseHolder, new_holder
from reshard.core.storage.leases.lease_monitor import seen_holders
from reshard.core.storage.leases.remote_lease import SeenLease, remove_dead, watched_leases
from reshard.core.storage.listing import exists, find_entries, find_files, kind_of, stat, unless_missing
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.own_files import check_replaced_files, check_unlinked
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    PARTIAL_SUFFIX,
    RANK_FOLDER,
    REMOVING_NAME,
    REPLACED_SUFFIX,
    STATE_DIRECTORY,
    WITHDRAWN_NAME,
    is_built_beside,
    list_names,
    places_beside,
    remove_tree,
    replaced_location,
    temporary_files,
    working_location,
)
from reshard.core.storage.removal import remove_file
from reshard.core.storage.store import Entry
from reshard.core.storage.transfers import at_once
from reshard.core.storage.uploads import abandoned_uploads, abort_upload
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import check_claim
from reshard.core.target.claim import leased, leases_of
from reshard.core.target.leftovers import (
    CleanReport,
    Leftover,
    LeftoverKind,
    describe_leftover,
    describe_unfinished,
    describe_upload,
)
from reshard.core.target.own_names import own_names
from reshard.core.target.place import check_beside
from reshard.core.target.workspace import IDENTITY_NAME, LEASES_DIRECTORY, STATE_LISTING, Workspace, read_identity
from reshard.core.target.written_objects import readable_plan, written_objects


class _Found(Record):
    leftover: Leftover
    remove: Callable[[], None]


class _Survey(Record):
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
    surveys = {place: _survey(place, "") for place in (final, *_targets_in(final))}
    beside = {side: side.leftovers(final) for side in all_sides()}
    found = [each.leftover for survey in surveys.values() for each in survey.found]
    found += [_describe_beside(location) for locations in beside.values() for location in locations]
    if not found:
        _check_is_there(final)
    for place, survey in surveys.items() if remove else ():
        if survey.found:
            _remove_found(place, survey)
    for side, locations in beside.items() if remove else ():
        if locations:
            side.remove_leftovers(final)
    return CleanReport(
        target=str(final),
        found=tuple(found),
        removed=remove and bool(found),
        kept=tuple(text for survey in surveys.values() for text in survey.kept),
    )


def _describe_beside(location: Location) -> Leftover:
    if kind_of(location) == "directory":
        return describe_leftover(LeftoverKind.LEASE, location, find_entries(location))
    return _describe_file(LeftoverKind.TEMPORARY, location)


def _describe_file(kind: LeftoverKind, file: Location) -> Leftover:
    entry = unless_missing(lambda: stat(file))  # an object store finds only what is below a place
    return describe_leftover(kind, file, {file.path: entry} if entry else {})


def _targets_in(final: Location) -> list[Location]:
    """Return the targets in a directory of several that a conversion has worked on."""
    places = [final.child(name) for name in _target_names(list_names(final))]
    return [place for place in places if STATE_DIRECTORY in list_names(place) or any(map(exists, places_beside(place)))]


def _target_names(names: Iterable[str]) -> list[str]:
    """Return the names of targets among names in a directory, also of those that are only begun or replaced."""
    possible = {_target_of(name) for name in names}
    return [name for side in all_sides() for name in side.targets_in(possible)]


def _target_of(name: str) -> str:
    """Return the name of the target that a working directory or a replaced checkpoint belongs to."""
    return name.removesuffix(PARTIAL_SUFFIX).removesuffix(REPLACED_SUFFIX)


def _remove_found(place: Location, survey: _Survey) -> None:
    for each in survey.found:  # a run that takes a lease would watch the dead ones first
        if each.leftover.kind is LeftoverKind.LEASE and not is_built_beside(place):
            each.remove()
    holder = new_holder(())
    # a plan of its own: it excludes every other run, and other removals
    holder = replace(holder, plan=f"removal by {holder.run}")
    with leased(place, holder):
        for each in _survey(place, holder.run).found:
            check_claim()
            each.remove()


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
    if not any(map(exists, (*places_beside(final), final))):
        advice = did_you_mean(final) or ". Check the path"
        raise InputError(f"{final}: does not exist, and has no unfinished work beside it{advice}")
    if read_manifest(final) is not None:
        return
    inside = {_target_of(name) for name in list_names(final) if name != _target_of(name)}
    if inside:
        targets = [str(final.child(name)) for name in sorted(inside)]
        raise TargetError(f"{final}: holds unfinished work of targets in it. Name the target: {listed(targets, 3)}")


def _survey(final: Location, run: str) -> _Survey:
    """Find what is left; the lease of `run` does not count."""
    return _survey_beside(final, run) if is_built_beside(final) else _survey_in_place(final, run)


def _survey_beside(final: Location, run: str) -> _Survey:
    working, replaced = working_location(final), replaced_location(final)
    state = final.child(STATE_DIRECTORY)
    check_beside(final)
    check_unlinked(final, STATE_LISTING, is_target_name)
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
        workspace = Workspace(working, "")
        unfinished = describe_unfinished(workspace, readable_plan(workspace), entries)
        found.append(_Found(unfinished, partial(_remove_working, working)))
    elif exists(working):
        # removed, as empty directories are, with the lease under which leftovers are removed
        found.append(_Found(describe_leftover(LeftoverKind.LEASE, working, find_entries(working)), lambda: None))
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
        check_replaced_files(replaced, STATE_LISTING, own_names(replaced))
        entries = find_entries(replaced)
        found.append(
            _Found(describe_leftover(LeftoverKind.REPLACED, replaced, entries), partial(remove_tree, replaced))
        )
    if is_finished:
        found += [_temporary(file) for file in (*temporary_files(final, is_target_name), *_outdated_mark(state))]
        if exists(moved_leases):
            leases = find_entries(moved_leases)
            found.append(
                _Found(describe_leftover(LeftoverKind.LEASE, moved_leases, leases), partial(remove_tree, moved_leases))
            )
    return _Survey(found, _kept_states(final, is_finished=is_finished))


def _damaged_file(final: Location, manifest: Manifest) -> Location | None:
    """Return a file of a finished conversion that is missing, or has another size; nothing is read."""
    entries = find_entries(final)
    written = {summary.file: summary.size_bytes for summary in manifest.ranks}
    written |= {each.file: each.size_bytes for each in manifest.beside}
    for name, size_bytes in written.items():
        location = final.child(name)
        sizes = [entries[file.path].size_bytes for file in parts_of(location) or (location,) if file.path in entries]
        if not sizes or sum(sizes) != size_bytes:
            return location
    return None


def _survey_in_place(final: Location, run: str) -> _Survey:
    state, leases = final.child(STATE_DIRECTORY), leases_of(final)
    if [name for name in list_names(leases) if name != f"{run}.json"]:
        current_progress().note("watching the leases of other runs for some seconds, to see if one is renewed")
    living, dead = watched_leases(leases, run)
    _refuse_living(final, living, run)
    found = [
        _Found(
            _describe_file(LeftoverKind.LEASE, lease.location),
            partial(_remove_lease, final, lease),
        )
        for lease in dead
    ]
    is_finished, identity = read_manifest(final) is not None, read_identity(state)
    kept = _kept_states(final, is_finished=is_finished)
    if is_finished or identity is not None:
        for upload in abandoned_uploads(final):
            location = Location(final.store, upload.path)
            if _is_of_conversion(final, location):
                found.append(_Found(describe_upload(location, upload), partial(abort_upload, location, upload)))
    if is_finished:
        found += map(_temporary, _outdated_mark(state))
    elif not kept and identity is None:
        found += _begun(state)
    elif not kept:
        entries, workspace = find_entries(final), Workspace(final, identity or "")
        plan = readable_plan(workspace)
        written = written_objects(workspace, plan, entries)
        own = [Location(final.store, path) for path in written.own]
        to_remove = {file.path: entries[file.path] for file in (*own, *_state_files(state)) if file.path in entries}
        found.append(_Found(describe_unfinished(workspace, plan, to_remove), partial(_remove_remote, final, own)))
        if written.others:
            kept = (_unrecorded_text(written.others),)
    return _Survey(found, kept)


def _temporary(file: Location) -> _Found:
    return _Found(_describe_file(LeftoverKind.TEMPORARY, file), partial(remove_file, file))


def _outdated_mark(state: Location) -> list[Location]:
    """Find the mark that a manifest was withdrawn, left by a run that was killed when it had written another."""
    mark = state.child(WITHDRAWN_NAME)
    return [mark] if exists(mark) else []


def _begun(state: Location) -> list[_Found]:
    """Find the plan of a conversion that was stopped before it had written anything else, even its identity."""
    files = _state_files(state)
    if [file.name for file in files] != [PLAN_NAME]:
        return []
    entries = {path: entry for path, entry in find_entries(state).items() if path == files[0].path}
    return [_Found(describe_leftover(LeftoverKind.UNFINISHED, state.parent, entries), partial(_remove_files, files))]


def _unrecorded_text(files: Sequence[Location]) -> str:
    return (
        f"{counted(len(files), 'checkpoint file')} without a manifest, of which the unfinished conversion has no "
        f"record: {listed([str(file) for file in files], 3)}. They may be of an earlier checkpoint: remove them "
        "yourself if they are not"
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
    if exists(state.child(WITHDRAWN_NAME)) or (is_built_beside(final) and read_identity(state) is not None):
        return (_withdrawn_text(final),)
    names = list_names(final)
    if names and STATE_DIRECTORY not in names and not _target_names(names):
        return (f"{final}: has no manifest and no records of a conversion",)
    return ()


def _withdrawn_text(final: Location) -> str:
    return (
        f"{final}: a finished conversion that was being repaired or replaced; repeat the conversion to complete "
        "it. Remove it yourself if you do not want it"
    )


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


def _without_leases(working: Location) -> dict[str, Entry]:
    """Return the entries of files in a working directory but its leases."""
    leases = working.child(STATE_DIRECTORY, LEASES_DIRECTORY).path
    return {path: entry for path, entry in find_entries(working).items() if not path.startswith(f"{leases}/")}


def _state_files(state: Location) -> list[Location]:
    """Return the files of a conversion in a remote state directory; not its leases."""
    return [
        *(state.child(name) for name in list_names(state) if STATE_LISTING.is_file(name)),
        *find_files(state.child(RECORDS_DIRECTORY)),
        *find_files(state.child(PREDECESSORS_DIRECTORY)),
    ]


def _is_of_conversion(final: Location, file: Location) -> bool:
    """True if conversions write files of this name; others, such as config.json, may be on their way to a target."""
    name = file.path.removeprefix(f"{final.path}/")
    folder = name.partition("/")[0]
    return folder == STATE_DIRECTORY or RANK_FOLDER.fullmatch(folder) is not None or is_target_name(name)

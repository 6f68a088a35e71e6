"""Claiming and publishing a target: leases beside it while runs write to it, and the commit marker at the end."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import RECORDS_DIRECTORY
from reshard.core.errors import StorageError, TargetBusyError
from reshard.core.layouts.targets import is_target_name
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.leases.lease import current_lease, held_lease, living_holders
from reshard.core.storage.leases.lease_holder import LeaseHolder, new_holder
from reshard.core.storage.leases.local_lease import exclusive, remove_lease_directory
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    STATE_DIRECTORY,
    WITHDRAWN_NAME,
    is_built_beside,
    publish,
    remove_others,
    remove_tree,
    temporary_files,
    working_location,
)
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.own_names import own_names
from reshard.core.target.place import check_beside
from reshard.core.target.workspace import LEASES_DIRECTORY, Workspace, read_identity


def leases_of(final: Location) -> Location:
    """Return the directory of a target's leases: beside it, also while the target is mended in its place."""
    return working_location(final).child(STATE_DIRECTORY, LEASES_DIRECTORY)


@contextmanager
def leased(final: Location, holder: LeaseHolder, *, alone: bool = False) -> Iterator[None]:
    """Hold a lease on a target while the block runs; a TargetBusyError if another run works on it.

    `alone`: no lease was there a moment ago.
    """
    try:
        with held_lease(leases_of(final), holder, alone=alone):
            yield
    finally:
        _leave(final)


@contextmanager
def claimed_alone(final: Location, ranks: Sequence[int]) -> Iterator[None]:
    """Keep other runs from converting into a directory, mending or removing it while the block runs.

    `ranks` are all of the finished target there.

    Raises:
        TargetBusyError: another run works on it.
    """
    check_beside(final)
    holder = new_holder(ranks)
    with leased(final, holder):
        leases = leases_of(final)
        with exclusive(leases):
            others = living_holders(leases, holder)  # of other ranks
        if others:
            raise TargetBusyError(f"{others[0]} is working on it")
        yield


def check_no_other_run(final: Location) -> None:
    """Raise TargetBusyError if another run than this one works on a target to be signed; call it while `exclusive`."""
    lease = current_lease()
    others = living_holders(leases_of(final), replace(new_holder(()), run=lease.run if lease else ""))
    if others:
        raise TargetBusyError(
            f"{final}: {others[0]} is working on other ranks, and what is signed must not change any more. "
            "Run the same command when it has ended: it signs and publishes what is done"
        )


def _leave(final: Location) -> None:
    """Remove the directory of the leases if no other run holds one, and records there that belong to no plan."""
    working = working_location(final)
    if not is_built_beside(final) or not os.path.isdir(working.path):
        return
    leases, state = leases_of(final), working.child(STATE_DIRECTORY)
    try:
        with exclusive(leases):
            if living_holders(leases, new_holder(())):
                return
            if read_identity(state) is None:  # by a run that noted a check while another run published
                remove_tree(state.child(RECORDS_DIRECTORY))
            remove_lease_directory(leases, working)
    except StorageError as error:  # not what the run ends with
        current_progress().note(f"its lease directory could not be removed: {error}")


def remove_leftovers(workspace: Workspace, final: Location, files: Iterable[str], *, in_place: bool) -> None:
    """Remove temporary files of killed runs, and any file but `files` unless a finished target is mended in place."""
    check_beside(final)
    for left in temporary_files(workspace.directory, is_target_name):
        remove_file(left)
    if not (is_built_beside(final) and in_place):  # there only our own files were ever written
        remove_others(workspace.directory, files, is_target_name)
    else:  # a run that was killed may have signed what it mended
        remove_file(workspace.directory.child(SIGNATURE_NAME))


def withdraw_manifest(state: Location) -> None:
    """Remove the commit marker of a finished target, and leave a mark: it is not an unfinished conversion.

    The mark goes when there is a manifest again, or another plan has begun in the target's place.
    """
    write_bytes(state.child(WITHDRAWN_NAME), b"The manifest was withdrawn to mend or replace this checkpoint.\n")
    remove_file(state.child(MANIFEST_NAME))


def publish_manifest(workspace: Workspace, final: Location, manifest: bytes) -> None:
    """Write the commit marker, and give the finished files their place; if it fails, all are still in the workspace."""
    write_bytes(workspace.state.child(MANIFEST_NAME), manifest)
    publish(workspace.directory, final, own_names(final))
    # not earlier: a run that waits for the gate in there must not pass while files are moved
    if is_built_beside(final):
        remove_tree(final.child(STATE_DIRECTORY, LEASES_DIRECTORY))

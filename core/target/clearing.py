"""Clearing a workspace for a new plan: another plan's files are removed, its commit marker first.

A run that is killed in between leaves no target that looks finished, and nothing of the old plan among the new files.
"""

from collections.abc import Collection, Iterable

from reshard.core.checkpoint.manifest import PLAN_NAME
from reshard.core.layouts.targets import companion_names, is_target_name
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    WITHDRAWN_NAME,
    is_built_beside,
    remove_others,
    temporary_files,
)
from reshard.core.storage.removal import remove_file, remove_files
from reshard.core.storage.urls import Location
from reshard.core.target.claim import withdraw_manifest
from reshard.core.target.look import Look, state_files
from reshard.core.target.own_names import recorded_companions
from reshard.core.target.workspace import IDENTITY_NAME, LEASES_DIRECTORY, Workspace


def clear(workspace: Workspace, final: Location, look: Look, documents: Collection[str]) -> None:
    """Remove what a look found of another plan; `documents` are the names of the new plan's documents."""
    if is_built_beside(final):
        _clear_beside(workspace, look, documents)
    else:
        _clear_in_place(workspace, final, look, documents)


def _clear_beside(workspace: Workspace, look: Look, documents: Collection[str]) -> None:
    directory, state = workspace.directory, workspace.state
    left = _replaceable(state, state_files(state))
    remove_file(state.child(MANIFEST_NAME))
    # loaders would find old ones with new files
    for name in (*companion_names(), *documents):
        remove_file(directory.child(name))
    if look.identity is not None:
        remove_file(state.child(IDENTITY_NAME))
    remove_files(left)
    remove_others(directory, (), is_target_name)
    for unfinished in temporary_files(directory, is_target_name):
        if unfinished.parent.name != LEASES_DIRECTORY:  # those belong to living runs
            remove_file(unfinished)  # it may contain unencrypted values


def _clear_in_place(workspace: Workspace, final: Location, look: Look, documents: Collection[str]) -> None:
    """Remove what was seen, and nothing else: each look is a request, and other programs' files may be there."""
    state = workspace.state
    left = _replaceable(state, look.leftovers)
    replaced: Collection[str] = ()
    if state.child(MANIFEST_NAME).path in {file.path for file in look.leftovers}:
        # loaders would find those of an old model beside new files
        replaced = recorded_companions(final)
        withdraw_manifest(state)
        left.append(state.child(WITHDRAWN_NAME))
    for name in (*replaced, *documents, SIGNATURE_NAME):
        if name in look.names:
            remove_file(final.child(name))
    if look.identity is not None:
        remove_file(state.child(IDENTITY_NAME))
    remove_files(left)


def _replaceable(state: Location, files: Iterable[Location]) -> list[Location]:
    """Return state files without those that are removed, or written, in their turn."""
    in_turn = {state.child(name).path for name in (MANIFEST_NAME, PLAN_NAME, IDENTITY_NAME)}
    return [file for file in files if file.path not in in_turn]

"""What a conversion leaves behind if it ends without a commit, and what could make room where a disk is full.

Both are notes of the error that ends it, an interruption included: `reshard.core.errors.text_with_notes` shows them
below its message.
"""

import errno
import logging
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from reshard.core.checkpoint.manifest import RECORDS_DIRECTORY
from reshard.core.conversion.report import target_kind
from reshard.core.errors import InputError, ReshardError, StorageError, TargetError, is_transient
from reshard.core.layouts.manifests import read_manifest
from reshard.core.runtime.log import log
from reshard.core.runtime.wording import counted, seconds_text, size_text
from reshard.core.storage.listing import exists, find_entries
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    PARTIAL_SUFFIX,
    REPLACED_SUFFIX,
    STATE_DIRECTORY,
    WITHDRAWN_NAME,
    list_names,
    places_beside,
    working_location,
)
from reshard.core.storage.urls import Location
from reshard.core.target.leftovers import Leftover
from reshard.core.target.target import Target
from reshard.core.target.workspace import LEASES_DIRECTORY
from reshard.core.text.options import option, spelled

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MAX_LISTED = 6


@contextmanager
def noting_what_is_left(target_of: Callable[[], Target]) -> Iterator[None]:
    """Add notes to what ends the block: what is left of the conversion, and where the disk is full, what could go.

    The block claims the target. A target that is refused was not touched, or is another run's by now.
    """
    try:
        yield
    except TargetError:
        raise
    except BaseException as error:
        target = target_of()
        if _is_no_room(error):
            error.add_note(_room_note(target))
        if note := _left_note(target, error):
            error.add_note(note)
        raise


def _is_no_room(error: BaseException) -> bool:
    """True if a full disk, or a used-up quota, caused an error; of one from another process only the message tells."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            return True
        cause = cause.__cause__
    return isinstance(error, ReshardError) and any(os.strerror(each) in error.marked for each in _NO_ROOM)


def _left_note(target: Target, error: BaseException) -> str:
    """Say what is left of a conversion; empty if nothing is. A remote storage that does not answer is not asked."""
    directory, advice = working_location(target.final), _advice(target.final, error)
    try:
        if directory.store.is_near or not is_transient(error):
            return _figures(target, directory, advice)
    except StorageError as unknown:
        log(logging.WARNING, f"could not check what is left behind: {unknown}")
    return f"finished work is in {directory}: {advice}"


def _figures(target: Target, directory: Location, advice: str) -> str:
    state = directory.child(STATE_DIRECTORY)
    leases, records = state.child(LEASES_DIRECTORY).path, state.child(RECORDS_DIRECTORY).path
    entries = {path: each for path, each in find_entries(directory).items() if not path.startswith(f"{leases}/")}
    if exists(target.final.child(STATE_DIRECTORY, WITHDRAWN_NAME)):
        return (
            f"{target.final}: a finished conversion that was being repaired or replaced; rerun the command to complete "
            "it"
        )
    has_manifest = state.child(MANIFEST_NAME).path in entries
    if not entries or (has_manifest and directory == target.final):  # finished before, and it has its name
        return ""
    if has_manifest:
        return f"{directory}: a complete conversion that only lacks its final name; rerun the command to rename it"
    plan = target.plan
    done = [rank for rank in plan.target_ranks if f"{records}/rank_{rank}.json" in entries]
    if directory == target.final:  # files without a record may be of the checkpoint that is replaced
        own = {directory.child(plan.file_name(rank)).path for rank in done}
        entries = {path: each for path, each in entries.items() if path in own or path.startswith(f"{state.path}/")}
    size = size_text(sum(entry.size_bytes for entry in entries.values()))
    of_all = f"{len(done)} of {counted(len(plan.target_ranks), target_kind(plan))} done"
    unchanged = f"; {target.final} is unchanged" if directory != target.final and list_names(target.final) else ""
    return f"left in {directory}: {size}, {of_all}: {advice}{unchanged}"


def _room_note(target: Target) -> str:
    """Say what could be removed beside a target to make room; nothing that may be the only copy of something."""
    lines = [*_leftovers_beside(target.final), *_replaced(target)]
    if not lines:
        return "reshard left nothing beside it that could be removed: free space there, or choose a target elsewhere"
    return "\n  ".join(["to make room, remove what you no longer need:", *lines[:_MAX_LISTED]])


def _leftovers_beside(final: Location) -> Iterator[str]:
    """Yield what is left beside a target, of others and of what it replaced itself; no unfinished work of its own."""
    if not places_beside(final):
        return
    from reshard.core.target.cleaning import clean

    with suppress(StorageError):  # who may write a target may not be allowed to list what is around it
        for name in list_names(final.parent):
            place = final.parent.child(name)
            other = place.path.removesuffix(PARTIAL_SUFFIX).removesuffix(REPLACED_SUFFIX)
            if other == place.path or place.path == f"{final.path}{PARTIAL_SUFFIX}":
                continue
            with suppress(InputError):  # a run works on it, or it may be the only copy
                of_other = clean(other).found
                yield from (_leftover_text(each, other) for each in of_other if each.url == str(place))


def _leftover_text(leftover: Leftover, target: str) -> str:
    facts = [str(leftover.kind), size_text(leftover.size_bytes)]
    if leftover.ranks_done is not None:
        of_all = "" if leftover.ranks is None else f" of {leftover.ranks}"
        facts.append(f"{leftover.ranks_done}{of_all} done")
    if leftover.changed is not None:
        age = datetime.now(UTC) - datetime.fromisoformat(leftover.changed)
        facts.append(f"last changed {seconds_text(max(0.0, age.total_seconds()))} ago")
    return f"{leftover.url} ({', '.join(facts)}): 'reshard clean {shlex.quote(target)}'"


def _replaced(target: Target) -> Iterator[str]:
    """Yield what `overwrite` replaces at the end, and how it would go before, if its source is there."""
    if not target.overwrite or not places_beside(target.final):
        return
    with suppress(InputError, StorageError):  # a damaged manifest does not tell what it is
        manifest = read_manifest(target.final)
        if manifest is None:
            return
        size = size_text(sum(entry.size_bytes for entry in find_entries(target.final).values()))
        what = f"{target.final} ({size}): kept until its replacement by {option('overwrite', True)} is complete; "
        if manifest.source == target.plan.inputs.catalog.url:
            yield spelled(f"{what}it was converted from the same source: 'rm -r {shlex.quote(target.final.path)}'")
        else:
            yield spelled(f"{what}it was converted from another source, and may be the only copy: move it elsewhere")


def _advice(final: Location, error: BaseException) -> str:
    removes = f"'reshard clean {shlex.quote(str(final))}' removes it"
    # mended input makes another plan, which does not resume this one
    is_other_plan = isinstance(error, InputError) and not isinstance(error, StorageError)
    return removes if is_other_plan else f"the same command resumes it, {removes}"

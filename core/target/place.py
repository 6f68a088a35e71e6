"""Checks of a target's place: permissions, files in the way, leftovers of other runs beside it."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.errors import StorageError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.own_files import check_replaced, check_working
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    STATE_DIRECTORY,
    foreign_names,
    is_built_beside,
    list_names,
    replaced_location,
    working_location,
)
from reshard.core.storage.urls import Location
from reshard.core.target.own_names import may_be_own, own_names
from reshard.core.target.workspace import IDENTITY_NAME, STATE_LISTING, read_identity
from reshard.core.text.options import option
from reshard.core.text.printing import printable


def check_free(final: Location, source: Location, *, overwrite: bool, brings_others: bool = False) -> None:
    """Check before planning, from the target alone, that it can be written.

    Whether a conversion of the same source is in the way is decided after planning: it may have the same plan.

    Raises:
        TargetError: the target is occupied, or its place cannot be used.
    """
    with _refused_as_target():
        names = _names_at(final)
        manifest = manifest_to_keep(final, overwrite=overwrite) if names else None
        if manifest is not None and not overwrite and manifest.source not in (str(source), str(source.parent)):
            raise TargetError(
                f"{final}: is not empty: it was converted from another source, {manifest.source}. Name another target, "
                f"or pass {option('overwrite', True)} to replace it"
            )
        if names and manifest is None and read_identity(final.child(STATE_DIRECTORY)) is None:
            refuse_occupied(final, overwrite=overwrite, brings_others=brings_others)


def check_place(final: Location) -> list[str]:
    """Raise TargetError, without writing, if the storage cannot be used, or no directory can be made at a place.

    Returns the names there, without the directory of leases and records if it is there at all times.
    """
    with _refused_as_target():
        return _names_at(final)


@contextmanager
def _refused_as_target() -> Iterator[None]:
    """Turn lasting storage errors into TargetErrors: such a target is wrong input."""
    try:
        yield
    except StorageError as error:
        if error.transient:
            raise
        raise TargetError(error.marked) from error


def _names_at(final: Location) -> list[str]:
    if not is_built_beside(final):
        return [name for name in list_names(final) if name != STATE_DIRECTORY]
    _check_directory(final)
    names = list_names(final)
    if not names:  # a finished target may be read-only
        _check_writable(final)
    return names


def refuse_occupied(
    final: Location, *, overwrite: bool, brings_others: bool = False, touched: Callable[[], str] = str
) -> None:
    """Refuse a target that is not empty, unless it is a checkpoint that may be overwritten.

    `brings_others`: loaders of the target expect other files beside its own. `touched` returns an addition to the
    message.
    """
    foreign = foreign_names(final, own_names(final))
    if foreign:
        # for example a model's config.json
        later = (
            f", and back when the checkpoint is complete; {option('like')} copies a model's files"
            if brings_others
            else ""
        )
        raise TargetError(
            f"{final}: is not empty and holds foreign files ({', '.join(map(printable, foreign[:5]))}). "
            f"Name another target, or move them away{later}"
        )
    if not overwrite:
        raise TargetError(
            f"{final}: is not empty. Name another target, or pass {option('overwrite', True)} to replace it{touched()}"
        )


def manifest_to_keep(final: Location, *, overwrite: bool) -> Manifest | None:
    """Return the manifest at a target; None if there is none, or a damaged one that may be overwritten."""
    try:
        return read_manifest(final)
    except TargetError as error:
        if overwrite:
            return None
        raise TargetError(
            f"{error.marked}. Restore it, or pass {option('overwrite', True)} to convert again"
        ) from error


def check_beside(final: Location) -> None:
    """Raise TargetError if a working directory beside a target is a link, or has a foreign file."""
    if not is_built_beside(final):
        return
    working = working_location(final)
    check_working(working, STATE_LISTING, may_be_own)
    state = working.child(STATE_DIRECTORY)
    identity, manifest = state.child(IDENTITY_NAME).path, state.child(MANIFEST_NAME).path
    # looked for twice: another run may publish the directory in between
    if os.path.lexists(manifest) and not os.path.lexists(identity) and os.path.lexists(manifest):
        raise TargetError(
            f"{working}: holds a finished conversion, but not its {IDENTITY_NAME}. {final} is put together there: move "
            "it away"
        )
    replaced = replaced_location(final)
    check_replaced(replaced, own_names(replaced))


def check_new_place(final: Location) -> None:
    """Check that a directory can be created at a place."""
    _check_directory(final)
    _check_writable(final)


def _check_directory(final: Location) -> None:
    existing = _existing(final)
    # another run may move it aside at any moment
    with mapped_errors(final, "look at its place"), suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(existing).st_mode):
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
    """Return the place itself, or its nearest existing parent directory."""
    existing = final.path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    return existing

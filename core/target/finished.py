"""Finds the finished conversion that a URL means: the target itself, or one of the steps in its directory."""

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.errors import InputError
from reshard.core.layouts.any_layout import tracked_steps
from reshard.core.layouts.manifests import read_manifest
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import exists
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY, list_names
from reshard.core.storage.urls import Location

_MAX_LISTED = 6


class Finished(Record):
    """A finished conversion; `notes` say why it was chosen among several steps."""

    location: Location
    manifest: Manifest
    notes: tuple[str, ...] = ()


def find_finished(location: Location, doing: str = "verifying", to_do: str = "verify") -> Finished:
    """Find the finished conversion that a target means: itself, or one of its steps.

    `doing` and `to_do` say in the note on the choice what it is for.

    Raises:
        InputError: there is none, or it is not clear which one is meant.
        TargetError: its manifest is damaged.
        StorageError: it cannot be read.
    """
    manifest = read_manifest(location)
    if manifest is not None:
        return Finished(location, manifest)
    if not exists(location):
        near = did_you_mean(location)
        raise InputError(f"{location}: does not exist{near or ': name the directory of a finished conversion'}")
    steps = tracked_steps(location, list_names(location))
    directories = steps.directories if steps else {}
    finished = [
        number for number, name in directories.items() if exists(location.child(name, STATE_DIRECTORY, MANIFEST_NAME))
    ]
    if steps is None or not finished:
        raise InputError(
            f"{location}: has no .reshard/manifest.json: it is not a finished conversion, or was not made by reshard"
        )
    word, tracker = steps.tracker.word, steps.tracker.name
    tracked = steps.read_tracker() if len(finished) > 1 else finished[0]
    if tracked not in finished:
        raise InputError(
            f"{location}: has several {word}s that are finished conversions, and no {tracker} that names "
            f"one of them: name one, such as {location.child(directories[finished[-1]])}"
        )
    chosen = find_finished(location.child(directories[tracked]), doing, to_do)
    if len(directories) == 1:
        return chosen
    why = f"which {tracker} names" if len(finished) > 1 else "the only finished conversion there"
    others = listed([str(number) for number in directories if number != tracked], _MAX_LISTED)
    note = f"{location}: {doing} {word} {tracked}, {why}, and not {others}; to {to_do} another, name its directory"
    return replace(chosen, notes=(note,))

"""Finds the tag that a URL means: one itself, or the one that `latest` beside several names."""

from collections.abc import Mapping, Sequence

from reshard.core.errors import CatalogError, LayoutError
from reshard.core.layouts.deepspeed.names import LATEST_NAME, is_tag, parse_tag, read_latest
from reshard.core.layouts.deepspeed.tag_files import tag_files
from reshard.core.layouts.step_choice import NumberedSteps, check_asked
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location
from reshard.core.text.options import source_option

_MAX_LISTED = 6


class Tag(Record):
    """The directory of one save.

    Attributes:
        url: the checkpoint, as it was named: this directory, or the one of all.
        number: the step in its name; None if its name has none.
        names: all names in the directory.
        numbers: the steps of all tags beside it, ascending; empty if it was named itself.
        notes: what was chosen and why.
    """

    url: str
    location: Location
    number: int | None
    names: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Tags(Record):
    """The tags in a directory: `numbered` are those with a step, ascending; `latest` is what the file of it says."""

    root: Location
    numbered: Mapping[int, str]
    latest: str | None

    @property
    def newest_complete(self) -> int | None:
        """The step of the tag that `latest` names; None if it names another kind of tag, or is not there."""
        return None if self.latest is None else parse_tag(self.latest)


def list_tags(root: Location, names: Sequence[str]) -> Tags | None:
    """Return the tags in a directory with these names; None if there are none.

    Raises:
        CatalogError: `latest` names no tag, or one that is not there.
        StorageError: the storage does not answer.
    """
    found = {number: name for name in names if (number := parse_tag(name)) is not None}
    numbered = dict(sorted(found.items())) if newest_tag(root, names) else {}
    if LATEST_NAME not in names:
        return Tags(root, numbered, None) if numbered else None
    if not numbered and not _is_training(root, names):
        return None
    return Tags(root, numbered, read_latest(root))


def newest_tag(root: Location, names: Sequence[str]) -> str:
    """Return the name of the newest tag with a step in a directory with these names; empty if there is none."""
    found = {number: name for name in names if (number := parse_tag(name)) is not None}
    newest = sorted(found, reverse=True)[:_MAX_LISTED]  # some may be empty yet, or torn
    tags = (found[number] for number in newest if is_tag(names_if_directory(root.child(found[number]))))
    return next(tags, "")


def tag_in(location: Location, names: Sequence[str], step: str = "") -> Tag | None:
    """Return the tag that a step means in a directory with these names; None if it is of another layout.

    Raises:
        CatalogError: there is no such tag, or none is complete.
        StorageError: the storage does not answer.
    """
    if is_tag(names):
        number = parse_tag(location.name)
        check_asked(location, "step", number, step)
        return Tag(str(location), location, number, tuple(names))
    tags = list_tags(location, names)
    if tags is None:
        return None
    name, notes = choose_tag(tags, step)
    directory = location.child(name)
    inside = tuple(names_if_directory(directory))
    if not is_tag(inside):
        raise CatalogError(f"{directory}: has no file of a rank: it was not saved completely")
    return Tag(str(location), directory, parse_tag(name), inside, tuple(tags.numbered), notes)


def choose_tag(tags: Tags, step: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of the tag to read, and notes on the choice.

    Raises:
        CatalogError: there is no such tag, or none is complete.
        StorageError: the storage does not answer.
    """
    steps = NumberedSteps(tags.root, tags.numbered, incomplete)
    if step:
        return tags.numbered[steps.asked(step)], ()
    if tags.latest is None:
        number, notes = steps.newest_complete(f"file {LATEST_NAME!r}")
        return tags.numbered[number], notes
    if not names_if_directory(tags.root.child(tags.latest)):
        raise CatalogError(
            f"{tags.root}: {LATEST_NAME} names the tag {tags.latest!r}, which is not there; there are {steps.there}: "
            f"name one with {source_option('step')}"
        )
    tracked = tags.newest_complete
    notes = () if tracked is None else steps.newer_notes(tracked, f"{LATEST_NAME} names {tags.latest}")
    return tags.latest, notes


def incomplete(directory: Location) -> str:
    """Return what a tag's directory lacks, by names alone; empty if nothing."""
    try:
        tag_files(names_if_directory(directory))
    except LayoutError as error:
        return error.marked
    return ""


def _is_training(root: Location, names: Sequence[str]) -> bool:
    """True if `latest` names the directory of a tag that has no number: others have files of this name, too."""
    try:
        latest = read_latest(root)
    except CatalogError:
        return False
    return latest in names and is_tag(names_if_directory(root.child(latest or "")))

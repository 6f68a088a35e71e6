"""The directories that a source is in."""

from collections.abc import Collection

from reshard.core.storage.listing import kind_of, unless_missing
from reshard.core.storage.patterns import RANK_FIELD
from reshard.core.storage.store import FILE
from reshard.core.storage.urls import Location


def directory_of(source: Location) -> Location:
    """Return the directory of a source: the one that a pattern's files, or a single file, are in."""
    place = source
    while RANK_FIELD in place.path:
        place = place.parent
    if place == source and unless_missing(lambda: kind_of(source)) == FILE:
        return source.parent
    return place


def common_directory(files: Collection[Location]) -> Location:
    """Return the deepest directory that all files are in."""
    folders = [file.parent for file in files]
    place = min(folders, key=lambda each: len(each.path))
    while not all(f"{each.path}/".startswith(f"{place.path.rstrip('/')}/") for each in folders):
        place = place.parent
    return place

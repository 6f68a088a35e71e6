"""Checks where results may be written: apart from the source, and over nothing that exists."""

from reshard.core.errors import InputError, TargetError
from reshard.core.storage.listing import kind_of
from reshard.core.storage.patterns import Relation, relation_of
from reshard.core.storage.publishing import PARTIAL_SUFFIX, REPLACED_SUFFIX
from reshard.core.storage.urls import Location
from reshard.core.text.options import option


def check_apart(source: Location, final: Location) -> None:
    """Check that source and target do not overlap, and that the target's name is UTF-8 text for the records.

    The source may be a pattern with `{rank}`.

    Raises:
        TargetError: they overlap, or the name is not UTF-8.
    """
    try:
        final.path.encode()
    except UnicodeEncodeError as error:
        raise TargetError(f"{final}: its name is not UTF-8 text; name another target") from error
    store, path = source.store.origin(source.path)
    if not store.is_same(final.store):
        return
    for suffix in ("", PARTIAL_SUFFIX, REPLACED_SUFFIX):
        found = relation_of(final.path + suffix, path)
        if found is Relation.AT and not suffix:
            is_pattern = path != final.path
            what = f"can be a part of the source {source}" if is_pattern else "is the source itself"
            raise TargetError(f"{final}: {what}; name another target")
        if found is Relation.INSIDE:
            raise TargetError(f"{final}: lies inside the source {source}; name another target")
        if found is not None:
            raise TargetError(
                f"{final}: the source {source} lies inside it, or in the directory where it is built; "
                "name another target"
            )


def check_new_file(location: Location, source: Location, overwrite: bool) -> None:
    """Check that a file made from `source` may be written.

    Raises:
        InputError: the file exists, or is a directory.
        TargetError: the file is inside the source.
    """
    # inside, it would pass for another rank's file next time
    check_apart(source, location)
    kind = kind_of(location)
    if kind == "directory":
        raise InputError(f"{location}: is a directory; name the file to be written")
    if not overwrite and kind is not None:
        raise InputError(
            f"{location}: already exists. Name another file, or pass {option('overwrite', True)} to replace it"
        )

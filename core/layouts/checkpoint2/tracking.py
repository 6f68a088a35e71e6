"""Checks the tracker that is to name an iteration, before that is written."""

from reshard.core.errors import TargetError
from reshard.core.layouts import tracker
from reshard.core.layouts.checkpoint2.names import TRACKER
from reshard.core.layouts.foreign import find_foreign
from reshard.core.storage.publishing import list_names
from reshard.core.storage.urls import Location


def check_tracker(root: Location) -> None:
    """Refuse a tracker that cannot be advanced, and one of another library, which would lose its own place.

    Raises:
        TargetError: the tracker in the directory of all iterations is one of these.
        StorageError: it cannot be read.
    """
    names = list_names(root)
    foreign = find_foreign(names) if TRACKER.name in names else None
    if foreign is not None:
        raise TargetError(f"{root}: is {foreign.title}, whose {TRACKER.name} names its own place: name another target")
    tracker.check_tracker(root, TRACKER)

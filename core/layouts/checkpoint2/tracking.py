"""Makes a committed iteration the one to load: checks its tracker beforehand, and advances it afterwards."""

from reshard.core.errors import TargetError
from reshard.core.layouts.checkpoint2.names import TRACKER_NAME
from reshard.core.layouts.checkpoint2.tracker import advance_tracker, read_tracker, refused_as_target
from reshard.core.layouts.foreign import find_foreign
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.publishing import list_names
from reshard.core.storage.urls import Location


def check_tracker(root: Location) -> None:
    """Refuse a tracker that cannot be advanced, and one of another library, which would lose its own place.

    Raises:
        TargetError: the tracker in the directory of all iterations is one of these.
        StorageError: it cannot be read.
    """
    names = list_names(root)
    foreign = find_foreign(names) if TRACKER_NAME in names else None
    if foreign is not None:
        raise TargetError(f"{root}: is {foreign.title}, whose {TRACKER_NAME} names its own place: name another target")
    with refused_as_target():
        read_tracker(root)


def track(root: Location, number: int) -> None:
    """Name an iteration in the tracker of the directory of all, unless that names a newer one.

    Raises:
        TargetError: the tracker holds no number.
        StorageError: it cannot be read or written.
    """
    with refused_as_target():
        named = advance_tracker(root, number)
    if named > number:
        current_progress().note(f"{root.child(TRACKER_NAME)} names iteration {named}, which is newer, as before")

"""Makes a committed target the one that Megatron loads: checks its tracker beforehand, and advances it afterwards."""

from reshard.core.layouts.checkpoint2.tracker import advance_tracker, read_tracker, refused_as_target
from reshard.core.layouts.megatron.names import RELEASE, TRACKER_NAME, iteration_name
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.urls import Location

_WORDS = {RELEASE: 0}


def check_tracker(root: Location) -> None:
    """Refuse a tracker that cannot be advanced.

    Raises:
        TargetError: it names something else than an iteration or a release.
        StorageError: it cannot be read.
    """
    with refused_as_target():
        read_tracker(root, _WORDS)


def track(root: Location, iteration: int) -> None:
    """Name an iteration, or the release, in the tracker of the directory of all, unless that names a newer one.

    Raises:
        TargetError: the tracker names something else.
        StorageError: it cannot be read or written.
    """
    with refused_as_target():
        named = advance_tracker(root, iteration, _WORDS)
    if named > iteration:
        current_progress().note(
            f"{root.child(TRACKER_NAME)} names iteration {named}, which is newer than {iteration_name(iteration)}, as "
            "before"
        )

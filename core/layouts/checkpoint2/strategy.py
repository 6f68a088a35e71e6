"""The strategy in the metadata of a Checkpoint 2.0."""

from collections.abc import Sequence

from reshard.core.errors import StrategyError
from reshard.core.layouts.checkpoint2.names import MAX_METADATA_BYTES, METADATA_NAME, TRACKER, iteration_name
from reshard.core.layouts.tracker import read_tracker
from reshard.core.storage.listing import exists
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy


def read_tracked_strategy(location: Location, names: Sequence[str] | None) -> Strategy | None:
    """Read the layouts of a metadata file (`names` is None), an iteration's directory, or the one of all iterations.

    Returns:
        None if neither metadata nor a tracker is there.

    Raises:
        StrategyError: the metadata is damaged, or the tracker names no iteration that is there.
        StorageError: a file cannot be read.
    """
    if names is None:
        return _read(location) if location.name == METADATA_NAME else None
    if METADATA_NAME in names:
        return _read(location.child(METADATA_NAME))
    if TRACKER.name not in names:
        return None
    tracked = iteration_name(read_tracker(location, TRACKER) or 0)
    if not exists(location.child(tracked)):
        raise StrategyError(
            f"{location}: has {TRACKER.name}, but not the directory {tracked}: it is not a Checkpoint 2.0, or that "
            "iteration was removed. Name the directory or the file of a strategy"
        )
    return _read(location.child(tracked, METADATA_NAME))


def _read(location: Location) -> Strategy:
    from reshard.core.layouts.checkpoint2.metadata import parse_metadata

    return parse_metadata(read_small_file(location, MAX_METADATA_BYTES), str(location)).strategy

"""Files of placed shards that cannot be used: a checkpoint does without them if other files hold the same shards."""

from collections.abc import Mapping, Sequence

from reshard.core.errors import CatalogError, StrategyError
from reshard.core.layouts.placed_shards import ShardFile, placed_strategy
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.wording import listed
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option

MISSING = "is missing"
_MAX_LISTED = 8


def lost_text(origin: str, lost: Mapping[str, str]) -> str:
    """Return which files cannot be used, as a sentence; `lost` maps the path of each to why."""
    return (
        f"{origin}: files cannot be used: {listed([f'{path} {why}' for path, why in lost.items()], _MAX_LISTED, '; ')}"
    )


def strategy_without(files: Sequence[ShardFile], origin: str, lost: Mapping[str, str]) -> Strategy:
    """Return the boxes of all parameters over the parts of the usable files, without the lost ones.

    Raises:
        CatalogError: what is lost is in no other file.
        StrategyError: nothing is lost, and the shards do not go together.
    """
    try:
        return placed_strategy(files, origin)
    except StrategyError as error:
        if not lost:
            raise
        why = "The other files do not hold the whole model: restore these"
        raise CatalogError(f"{lost_text(origin, lost)}. {why}") from error


def notes_of_lost(origin: str, lost: Mapping[str, str], options: CatalogOptions) -> list[str]:
    """Return a note if files are lost, which the others make up for.

    Raises:
        CatalogError: files are lost, and the user did not choose to do without them.
    """
    if not lost:
        return []
    text = lost_text(origin, lost)
    if not options.damage.recovers:
        raise CatalogError(
            f"{text}. What they hold is in other files as well: {option('recover', True)} does without them"
        )
    return [f"{text}; what they hold was in other files as well"]

"""Compares samples of large parameters that no strategy covers: if they differ between ranks, they may be sharded.

Small ones are digested whole while the catalog is made.
"""

from collections.abc import Iterator, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.content_samples import read_samples
from reshard.core.plan.model import PassedThroughParameter
from reshard.core.runtime.wording import listed
from reshard.core.source.gaps import content_key

_MAX_PARAMETERS = 32
_SAMPLE_BYTES = 1 << 14


def differing_samples(catalog: CheckpointCatalog, passed_through: Sequence[PassedThroughParameter]) -> list[str]:
    """Return the source parameters whose samples differ between ranks.

    Raises:
        CatalogError: a file is not laid out as assumed.
        StorageError: a file cannot be read.
    """
    unread = [each for each in passed_through if _is_unread(catalog, each)]
    return [each.source_name for each in unread[:_MAX_PARAMETERS] if _differs(catalog, each)]


def outside_warnings(catalog: CheckpointCatalog, passed_through: Sequence[PassedThroughParameter]) -> Iterator[str]:
    """Warn about parameters that every target rank gets from one source rank, and that differ between these.

    Raises:
        CatalogError: a file is not laid out as assumed.
        StorageError: a file cannot be read.
    """
    differing = differing_samples(catalog, passed_through)
    if differing:
        yield (
            f"in no strategy, but different on different source ranks, as samples show: {listed(differing)}; every "
            "target rank gets its counterpart's. If they are sharded, they are missing in the source strategy"
        )


def _is_unread(catalog: CheckpointCatalog, parameter: PassedThroughParameter) -> bool:
    """True if several ranks hold a parameter, and none of its contents was read."""
    if len(parameter.owners) < 2:
        return False
    first = min(parameter.owners)
    has_contents = bool(catalog.records[first].index.entries[parameter.source_name].extents)
    return has_contents and content_key(catalog, first, parameter.source_name) is None


def _differs(catalog: CheckpointCatalog, parameter: PassedThroughParameter) -> bool:
    """True if the beginnings differ on the first two, the middle and the last of the ranks that hold a parameter."""
    owners = sorted(parameter.owners)
    ranks = dict.fromkeys((owners[0], owners[1], owners[len(owners) // 2], owners[-1]))
    return len({*read_samples(catalog, list(ranks), parameter.source_name, _SAMPLE_BYTES)}) > 1

"""Holds what a match takes from a source against what the source's files hold.

Everything that reads a checkpoint by its strategy passes these checks, or one command would take for whole what another
refuses: conversions, loads, comparisons, fingerprints and the assessment of damage.
"""

from reshard.core.plan.model import ParameterMatch
from reshard.core.source.absences import check_absences
from reshard.core.source.opening import Source
from reshard.core.source.sample_checks import SampleFindings
from reshard.core.source.strategy_warnings import integrated_save_warnings


def match_warnings(source: Source, match: ParameterMatch, samples: SampleFindings | None = None) -> tuple[str, ...]:
    """Warnings for the user about a match of a source's parameters; `samples` are read if they are None and matter.

    Raises:
        StrategyError: the files contradict the strategy, and it is not trusted.
        CatalogError: a file is not laid out as assumed.
        StorageError: a file cannot be read.
    """
    catalog, strategy, shards = source.catalog, source.strategy, source.shards
    if strategy is None:
        return ()
    absences: tuple[str, ...] = ()
    # where slices are lost, that is the finding
    if not (match.lost or catalog.unified or strategy.lists_boxes):
        absences = check_absences(catalog, strategy, shards.by_name, trusted=source.is_trusted)
    return absences + integrated_save_warnings(
        catalog, strategy, match, source.integrated_save, samples=samples, trusted=source.is_trusted, shards=shards
    )

"""Holds what a match takes from a source against what the source's files hold.

Everything that reads a checkpoint by its strategy passes these checks, or one command would take for whole what another
refuses: conversions, loads, comparisons, fingerprints and the assessment of damage.
"""

from reshard.core.plan.model import ParameterMatch
from reshard.core.source.absences import check_absences
from reshard.core.source.opening import Source
from reshard.core.source.sample_checks import SampleFindings
from reshard.core.source.strategy_warnings import integrated_save_warnings, strategy_warnings


def match_warnings(source: Source, match: ParameterMatch, samples: SampleFindings | None = None) -> tuple[str, ...]:
    """Warnings for the user about a match of a source's parameters.

    `samples` are those that the strategy was compared with; without them, it is compared here.

    Raises:
        StrategyError: the files contradict the strategy, and it is not trusted.
        CatalogError: a file is not laid out as assumed.
        StorageError: a file cannot be read.
    """
    catalog, strategy, shards = source.catalog, source.strategy, source.shards
    if strategy is None:
        return ()
    asked, trusted = source.integrated_save, source.is_trusted
    warnings: tuple[str, ...] = ()
    if not (catalog.has_whole_tensors or strategy.lists_boxes):
        if samples is None:
            warnings, samples = strategy_warnings(
                catalog, strategy, integrated_save=asked, trusted=trusted, shards=shards
            )
        if not match.lost:  # where slices are lost, that is the finding
            warnings += check_absences(catalog, strategy, shards.by_name, trusted=trusted)
    return warnings + integrated_save_warnings(
        catalog, strategy, match, asked, samples=samples, trusted=trusted, shards=shards
    )

"""A unified checkpoint as a source has a strategy, too: each of its files is a stage of one device."""

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import whole_layout


def strategy_of(catalog: CheckpointCatalog) -> Strategy | None:
    """The strategy of a unified checkpoint: whole tensors, each in one file; None of any other checkpoint.

    What is outside of it has no layout, and is carried as what training left there would be.
    """
    if not catalog.unified:
        return None
    outside = frozenset(catalog.outside)
    stages = tuple(
        StageStrategy(
            rank,
            {
                name: whole_layout(len(entry.shape))
                for name, entry in record.index.entries.items()
                if name not in outside
            },
            devices=1,
        )
        for rank, record in catalog.records.items()
    )
    return Strategy(stages, catalog.url)

"""The strategy of a checkpoint of whole tensors: each of its files is a stage of one device."""

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import whole_layout


def strategy_of_files(catalog: CheckpointCatalog) -> Strategy:
    """Return the strategy of a catalog whose tensors are whole, each in one file.

    Parameters outside of it (`catalog.outside`) have no layout and are passed through, as any that no strategy knows.
    """
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

"""Checkpoints of whole tensors, each in one file: options that make no sense for them, description, strategy."""

from collections.abc import Sequence
from typing import ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.layouts.source_layout import CatalogOptions, Document, FoundCheckpoint
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.text.options import option, source_option


class FoundWholeTensors(FoundCheckpoint):
    """A checkpoint of whole tensors that was found; `title` is what messages call it."""

    title: ClassVar[str]
    has_whole_tensors: ClassVar[bool] = True

    @property
    def strategy_refusal(self) -> str:
        """Its tensors are whole."""
        return f"{self.url}: is a {self.title}: its tensors are whole, so leave out {source_option('source_strategy')}"

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse a strategy, other steps and replicas."""
        if options.ranks is not None:
            raise CatalogError(self.strategy_refusal)
        if options.step or options.source_prefix:
            self.check_left_out([source_option("step"), option("source_prefix")], "without steps or prefixes")
        if options.damage.recovers:
            self.check_left_out([option("recover", True)], "which has everything once and so nothing to recover from")

    def sharding_of(self, catalog: CheckpointCatalog) -> Strategy | None:
        """Each file is a stage of one device."""
        return strategy_of_files(catalog) if catalog.records else None


def describe_whole_tensors(
    kind: str, catalog: CheckpointCatalog, index_name: str | None, ignored: Sequence[str]
) -> Document:
    """Describe a checkpoint of whole tensors by its files, which were opened and compared with its index."""
    return {
        "kind": kind,
        "url": catalog.url,
        "index": index_name,
        "files": [
            {
                "file": record.location.rpartition("/")[2],
                "size_bytes": record.size_bytes,
                "parameters": [
                    {"name": entry.name, "dtype": entry.dtype.name, "shape": list(entry.shape)}
                    for entry in record.index.entries.values()
                ],
            }
            for record in catalog.records.values()
        ],
        "in_no_strategy": sorted(set(catalog.outside)),
        "notes": list(catalog.notes),
        "ignored": list(ignored),
    }


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

"""A source read by the strategy of one pipeline stage of several."""

from collections.abc import Collection
from contextlib import closing

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.layouts.source_layout import FoundCheckpoint
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.wording import rank_names
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy


def of_own_stage(source: Strategy, catalog: CheckpointCatalog, found: FoundCheckpoint) -> CheckpointCatalog:
    """The catalog under one stage's own strategy; further ranks are other stages', if they lack its parameters.

    Raises:
        CatalogError: further ranks hold all of them: the strategy is of another world size.
    """
    extra = [rank for rank in found.ranks if rank not in source.ranks]
    indexes = catalog.indexes()
    known = {name for index in indexes for name in index.entries} & source.parameters
    scattered = any(not known <= index.entries.keys() for index in indexes)
    contradicts = len({*found.ranks, *catalog.lost}) % source.devices_per_stage != 0
    stages: dict[int, list[int]] = {}
    for rank in extra:
        stages.setdefault(rank // source.devices_per_stage, []).append(rank)
    for ranks in stages.values():
        # the ranks of a stage hold the same names, so its first one is enough, unless redundancy was removed
        files = [found.files[rank][0].location for rank in (ranks if scattered else ranks[:1])]
        contradicts = contradicts or known <= {name for location in files for name in _names_in(location)}
    if contradicts:
        raise CatalogError(
            f"{catalog.url}: has {len(found.ranks)} ranks, but the source strategy {source.origin} has "
            f"{source.devices_per_stage}: it is another checkpoint's, or one pipeline stage's of several"
        )
    if not extra:
        return catalog
    here, there = rank_names(list(source.ranks), 3), rank_names(extra, 3)
    warning = (
        f"the source strategy is stage {source.stages[0].stage}'s own: only {here} are converted, and the parameters "
        f"of {there} are NOT in the result. Name the directory of all ranks' strategies to convert everything"
    )
    return replace(catalog, notes=(warning, *catalog.notes))


def _names_in(location: Location) -> Collection[str]:
    with closing(open_checkpoint(location, source_key())) as file:
        return read_index(file).entries.keys()

"""Recognizes files that were truncated exactly between two entries, and so can be read to their end.

Removing redundancy leaves n replicas of every slice, the same n for all; k replicas of a slice that only k < n ranks
share. A `.ckpt` has no mark of it. The slices missing from a truncated file have fewer replicas than others, and its
entries are the first ones of another file of its stage. A file for which both is true counts as damaged. So does one
whose entries are the first ones of another, without the CRC that the other has.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

from reshard.core.checkpoint.catalog import CatalogRecord, by_index
from reshard.core.errors import LayoutError
from reshard.core.runtime.wording import counted
from reshard.core.strategy.model import Strategy


def torn_ranks(records: Mapping[int, CatalogRecord], strategy: Strategy) -> dict[int, str]:
    """The ranks whose files seem to have been cut off between two entries, and why."""
    suspects: dict[int, CatalogRecord] = {}
    for stage in strategy.stages:
        suspects |= _beginnings_of_others([records[rank] for rank in strategy.stage_ranks(stage) if rank in records])
    if not suspects:
        return {}
    uniform = has_uniform_replicas(records, strategy)
    return {
        rank: (
            f"seems to have been cut off after {counted(len(records[rank].index.entries), 'parameter')}, with which "
            f"rank_{other.rank}'s file ({other.location}) begins as well, which has {len(other.index.entries)}"
        )
        for rank, other in suspects.items()
        if not uniform or (other.index.has_crc and not records[rank].index.has_crc)
    }


def _beginnings_of_others(records: list[CatalogRecord]) -> dict[int, CatalogRecord]:
    """Ranks whose files hold the first entries of another's, and no others -> that other."""
    by_names: dict[tuple[str, ...], list[CatalogRecord]] = {}
    for alike in by_index(records):
        index = alike[0].index
        if not index.redundancy_removed:  # such a file is marked as lacking entries
            by_names.setdefault(tuple(index.entries), []).extend(alike)
    # in this order a name list is followed by those that begin with it
    found = {}
    for names, following in pairwise(sorted(by_names)):
        if following[: len(names)] == names:
            in_order = sorted(by_names[names], key=lambda record: record.rank)
            found.update({record.rank: by_names[following][0] for record in in_order})
    return found


def has_uniform_replicas(records: Mapping[int, CatalogRecord], strategy: Strategy) -> bool:
    """True if all slices have n replicas, or as many as ranks share them, for one n."""
    most, fewest = 1, math.inf
    for stage in strategy.stages:
        ranks = strategy.stage_ranks(stage)
        indexes = {rank: records[rank].index for rank in ranks if rank in records}
        for name, layout in stage.layouts.items():
            present = {rank for rank, index in indexes.items() if name in index.entries}
            if not present:
                continue
            try:
                shards = layout.shard_grid(len(indexes[min(present)].entries[name].shape)).owners.values()
            except LayoutError:
                continue  # an error of the plan, which names the parameter
            for owners in shards:
                replicas = sum(ranks.start + rank in present for rank in owners)
                without_file = sum(ranks.start + rank not in indexes for rank in owners)
                most = max(most, replicas)
                if replicas + without_file < len(owners):
                    fewest = min(fewest, replicas + without_file)
    return most <= fewest

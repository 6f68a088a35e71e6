"""What files have of the fingerprints of a checkpoint's parameters, taken in by many threads, and what came of it."""

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.plan.matching import ReshardedParameter
from reshard.core.plan.ownership import SourceCopy
from reshard.core.plan.plan import ConversionPlan
from reshard.core.source.damage import TELLING_STEPS
from reshard.core.source.replicas import differing_copies_text
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.fingerprint import combined
from reshard.core.verification.shard_fingerprints import Cells, Share


@dataclass(frozen=True)
class Contents:
    """What was read of parameters.

    Attributes:
        fingerprints: of each parameter; several if no strategy knows it, and ranks have different contents.
        differing: which copies differ although they should be alike, in sentences.
    """

    fingerprints: Mapping[str, tuple[int, ...]]
    differing: tuple[str, ...]


class Tallies:
    """Takes in what files have of the fingerprints of parameters."""

    def __init__(self, plan: ConversionPlan, names: frozenset[str], casts: Mapping[str, DType]) -> None:
        self.casts = casts
        self._copies: dict[str, list[Cells]] = {}
        self._by_ranks: dict[range, dict[str, Cells]] = {}
        for parameter in plan.match.resharded:
            if parameter.name not in names:
                continue
            for copy in _copies(plan, parameter):
                cells = Cells(copy.layout, parameter.shape, copy.first_rank)
                self._copies.setdefault(parameter.name, []).append(cells)
                self._by_ranks.setdefault(cells.ranks, {})[parameter.name] = cells
        # what no strategy knows: each rank's is by itself
        self._loose: dict[str, dict[int, int]] = {
            carried.name: dict.fromkeys(sorted(carried.owners), 0)
            for carried in plan.match.passed_through
            if carried.name in names
        }
        self._lock = threading.Lock()

    def shares(self, record: CatalogRecord) -> dict[str, list[Share]]:
        """What the entries of a rank's file count for."""
        cells = self._cells_of(record.rank)
        shares = {}
        for name, entry in record.index.entries.items():
            if name in cells:
                start = cells[name].box(record.rank).start
            elif name in self._loose:
                start = (0,) * len(entry.shape)
            else:
                continue
            shares[name] = [Share(name, start, dtype=self.casts.get(name))]
        return shares

    def add(self, rank: int, parts: Mapping[Hashable, int]) -> None:
        """Takes in what a rank has of parameters' fingerprints, or some of that."""
        cells = self._cells_of(rank)
        with self._lock:
            for key, part in parts.items():
                name = str(key)
                if name in self._loose:
                    self._loose[name][rank] = combined([self._loose[name][rank], part])
                else:
                    cells[name].add(rank, part)

    def contents(self) -> Contents:
        """What came of it, when all files were read; of a parameter that no stage has all of, nothing."""
        fingerprints: dict[str, tuple[int, ...]] = {}
        differing: list[str] = []
        for name, stages in self._copies.items():
            for cells in stages:
                differing += (differing_copies_text(name, str(box), groups) for box, groups in cells.differing())
            wholes: dict[int, list[int]] = {}
            for cells in stages:
                whole = cells.fingerprint()
                if whole is not None:
                    wholes.setdefault(whole, []).extend(cells.holders)
            fingerprints[name] = tuple(wholes)[:1]
            if len(wholes) > 1:
                differing.append(differing_copies_text(name, "which stages share", list(wholes.values())))
        for name, parts in self._loose.items():
            ranks: dict[int, list[int]] = {}
            for rank, part in parts.items():
                ranks.setdefault(part, []).append(rank)
            fingerprints[name] = tuple(ranks)
            if len(ranks) > 1 and name in TELLING_STEPS:
                differing.append(differing_copies_text(name, "which no strategy knows", list(ranks.values())))
        return Contents(fingerprints, tuple(differing))

    def _cells_of(self, rank: int) -> dict[str, Cells]:
        stages = [cells for ranks, cells in self._by_ranks.items() if rank in ranks]
        return stages[0] if len(stages) == 1 else {name: cells for each in stages for name, cells in each.items()}


def _copies(plan: ConversionPlan, parameter: ReshardedParameter) -> list[SourceCopy]:
    """All copies of a parameter, each a pipeline stage's; the one that counts is first."""
    return [copy for _, copy in plan.match.shared.get(parameter.name, ())] or [parameter.copies[0]]

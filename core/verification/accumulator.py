"""The fingerprint accumulator: sums contributions of ranks' files to the fingerprints of parameters.

The comparison of a conversion with its source and the comparison of two checkpoints both read their files through it.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord, by_index
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.source.gaps import STEP_PARAMETERS
from reshard.core.source.replicas import differing_replicas_text
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.segments import Piece
from reshard.core.transfer.read_ranges import ValueChange
from reshard.core.verification.shard_fingerprints import Contribution, ShardFingerprints


class Addend(Record, eq=False):
    """A stage's shards of one tensor, as an addend of a fingerprint.

    Attributes:
        name: the tensor's name in the stage's files.
        shards: the contributions of the stage's ranks.
        pieces: the boxes of the tensor that count; None: all of it, as it is.
        dtype: the floating-point type that values are cast to first; None: as they are.
        factors: reads the factors of the values, if these are scaled.
        change: makes the values, if an adapter changes them.
        missing_ranks: the stage's ranks that lack the tensor, if only one replica of each box is read: the highest
            other rank's. None: all replicas are read.
    """

    name: str
    shards: ShardFingerprints
    pieces: Sequence[Piece] | None = None
    dtype: DType | None = None
    factors: Callable[[range], np.ndarray] | None = None
    missing_ranks: frozenset[int] | None = None
    change: ValueChange | None = None

    def is_read_from(self, rank: int) -> bool:
        """True if the tensor is read from the file of a rank that has it."""
        return self.missing_ranks is None or self.shards.highest_owner(rank, self.missing_ranks) in (rank, None)

    def contributions_of(self, record: CatalogRecord) -> "list[Contribution[Addend]]":
        """The contributions of a rank's file, whether they are to be read or not; none if it lacks the tensor."""
        entry = record.index.entries.get(self.name)
        if entry is None:
            return []
        # a parameter that no strategy knows has no axes here: its shape may be each rank's own
        start = self.shards.box(record.rank).start or (0,) * len(entry.shape)
        pieces = (None,) if self.pieces is None else self.pieces
        return [Contribution(self, start, piece, self.dtype, self.factors, self.change) for piece in pieces]


class FingerprintAccumulator:
    """Sums contributions of ranks' files to addends; thread-safe."""

    def __init__(self, addends: Iterable[Addend]) -> None:
        self._by_ranks: dict[range, list[Addend]] = {}
        for addend in addends:
            self._by_ranks.setdefault(addend.shards.ranks, []).append(addend)
        self._lock = threading.Lock()

    @property
    def names(self) -> frozenset[str]:
        """Names of all entries that count."""
        return frozenset(addend.name for addends in self._by_ranks.values() for addend in addends)

    def addends(self, record: CatalogRecord) -> list[Addend]:
        """The addends to read from a rank's file."""
        return [
            addend
            for ranks, some in self._by_ranks.items()
            if record.rank in ranks
            for addend in some
            if addend.name in record.index.entries
            and (addend.pieces is None or addend.pieces)
            and addend.is_read_from(record.rank)
        ]

    def contributions(self, record: CatalogRecord) -> dict[str, list[Contribution[Addend]]]:
        """The contributions of the entries to read from a rank's file, by their names."""
        found: dict[str, list[Contribution[Addend]]] = {}
        for addend in self.addends(record):
            found.setdefault(addend.name, []).extend(addend.contributions_of(record))
        return found

    def add(self, rank: int, sums: Mapping[Addend, int]) -> None:
        """Add a rank's (possibly partial) contributions."""
        with self._lock:
            for addend, fingerprint in sums.items():
                addend.shards.add(rank, fingerprint)


def stored_bytes(records: Iterable[CatalogRecord], names: Collection[str]) -> int:
    """Bytes that files store of parameters, in all replicas."""
    wanted = frozenset(names)
    total = 0
    for alike in by_index(records):
        entries = alike[0].index.entries.values()
        total += len(alike) * sum(entry.size_bytes for entry in entries if entry.name in wanted)
    return total


class Contents(Record):
    """The contents of parameters.

    Attributes:
        fingerprints: of each parameter; several if no strategy knows it, and ranks have different contents.
        differing: replicas that differ, in sentences.
    """

    fingerprints: Mapping[str, tuple[int, ...]]
    differing: tuple[str, ...]


class CheckpointFingerprints(FingerprintAccumulator):
    """Accumulates fingerprints of a checkpoint's parameters `names`, on all stages; `casts` are cast first."""

    def __init__(self, plan: ConversionPlan, names: frozenset[str], casts: Mapping[str, DType]) -> None:
        self._stages = {
            parameter.name: [
                Addend(
                    parameter.name,
                    ShardFingerprints(copy.layout, parameter.shape, copy.first_rank),
                    dtype=casts.get(parameter.name),
                )
                for copy in dict(plan.match.shared.get(parameter.name, ((0, parameter.copies[0]),))).values()
            ]
            for parameter in plan.match.resharded
            if parameter.name in names
        }
        self._wholes = {
            each.name: Addend(each.name, ShardFingerprints.of_wholes(each.owners), dtype=casts.get(each.name))
            for each in plan.match.passed_through
            if each.name in names
        }
        super().__init__([*(each for stages in self._stages.values() for each in stages), *self._wholes.values()])

    def contents(self) -> Contents:
        """The contents, once all files were read; no fingerprint of a parameter that no stage has all of."""
        fingerprints: dict[str, tuple[int, ...]] = {}
        differing: list[str] = []
        for name, stages in self._stages.items():
            differing += [
                differing_replicas_text(name, str(box), ranks)
                for addend in stages
                for box, ranks in addend.shards.differing()
            ]
            owners: dict[int, list[int]] = {}
            for shards in (each.shards for each in stages):
                whole = shards.fingerprint()
                if whole is not None:
                    owners.setdefault(whole, []).extend(shards.owners)
            fingerprints[name] = tuple(owners)[:1]
            if len(owners) > 1:
                differing.append(differing_replicas_text(name, "which stages share", list(owners.values())))
        for name, addend in self._wholes.items():
            [(_, contents)] = addend.shards.contents()
            fingerprints[name] = tuple(contents)
            if len(contents) > 1 and name in STEP_PARAMETERS:
                differing.append(differing_replicas_text(name, "which no strategy knows", list(contents.values())))
        return Contents(fingerprints, tuple(differing))

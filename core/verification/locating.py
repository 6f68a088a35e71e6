"""Reads source files once more, with threads, to locate values that differ.

read_other_replicas      which of the replicas of a slice differ from one another
sum_boxes                what the boxes of a parameter's target shards should hold
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.runtime.threads import in_phase
from reshard.core.tensor.fingerprint import combined
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import TensorSlice
from reshard.core.verification.accumulator import Addend
from reshard.core.verification.shard_fingerprints import Contribution, sum_contributions

Records = Mapping[int, CatalogRecord]


def read_other_replicas(records: Records, addends: Iterable[Addend], workers: int) -> None:
    """Add the contributions of all ranks that own a replica and were not read."""
    unread: dict[int, list[Addend]] = {}
    for addend in addends:
        for rank in sorted(set(addend.shards.ranks).intersection(records).difference(addend.shards.owners)):
            if addend.contributions_of(records[rank]):
                unread.setdefault(rank, []).append(addend)

    def read(rank: int, advance: Callable[[int], None]) -> dict[Addend, int]:
        contributions: dict[str, list[Contribution[Addend]]] = {}
        for addend in unread[rank]:
            contributions.setdefault(addend.name, []).extend(addend.contributions_of(records[rank]))
        return sum_contributions(records[rank], contributions, advance)

    sizes = {rank: _stored_bytes(records[rank], {addend.name for addend in some}) for rank, some in unread.items()}
    for rank, sums in zip(
        unread, in_phase("comparing replicas", sum(sizes.values()), read, sizes, workers, Event()), strict=True
    ):
        for addend, fingerprint in sums.items():
            addend.shards.put(rank, fingerprint)


def sum_boxes(
    records: Records, addends: Iterable[tuple[Addend, Sequence[Piece]]], boxes: Sequence[TensorSlice], workers: int
) -> dict[TensorSlice, int]:
    """Return the fingerprints of boxes of a target parameter by the source's files.

    `addends` are those of the parameter, each with its pieces; of replicas the lowest rank's is read.
    """
    contributions = {
        (addend, rank): parts
        for addend, pieces in addends
        for rank, shard in _lowest_owners(addend)
        if (parts := [*_contributions(addend, pieces, shard, boxes)])
    }

    def read(item: tuple[Addend, int], advance: Callable[[int], None]) -> dict[TensorSlice, int]:
        addend, rank = item
        return sum_contributions(records[rank], {addend.name: contributions[item]}, advance)

    sizes = {item: _stored_bytes(records[item[1]], {item[0].name}) for item in contributions}
    expected = dict.fromkeys(boxes, 0)
    for sums in in_phase("locating differences", sum(sizes.values()), read, sizes, workers, Event()):
        for box, fingerprint in sums.items():
            expected[box] = combined([expected[box], fingerprint])
    return expected


def _lowest_owners(addend: Addend) -> list[tuple[int, TensorSlice]]:
    return [(next(iter(contents.values()))[0], box) for box, contents in addend.shards.contents() if contents]


def _contributions(
    addend: Addend, pieces: Sequence[Piece], shard: TensorSlice, boxes: Sequence[TensorSlice]
) -> Iterable[Contribution[TensorSlice]]:
    """The contributions of a source shard to boxes of the target."""
    inside = [part for piece in pieces if (part := piece.in_source(shard))]
    for box in boxes:
        for part in inside:
            if (clipped := part.in_target(box)) is not None:
                yield Contribution(box, shard.start, clipped, addend.dtype, addend.factors)


def _stored_bytes(record: CatalogRecord, names: Iterable[str]) -> int:
    return sum(record.index.entries[name].size_bytes for name in names)

"""The comparison of all replicas of each source slice.

Training keeps replicas equal. A replica that differs was damaged, or saved at another moment; a conversion that reads
only one of them would not notice.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import itemgetter

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file, open_record
from reshard.core.checkpoint.shared_bytes import box_text
from reshard.core.errors import CatalogError, LayoutError, raise_problems
from reshard.core.files.any_format import read_index
from reshard.core.files.digests import content_digests
from reshard.core.files.remote_reads import whole_file_readers
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted, rank_names
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout

_BLOCK_BYTES = 4 * 2**20

_Slice = tuple[str, str]
"""A parameter's name and a box of its whole tensor, as text."""


def check_replicas(
    catalog: CheckpointCatalog, source: Strategy, *, integrated: bool, workers: int
) -> CheckpointCatalog:
    """Compare all replicas of each slice, and return the catalog with a note of it.

    `integrated`: every rank holds whole tensors, whatever the sharding in its strategy.
    """
    slices_of = _replicated_slices(catalog, source, integrated)
    owners: dict[_Slice, dict[str, list[int]]] = {}
    lock = threading.Lock()

    def read(record: CatalogRecord) -> None:
        for slice_, digest in _digests(record, slices_of[record.rank]):
            with lock:
                owners.setdefault(slice_, {}).setdefault(digest, []).append(record.rank)

    records = [record for record in catalog.records.values() if slices_of.get(record.rank)]
    in_threads(read, records, whole_file_readers(first_file(catalog), workers), threading.Event())
    differing = [
        differing_replicas_text(name, box, list(ranks.values()))
        for (name, box), ranks in sorted(owners.items(), key=itemgetter(0))
        if len(ranks) > 1
    ]
    raise_problems(CatalogError, f"{catalog.url}: replicas of one slice differ between ranks", differing)
    note = f"all replicas of {counted(len(owners), 'slice')} that several ranks hold were read, and are equal"
    return replace(catalog, notes=(*catalog.notes, note))


def _replicated_slices(catalog: CheckpointCatalog, source: Strategy, integrated: bool) -> dict[int, dict[str, _Slice]]:
    """Rank -> parameter -> its slice, if other ranks hold the same slice."""
    slices_of: dict[int, dict[str, _Slice]] = {}
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        entries_of = {rank: catalog.records[rank].index.entries for rank in ranks if rank in catalog.records}
        for name, layout in stage.layouts.items():
            entry = next((entries[name] for entries in entries_of.values() if name in entries), None)
            if entry is None:
                continue
            if integrated or entry.dtype in (TEXT, MAP_TENSOR):
                layout = whole_layout(len(entry.shape), layout.device_count)
            try:
                grid = layout.shard_grid(len(entry.shape))
            except LayoutError:
                continue  # the plan reports it, with the parameter's name
            for stage_ranks in grid.owners.values():
                owners = [
                    rank for rank in (ranks.start + each for each in stage_ranks) if name in entries_of.get(rank, ())
                ]
                if len(owners) > 1:
                    slice_ = name, box_text(grid, owners[0] - ranks.start, entries_of[owners[0]][name].shape)
                    for rank in owners:
                        slices_of.setdefault(rank, {})[name] = slice_
    return slices_of


def _digests(record: CatalogRecord, slices: dict[str, _Slice]) -> Iterator[tuple[_Slice, str]]:
    with closing(open_record(record)) as file:
        index = read_index(file) if record.assumed else record.index
        entries = [entry for entry in index.entries.values() if entry.name in slices]
        for entry, digest in zip(entries, content_digests(file, entries, _BLOCK_BYTES), strict=True):
            yield slices[entry.name], digest


def differing_replicas_text(name: str, box: str, owners: Sequence[Sequence[int]]) -> str:
    """Message text about differing replicas of a box; `owners` of each content, shown with the commonest first."""
    ordered = sorted((sorted(ranks) for ranks in owners), key=lambda ranks: (-len(ranks), ranks))
    first, *others = [f"on {rank_names(ranks, 4)}" for ranks in ordered[:4]]
    rest = f", and {counted(len(ordered) - 4, 'other')}" if len(ordered) > 4 else ""
    return f"parameter {name!r}, {box}: one content {first}, another {', another '.join(others)}{rest}"

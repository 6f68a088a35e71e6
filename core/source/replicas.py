"""Whether the copies of a slice are the same on all ranks that hold it: every copy is read.

Training keeps replicas equal; what differs was damaged, or saved at different moments, and a conversion that reads one
of them would not notice.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reshard.core.checkpoint.catalog.records import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.digests import content_digests
from reshard.core.checkpoint.encryption.opening import open_checkpoint
from reshard.core.checkpoint.formats.any_format import read_index
from reshard.core.errors import CatalogError, LayoutError
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted, rank_names
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ShardGrid, whole_layout

_BLOCK_BYTES = 4 * 2**20
_REMOTE_FILES_AT_ONCE = 4
"""Each has up to 16 MiB under way."""
_MOST_TOLD = 20


@dataclass(frozen=True)
class _Slice:
    """A slice that several ranks hold; `box` is in the coordinates of the whole tensor."""

    name: str
    box: str


def check_replicas(
    catalog: CheckpointCatalog, source: Strategy, *, integrated: bool, workers: int
) -> CheckpointCatalog:
    """Reads every copy of each slice that ranks share, and gives the catalog back with a note of it.

    `integrated`: every rank holds whole tensors, whatever its strategy cuts.

    Raises:
        CatalogError: copies differ; names parameter, box and ranks.
        StorageError: a file cannot be read.
    """
    shared = _shared_slices(catalog, source, integrated)
    copies: dict[_Slice, dict[str, list[int]]] = {}
    lock = threading.Lock()

    def read(record: CatalogRecord) -> None:
        for slice_, digest in _digests(record, shared[record.rank]):
            with lock:
                copies.setdefault(slice_, {}).setdefault(digest, []).append(record.rank)

    records = [record for record in catalog.records.values() if shared.get(record.rank)]
    is_local = all(parse_url(record.location).is_local for record in records[:1])
    in_threads(read, records, workers if is_local else min(workers, _REMOTE_FILES_AT_ONCE), threading.Event())
    differing = [
        differing_copies_text(slice_.name, slice_.box, list(ranks.values()))
        for slice_, ranks in sorted(copies.items(), key=lambda item: (item[0].name, item[0].box))
        if len(ranks) > 1
    ]
    if differing:
        told = differing[:_MOST_TOLD]
        more = [f"and {len(differing) - len(told)} more"] if len(differing) > len(told) else []
        raise CatalogError("\n  - ".join([f"{catalog.url}: copies of one slice differ between ranks", *told, *more]))
    note = f"all copies of the {counted(len(copies), 'slice')} that several ranks hold were read, and are the same"
    return replace(catalog, notes=(*catalog.notes, note))


def _shared_slices(catalog: CheckpointCatalog, source: Strategy, integrated: bool) -> dict[int, dict[str, _Slice]]:
    """Rank -> parameter -> its slice, of those that other ranks hold as well."""
    shared: dict[int, dict[str, _Slice]] = {}
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        here = {rank: catalog.records[rank].index.entries for rank in ranks if rank in catalog.records}
        for name, layout in stage.layouts.items():
            entry = next((entries[name] for entries in here.values() if name in entries), None)
            if entry is None:
                continue
            if integrated or entry.dtype in (TEXT, MAP_TENSOR):
                layout = whole_layout(len(entry.shape), layout.device_count)
            try:
                cut = layout.shard_grid(len(entry.shape))
            except LayoutError:
                continue  # told by the plan, with the parameter's name
            for cell_ranks in cut.owners.values():
                holders = [
                    ranks.start + rank
                    for rank in cell_ranks
                    if ranks.start + rank in here and name in here[ranks.start + rank]
                ]
                if len(holders) > 1:
                    shape = here[holders[0]][name].shape
                    slice_ = _Slice(name, _box_text(cut, holders[0] - ranks.start, shape))
                    for rank in holders:
                        shared.setdefault(rank, {})[name] = slice_
    return shared


def _box_text(cut: ShardGrid, stage_rank: int, shape: tuple[int, ...]) -> str:
    try:
        return str(cut.box_of(stage_rank, cut.whole_shape(stage_rank, shape)))
    except LayoutError:
        return str(list(shape))  # told by the plan, with the parameter's name


def _digests(record: CatalogRecord, slices: dict[str, _Slice]) -> Iterator[tuple[_Slice, str]]:
    file = open_checkpoint(parse_url(record.location), source_key())
    try:
        index = read_index(file) if record.assumed else record.index
        entries = [entry for entry in index.entries.values() if entry.name in slices]
        buffer = np.empty(_BLOCK_BYTES, np.uint8).data
        for entry, digest in zip(entries, content_digests(file, entries, buffer), strict=True):
            yield slices[entry.name], digest
    finally:
        file.close()


def differing_copies_text(name: str, box: str, groups: Sequence[Sequence[int]]) -> str:
    """That ranks hold different copies of a box, and which: groups with the same content, most copies first."""
    ordered = sorted((sorted(group) for group in groups), key=lambda group: (-len(group), group))
    told = [f"on {rank_names(group, 4)}" for group in ordered[:4]]
    rest = f", and {counted(len(ordered) - 4, 'other')}" if len(ordered) > 4 else ""
    return f"parameter {name!r}, {box}: one content {told[0]}, another {', another '.join(told[1:])}{rest}"

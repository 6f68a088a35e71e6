"""Whether ranks were saved whole (`integrated_save`) although their strategy cuts them, told from contents.

Protobuf strategies do not say how large a tensor is, so a shard of a cut tensor and a whole one look alike from the
headers, and taking one for the other gives tensors of the wrong size. But ranks that should hold different slices hold
the same bytes only if each has all of them, or if the values are all the same anyway. A few parameters are sampled; in
a checkpoint saved in slices the first one, or nearly the first, differs at once.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from core.checkpoint.heads import piece_heads, unlike_error
from core.checkpoint.model import TensorEntry
from core.checkpoint.opening import open_checkpoint
from core.checkpoint.records import CatalogRecord, CheckpointCatalog
from core.dtypes import MAP_TENSOR, TEXT
from core.errors import LayoutError
from core.keys import source_key
from core.layout import Cut
from core.storage.files import read_bytes
from core.storage.requests import at_once
from core.storage.urls import parse_url
from core.strategy.model import StageStrategy, Strategy

_SAMPLED_OF_EACH = 2
_SAMPLED_CELLS = 8
_SAMPLED_BYTES = 2**20
_FIRST_LOOK_BYTES = 4096


def contents_say_whole(catalog: CheckpointCatalog, source: Strategy) -> bool:
    """Whether ranks that should hold different slices hold the same, and it is not all one value.

    Raises:
        CatalogError: a file is not laid out as it was assumed to be.
        StorageError: one cannot be read.
    """
    telling = False
    for stage in source.stages:
        first_rank = source.stage_ranks(stage).start
        for entry, cut in _sampled(catalog, stage, source.stage_ranks(stage)):
            ranks = list(islice(_holders(catalog, entry.name, cut, first_rank), _SAMPLED_CELLS))
            if len(ranks) < 2:
                continue  # the others' slices are on no rank: nothing to compare with
            for length in (_FIRST_LOOK_BYTES, _SAMPLED_BYTES):
                contents = set(beginnings(catalog, ranks, entry.name, length))
                if len(contents) > 1:
                    return False
            telling = telling or not is_one_value(contents.pop(), entry.dtype.itemsize)
    return telling


def _holders(catalog: CheckpointCatalog, name: str, cut: Cut, first_rank: int) -> Iterator[int]:
    """For each slice a rank that holds it, if there is one."""
    for stage_ranks in cut.holders.values():
        for rank in stage_ranks:
            record = catalog.records.get(first_rank + rank)
            if record is not None and name in record.index.entries:
                yield record.rank
                break


def _sampled(catalog: CheckpointCatalog, stage: StageStrategy, ranks: range) -> Iterator[tuple[TensorEntry, Cut]]:
    """The largest of a stage's cut parameters, and the largest of those that can be compared as a whole.

    The former are weights, which are never alike; small ones may be tables that are repeated in every slice.
    """
    indexes = {id(record.index): record.index for rank in ranks if (record := catalog.records.get(rank)) is not None}
    entries: dict[str, TensorEntry] = {}
    for index in indexes.values():
        # the first one's count, and what only others hold
        entries = {**index.entries, **entries}
    found = []
    for name, layout in stage.layouts.items():
        entry = entries.get(name)
        if entry is None or entry.dtype in (TEXT, MAP_TENSOR) or not entry.extents:
            continue
        try:
            cut = layout.cut(len(entry.shape))
        except LayoutError:
            continue  # told by the plan, with the parameter's name
        if not cut.is_whole and not cut.uneven:
            found.append((entry, cut))
    found.sort(key=lambda pair: pair[0].size_bytes, reverse=True)
    small = [pair for pair in found[_SAMPLED_OF_EACH:] if pair[0].size_bytes <= _SAMPLED_BYTES]
    return iter(found[:_SAMPLED_OF_EACH] + small[:_SAMPLED_OF_EACH])


def beginnings(catalog: CheckpointCatalog, ranks: Sequence[int], name: str, length: int) -> Iterator[bytes]:
    """The first `length` bytes of a parameter on each rank; of remote files all are asked for at once.

    Raises:
        CatalogError: a file is not laid out as it was assumed to be.
        StorageError: one cannot be read.
    """
    records = [catalog.records[rank] for rank in ranks]
    read = partial(_beginning, name=name, length=length)
    # threads are worth more than they cost where each waits for a server; to open an encrypted file they may have to
    # wait for one another
    one_by_one = parse_url(records[0].location).is_local or source_key() is not None
    return map(read, records) if one_by_one else at_once(read, records)


def _beginning(record: CatalogRecord, name: str, length: int) -> bytes:
    entry = record.index.entries.get(name)
    if entry is None or not entry.extents:
        return b""
    extent = entry.extents[0]
    offset, head = piece_heads(entry)[0] if record.assumed else (extent.offset, b"")
    file = open_checkpoint(parse_url(record.location), source_key())
    try:
        found = read_bytes(file, offset, len(head) + min(length, extent.length))
    finally:
        file.close()
    if not found.startswith(head):
        raise unlike_error(record.rank, record.location, name, offset)
    return found[len(head) :]


def is_one_value(content: bytes, itemsize: int) -> bool:
    """Whether all elements are the same, so that contents tell nothing."""
    return content == content[:itemsize] * (len(content) // itemsize)

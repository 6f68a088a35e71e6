"""Scans a checkpoint for NaN and Inf: every floating-point parameter in every file, replicas one by one.

It needs no strategy: files are read as they are. A strategy only tells where in the whole tensor a finding is.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.file_shares import FileShare, affordable_workers, file_shares, read_file_blocks
from reshard.core.errors import InputError, LayoutError
from reshard.core.files.model import TensorEntry
from reshard.core.plan.stage_shards import integrated_by_shapes, names_in_order
from reshard.core.request.resources import resources_of
from reshard.core.request.source import FingerprintRequest
from reshard.core.runtime.log import timed
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import Progress, SilentProgress, advancing, current_progress, reporting_to
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted, listed, utf8_text
from reshard.core.source.opened_files import OpenedFiles, open_files
from reshard.core.source.opening import Source
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.float_bits import NonFinite, are_zero, find_non_finite, float_bits, is_unknown
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.text.printing import printable
from reshard.core.verification.scan_report import MAX_PLACES, NonFiniteParameter, ScanPlace, ScanReport
from reshard.core.verification.views import chosen_names

_MAX_UNKNOWN = 4


def scan_checkpoint(
    request: FingerprintRequest, progress: Progress | None = None, resolvers: Mapping[str, Resolver] | None = None
) -> ScanReport:
    """Look for NaN and Inf in a checkpoint's floating-point parameters.

    Raises:
        InputError: the checkpoint or the options are wrong, or no parameter is left to scan.
        StorageError: a file cannot be read.
    """
    started = time.monotonic()
    with reporting_to(progress or SilentProgress()), resources_of(request, resolvers):
        source = with_retries(lambda: open_files(request), current_progress().note)
        names = _names_to_scan(request, source.catalog)
        found = _Found()
        read_bytes = _scan(source.catalog, names, request, found)
        dtypes = {name: entry.dtype for index in source.catalog.indexes() for name, entry in index.entries.items()}
        return ScanReport(
            checkpoint=source.catalog.url,
            step=source.catalog.step,
            files=len(source.catalog.records),
            parameters=len(names),
            non_finite=tuple(_summary(source, name, dtypes[name], found) for name in names if name in found.places),
            zeros=tuple(name for name in names if found.only_zeros.get(name)),
            notes=(*map(utf8_text, source.catalog.notes), *_notes_on_unknown(source.catalog)),
            read_bytes=read_bytes,
            seconds=round(time.monotonic() - started, 3),
        )


class _Place(Record):
    """The NaN and Inf of a parameter in one share of a file; `first` is the index in the file's tensor."""

    rank: int
    nan: int
    inf: int
    first: Shape


class _Found(Struct):
    """What all workers found; changed under its lock.

    Attributes:
        places: parameter -> rank -> its place.
        only_zeros: parameter -> True if all of its elements that were read are zero.
    """

    places: dict[str, dict[int, _Place]] = field(default_factory=dict)
    only_zeros: dict[str, bool] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, share: "_ShareFound", rank: int) -> None:
        """Add what a share of a rank's file has."""
        with self.lock:
            for name, place in share.places.items():
                by_rank = self.places.setdefault(name, {})
                by_rank[rank] = _joined(by_rank[rank], place) if rank in by_rank else place
            for name, is_zero in share.only_zeros.items():
                self.only_zeros[name] = is_zero and self.only_zeros.get(name, True)


class _ShareFound(Struct):
    """What one share of a file has; see `_Found`."""

    rank: int
    places: dict[str, _Place] = field(default_factory=dict)
    only_zeros: dict[str, bool] = field(default_factory=dict)

    def add(self, entry: TensorEntry, box: TensorSlice, values: np.ndarray) -> None:
        """Look at a block of an entry."""
        bits = float_bits(entry.dtype)
        if bits is None or not values.size:
            return
        name = entry.name
        if self.only_zeros.get(name, True):
            self.only_zeros[name] = are_zero(values, bits)
        found = find_non_finite(values, bits)
        if found is not None:
            place = _Place(self.rank, found.nan, found.inf, _index(found, box))
            self.places[name] = _joined(self.places[name], place) if name in self.places else place


def _joined(one: _Place, other: _Place) -> _Place:
    return replace(one, nan=one.nan + other.nan, inf=one.inf + other.inf, first=min(one.first, other.first))


def _index(found: NonFinite, box: TensorSlice) -> Shape:
    """The index, in the file's tensor, of the first NaN or Inf of a block."""
    within = np.unravel_index(found.first, box.shape)
    return tuple(start + int(place) for start, place in zip(box.start, within, strict=True))


def _names_to_scan(request: FingerprintRequest, catalog: CheckpointCatalog) -> list[str]:
    """The floating-point parameters that a request selects."""
    chosen, unused = chosen_names(request, names_in_order(catalog))
    if unused:
        raise InputError(f"{', '.join(sorted(unused))}: no parameter of {catalog.url} has such a name")
    floats = {name for index in catalog.indexes() for name, entry in index.entries.items() if float_bits(entry.dtype)}
    names = [name for name in chosen if name in floats]
    if not names:
        raise InputError(f"{printable(catalog.url)}: nothing to scan: no floating-point parameter is included")
    return names


def _scan(catalog: CheckpointCatalog, names: Sequence[str], request: FingerprintRequest, found: _Found) -> int:
    """Read these parameters of all files; return how many bytes these are."""
    wanted = frozenset(names)
    entries = {record.rank: _entries(record, wanted) for record in catalog.records.values()}
    total_bytes = sum(entry.size_bytes for some in entries.values() for entry in some)
    progress, stop = current_progress(), threading.Event()
    progress.begin("scanning", total_bytes)
    advance = advancing(progress, stop)

    def read(share: FileShare) -> None:
        ranges = share.ranges(entries[share.record.rank])

        def scanned() -> _ShareFound:
            here = _ShareFound(share.record.rank)
            for entry, box, values in read_file_blocks(share.record, ranges):
                here.add(entry, box, values)
                advance(values.nbytes)
            return here

        with timed(f"{share} scanned"):
            found.add(with_retries(scanned, progress.note), share.record.rank)

    work = file_shares(catalog, affordable_workers(request.worker_count, request.memory_limit_bytes))
    in_threads(read, work.shares, work.workers, stop)
    return total_bytes


def _entries(record: CatalogRecord, wanted: frozenset[str]) -> list[TensorEntry]:
    entries = record.index.entries.values()
    return [entry for entry in entries if entry.name in wanted and float_bits(entry.dtype)]


def _summary(opened: OpenedFiles, name: str, dtype: DType, found: _Found) -> NonFiniteParameter:
    places = sorted(found.places[name].values(), key=lambda each: each.rank)
    return NonFiniteParameter(
        name=name,
        dtype=dtype.name,
        nan=sum(each.nan for each in places),
        inf=sum(each.inf for each in places),
        files=len(places),
        places=tuple(_place(opened, name, each) for each in places[:MAX_PLACES]),
    )


def _place(opened: OpenedFiles, name: str, place: _Place) -> ScanPlace:
    record = opened.catalog.records[place.rank]
    start = shard_start(opened, record, name)
    return ScanPlace(
        rank=place.rank,
        file=opened.file_of(place.rank),
        nan=place.nan,
        inf=place.inf,
        first=place.first,
        first_in_whole=None if start is None else tuple(map(sum, zip(start, place.first, strict=True))),
    )


def shard_start(opened: OpenedFiles, record: CatalogRecord, name: str) -> Shape | None:
    """Return where a rank's shard begins in the whole tensor; None if nothing says how the tensor is sharded."""
    shape = record.index.entries[name].shape
    source = opened.source
    if opened.catalog.has_whole_tensors or (source is not None and source.strategy is None):
        return (0,) * len(shape)
    if source is None or source.strategy is None or record.rank not in source.strategy.ranks:
        return None
    stage = source.strategy.stage_of(record.rank)
    layout = stage.layouts.get(name)
    if layout is None:
        return None
    if source.is_integrated:
        return (0,) * len(shape)
    stage_rank = record.rank - source.strategy.stage_ranks(stage).start
    try:
        grid = layout.shard_grid(len(shape))
        if not grid.is_whole and not _are_slices(source):
            return None
        return grid.box_of(stage_rank, grid.whole_shape(stage_rank, shape)).start
    except LayoutError:
        return None


def _are_slices(source: Source) -> bool:
    """True if ranks surely hold slices, as the strategy says, and not whole tensors."""
    asked = source.integrated_save
    return asked is IntegratedSave.NO or integrated_by_shapes(source.shards.by_name, None, {}) is False


def _notes_on_unknown(catalog: CheckpointCatalog) -> Iterator[str]:
    unknown: dict[str, list[str]] = {}
    for index in catalog.indexes():
        for name, entry in index.entries.items():
            if is_unknown(entry.dtype) and name not in unknown.setdefault(entry.dtype.name, []):
                unknown[entry.dtype.name].append(name)
    for dtype, names in unknown.items():
        yield f"not scanned: {counted(len(names), 'parameter')} of the dtype {dtype}: {listed(names, _MAX_UNKNOWN)}"

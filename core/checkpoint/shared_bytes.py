"""The check that no bytes of a file are two pieces of a model, unless these are replicas.

One wrong digit in an index can place two slices of a tensor, or two tensors, at the same bytes, and a link can make one
file of two names. Every tensor is then complete and of its shape, so nothing that looks at tensors one by one notices.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog, by_index
from reshard.core.checkpoint.dense_view import span_bytes
from reshard.core.errors import CatalogError, LayoutError, raise_problems
from reshard.core.runtime.records import Record
from reshard.core.storage.file_versions import file_identity, read_stamp
from reshard.core.storage.joined import parts_of
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ShardGrid
from reshard.core.tensor.slices import Shape


class Piece(Record, order=True):
    """Bytes of a file that a tensor is in: `start` to `stop`. `owner` is the number of whose tensor it is.

    With a `period` it has only runs of `run_bytes` at multiples of the period from `start` on: others fit between them.
    """

    start: int
    stop: int
    owner: int
    name: str
    period: int = 0
    run_bytes: int = 0

    def fits_between(self, other: "Piece") -> bool:
        """True if its runs lie between those of another piece."""
        if not self.period or self.period != other.period:
            return False
        distance = (self.start - other.start) % self.period
        return other.run_bytes <= distance <= self.period - self.run_bytes


def check_bytes_apart(catalog: CheckpointCatalog, strategy: Strategy | None) -> None:
    """Refuse a checkpoint in which the same bytes are two pieces of the model; see `shared_bytes`.

    Raises:
        CatalogError: some are.
        StorageError: a file cannot be looked at.
    """
    headline = f"{catalog.url}: the same bytes are two pieces of the model: an index is damaged, or a link is wrong"
    raise_problems(CatalogError, headline, shared_bytes(catalog, strategy))


def shared_bytes(catalog: CheckpointCatalog, strategy: Strategy | None) -> list[str]:
    """Return where bytes of a file are two pieces of the model, in sentences, one of each file.

    `strategy` tells which slice of a parameter a rank has; without it, and for parameters that it lacks, ranks have
    replicas of the whole.

    Raises:
        StorageError: a file cannot be looked at.
    """

    def described(piece: Piece) -> str:
        return _described(piece, catalog, strategy)

    problems = []
    groups = enumerate(by_index(catalog.records.values()))
    index_of = {record.rank: number for number, alike in groups for record in alike}
    checked: set[int] = set()
    for uses in _by_file(catalog):
        indexes = {index_of[use.record.rank] for use in uses}
        if len(uses) == 1 and indexes <= checked:  # ranks share indexes
            continue
        checked |= indexes
        pieces = [piece for use in uses for piece in use.pieces()]
        problem = shared_text(pieces, described)
        if problem:
            locations = dict.fromkeys(use.record.location for use in uses)
            problems.append(f"{', the same file as '.join(locations)}: {problem}")
    return problems


def shared_text(pieces: Iterable[Piece], described: Callable[[Piece], str]) -> str:
    """Return which two pieces of a file share bytes, in words; empty if none do.

    `described` says what a piece is in the model, equally for replicas, which may share bytes.
    """
    furthest: Piece | None = None
    interleaved: dict[tuple[str, int], Piece] = {}
    for piece in sorted(piece for piece in pieces if piece.start < piece.stop):
        interleaved = {key: each for key, each in interleaved.items() if piece.start < each.stop}
        for each in (*([furthest] if furthest else []), *interleaved.values()):
            if piece.start < each.stop and not piece.fits_between(each):
                one, other = described(each), described(piece)
                if one != other:
                    return f"the bytes of {one} and {other} overlap at {piece.start}"
        if piece.period:
            key = described(piece), piece.start % piece.period
            if key not in interleaved or interleaved[key].stop < piece.stop:
                interleaved[key] = piece
        elif furthest is None or piece.stop > furthest.stop:
            furthest = piece
    return ""


class _Use(Record):
    """A record that has all of a file: as its own bytes `first` to `stop`."""

    record: CatalogRecord
    first: int
    stop: int

    def pieces(self) -> Iterator[Piece]:
        """The file's bytes that tensors are in."""
        record = self.record
        for name, entry in record.index.entries.items():
            content = record.index.strided.get(name)
            if content is not None:
                item = entry.dtype.itemsize
                stop = content.offset + span_bytes(entry.shape, content.strides, item)
                yield Piece(content.offset, stop, record.rank, name, *_runs(entry.shape, content.strides, item))
                continue
            for extent in entry.extents:
                start = extent.offset - self.first
                if self.first <= extent.offset < self.stop:
                    yield Piece(start, start + extent.length, record.rank, name)


def _runs(shape: Shape, strides: Shape, item: int) -> tuple[int, int]:
    """The period of a strided tensor's runs of bytes, and their length; 0 if they do not lie so."""
    axes = sorted((stride, length) for stride, length in zip(strides, shape, strict=True) if length > 1)
    run_bytes = item
    while axes and axes[0][0] == run_bytes:
        run_bytes *= axes.pop(0)[1]
    period = math.gcd(*(stride for stride, _ in axes))
    return (period, run_bytes) if run_bytes <= period else (0, 0)


def _by_file(catalog: CheckpointCatalog) -> list[list[_Use]]:
    """The records that use each file, which may have several names."""
    found: dict[object, list[_Use]] = {}
    identities: dict[str, list[tuple[object, int]]] = {}
    for record in catalog.records.values():
        if record.location not in identities:
            identities[record.location] = _files_of(record)
        first = 0
        for identity, size_bytes in identities[record.location]:
            found.setdefault(identity, []).append(_Use(record, first, first + size_bytes))
            first += size_bytes
    return list(found.values())


def _files_of(record: CatalogRecord) -> list[tuple[object, int]]:
    """The identity and size of each file that a record is joined of, or of its only one."""
    location = parse_url(record.location)
    parts = parts_of(location)
    if not parts:
        return [(file_identity(location), record.size_bytes)]
    stamps = [read_stamp(part) for part in parts]
    sizes = [0 if stamp is None else stamp.size_bytes for stamp in stamps]
    identities = [file_identity(part) for part in parts]
    if sum(sizes) != record.size_bytes:  # encrypted: where each begins in the record is unknown
        return [(tuple(identities), record.size_bytes)]
    return list(zip(identities, sizes, strict=True))


def _described(piece: Piece, catalog: CheckpointCatalog, strategy: Strategy | None) -> str:
    entry = catalog.records[piece.owner].index.entries[piece.name]
    name = catalog.tied.get(piece.name, piece.name)
    stage = strategy.stage_of(piece.owner) if strategy is not None and piece.owner in strategy.ranks else None
    layout = stage.layouts.get(piece.name) if stage is not None else None
    if strategy is None or stage is None or layout is None or entry.dtype in (TEXT, MAP_TENSOR):
        return repr(name)
    stage_rank = piece.owner - strategy.stage_ranks(stage).start
    try:
        box = box_text(layout.shard_grid(len(entry.shape)), stage_rank, entry.shape)
    except LayoutError:
        return repr(name)  # the plan reports it, with the parameter's name
    return f"{name!r}, {box},"


def box_text(grid: ShardGrid, stage_rank: int, shape: Shape) -> str:
    """Format the box of a whole tensor that a rank owns with a shard of `shape`."""
    try:
        return str(grid.box_of(stage_rank, grid.whole_shape(stage_rank, shape)))
    except LayoutError:
        return str(list(shape))  # the plan reports it, with the parameter's name

"""The source files of a plan, open for block readers and checked to be the files that were planned with."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from threading import Lock

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.dense_view import dense, first_file
from reshard.core.errors import CatalogError
from reshard.core.files.ckpt import Head
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.encryption.decrypted_source import decrypted
from reshard.core.files.model import TensorEntry
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.keys import source_key
from reshard.core.storage.file_versions import difference_text
from reshard.core.storage.reading import SourceFile, is_proven, open_source
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location, parse_url
from reshard.core.transfer.read_crcs import CrcWatch


class LocalFiles:
    """Files that are near, for one thread; beyond `max_open`, the least recently used are closed."""

    def __init__(self, plan: ConversionPlan, max_open: int, crcs: CrcWatch | None = None) -> None:
        """`crcs` are given what is read."""
        self._crcs = crcs
        self._records = plan.inputs.catalog.records
        self._max_open = max_open
        self._open: OrderedDict[int, SourceFile] = OrderedDict()
        self._locations: dict[int, Location] = {}

    def open(self, rank: int) -> SourceFile:
        """Open a source rank's file."""
        source = self._open.get(rank)
        if source is None:
            if len(self._open) >= self._max_open:
                self._open.popitem(last=False)[1].close()
            if rank not in self._locations:
                # each is opened at least twice, and following links takes as long as a small read
                self._locations[rank] = parse_url(self._records[rank].location)
            record = self._records[rank]
            stored = decrypted(open_unchanged(record, self._locations[rank]), source_key())
            watched = self._crcs.watch(record, stored) if self._crcs else stored
            source = self._open[rank] = dense(watched, record.index)
        self._open.move_to_end(rank)
        return source

    def check_unchanged(self, ranks: Collection[int] | None = None) -> None:
        """Check that no file changed while it was read; `ranks`: only the files of these."""
        for rank, location in sorted(self._locations.items()):
            if ranks is None or rank in ranks:
                open_unchanged(self._records[rank], location).close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class RemoteFiles:
    """Files whose reads are requests, for any number of threads; no connection stays open."""

    def __init__(self, plan: ConversionPlan, ranks: Iterable[int], crcs: CrcWatch | None = None) -> None:
        """Open the files of `ranks` concurrently; `crcs` are given what is read."""
        self._records = plan.inputs.catalog.records
        self._crcs = crcs
        self._stored: dict[int, SourceFile] = {}
        self._open: dict[int, SourceFile] = {}
        self._checked: set[tuple[int, str]] = set()
        self._lock = Lock()
        self.include(ranks)

    def include(self, ranks: Iterable[int]) -> None:
        """Open the files of more ranks concurrently."""
        with self._lock:
            records = [self._records[rank] for rank in sorted(set(ranks) - self._open.keys())]
        # here, not in `open`: locating the blocks of an encrypted file takes requests, which would wait for others
        for record, stored in zip(records, list(at_once(_expected, records)), strict=True):
            file = decrypted(stored, source_key())
            watched = self._crcs.watch(record, file) if self._crcs else file
            with self._lock:
                self._stored[record.rank] = stored
                self._open[record.rank] = dense(watched, record.index)

    def open(self, rank: int) -> SourceFile:
        """Return a source rank's open file."""
        return self._open[rank]

    def unchecked_heads(self, record: CatalogRecord, entry: TensorEntry) -> Sequence[Head]:
        """Bytes that must be found before a parameter's contents are trusted.

        Empty if the file's headers were read for the catalog, or if an earlier call returned them.
        """
        if not record.assumed:
            return ()
        with self._lock:
            if (record.rank, entry.name) in self._checked:
                return ()
            self._checked.add((record.rank, entry.name))
        return expected_heads(entry)

    def check_unchanged(self, ranks: Collection[int] | None = None) -> None:
        """Check that no file changed while it was read, except those of which each answer showed that.

        `ranks`: only the files of these.
        """
        with self._lock:
            asked = [rank for rank in sorted(self._stored) if ranks is None or rank in ranks]
            unproven = [self._records[rank] for rank in asked if not is_proven(self._stored[rank])]
        list(at_once(open_unchanged, unproven))

    def close(self) -> None:
        """Close all files: none stays open."""


def are_remote(plan: ConversionPlan) -> bool:
    """True if reads of a plan's source files are requests."""
    return not first_file(plan.inputs.catalog).store.is_near


def _expected(record: CatalogRecord) -> SourceFile:
    """Open a remote file; one that has changed is refused now, or when it is read."""
    return _unchanged(record, open_source(parse_url(record.location), record.version))


def open_unchanged(record: CatalogRecord, location: Location | None = None) -> SourceFile:
    """Open a source rank's file as it is stored; `location` spares finding it.

    Raises:
        CatalogError: it is not the one that was planned with.
        StorageError: it cannot be read.
    """
    return _unchanged(record, open_source(location or parse_url(record.location)))


def _unchanged(record: CatalogRecord, source: SourceFile) -> SourceFile:
    """Return an open file if it has the version that was planned with, or close it."""
    if source.version != record.version:
        source.close()
        raise CatalogError(
            f"rank_{record.rank}: {record.location} changed while it was being read "
            f"({difference_text(record.version, source.version)}). Retry when nothing writes to the source"
        )
    return source

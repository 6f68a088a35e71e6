"""Reads the catalog records of many checkpoint files at once."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from threading import Lock

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import InputError
from reshard.core.files.any_format import check_crc as check_file_crc
from reshard.core.files.any_format import read_index
from reshard.core.files.digests import HeaderMismatchError, content_digests
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.model import FileIndex, TensorEntry
from reshard.core.files.remote_index.indexing import Indexed, Workers, read_indexes, workers_on
from reshard.core.files.remote_reads import WholeFiles
from reshard.core.runtime.keys import EncryptionMode, source_key
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy

_BLOCK_BYTES = 4 * 1024**2  # for digests: large enough for a remote read, small enough for a thread to hold

_WITHOUT_TAGS = (
    "the source is encrypted as by early releases of MindSpore, AES-GCM without a tag: changes to it cannot be detected"
)

WantsDigest = Callable[[int, TensorEntry], bool]
"""Selects a rank's parameters whose contents are digested."""


def no_digest(rank: int, entry: TensorEntry) -> bool:
    """Select none."""
    return False


def read_records(
    locations: Mapping[int, Location], reader: "RecordReader", workers: int
) -> tuple[dict[int, CatalogRecord], dict[int, InputError]]:
    """Return the records of all usable files, and why the others are unusable."""
    with workers_on(locations.values(), workers) as threads:
        if threads.are_near:
            outcomes = threads.outcomes(reader.read_near, sorted(locations.items()))
        else:
            outcomes = reader.read_remote(dict(sorted(locations.items())), threads)
    by_rank = dict(zip(sorted(locations), outcomes, strict=True))
    records = {rank: outcome for rank, outcome in by_rank.items() if isinstance(outcome, CatalogRecord)}
    return records, {rank: outcome for rank, outcome in by_rank.items() if isinstance(outcome, InputError)}


class RecordReader:
    """Reads records, in many threads, and keeps one index per distinct content.

    4096 ranks of 2000 parameters each would be eight million entries; the ranks of a stage have the same layout.
    """

    def __init__(
        self, digest: WantsDigest, check_crc: bool, *, assume_alike: bool, strategy: Strategy | None = None
    ) -> None:
        self._wants_digest = digest
        self._strategy = strategy
        self._checks_crc = check_crc
        self._assumes_alike = assume_alike
        self._indexes: dict[tuple[object, ...], list[FileIndex]] = {}
        self._lock = Lock()
        self._whole_files = WholeFiles()
        self.notes: tuple[str, ...] = ()

    def read_near(self, item: tuple[int, Location]) -> CatalogRecord:
        """Return the record of a rank's file."""
        rank, location = item
        with closing(_opened(location)) as file:
            return self._record(rank, file, Indexed(read_index(file)))

    def read_remote(self, locations: Mapping[int, Location], threads: Workers) -> list[CatalogRecord | InputError]:
        """Return the records of all ranks' files, or why they are unusable."""
        opened = dict(zip(locations, threads.outcomes(_opened, locations.values()), strict=True))
        files = {rank: file for rank, file in opened.items() if not isinstance(file, InputError)}
        try:
            indexes = read_indexes(files, threads, assume_alike=self._assumes_alike)
            indexes |= read_indexes(self._doubtful(files, indexes), threads, assume_alike=False)
            indexed = [(rank, files[rank], found) for rank, found in indexes.items() if isinstance(found, Indexed)]
            records = threads.outcomes(lambda item: self._record(*item), indexed)
        finally:
            for file in files.values():
                file.close()
        read = dict(zip((rank for rank, _, _ in indexed), records, strict=True))
        refused = {rank: why for rank, why in (*opened.items(), *indexes.items()) if isinstance(why, InputError)}
        outcomes = {**read, **refused}
        return [outcomes[rank] for rank in locations]

    def _doubtful(
        self, files: Mapping[int, SourceFile], indexes: Mapping[int, Indexed | InputError]
    ) -> dict[int, SourceFile]:
        """Files assumed to be like one that lacks some of its strategy's parameters: each may lack others."""
        assumed = {rank: found.index for rank, found in indexes.items() if isinstance(found, Indexed) and found.assumed}
        if self._strategy is None or not assumed:
            return {}
        all_indexes = {id(found.index): found.index for found in indexes.values() if isinstance(found, Indexed)}
        saved = {name for index in all_indexes.values() for name in index.entries}
        lacks: dict[tuple[int, int], bool] = {}
        doubtful = {}
        for rank, index in assumed.items():
            stage = self._strategy.stage_of(rank)
            key = id(index), stage.stage
            if key not in lacks:
                lacks[key] = any(name in saved and name not in index.entries for name in stage.layouts)
            if lacks[key]:
                doubtful[rank] = files[rank]
        return doubtful

    def _record(self, rank: int, file: SourceFile, indexed: Indexed) -> CatalogRecord:
        index = indexed.index
        wanted = [entry for entry in index.entries.values() if self._wants_digest(rank, entry)]
        checks_crc = self._checks_crc and index.has_crc
        read_bytes = index.size_bytes if checks_crc else sum(entry.size_bytes for entry in wanted)
        for part in file.parts if isinstance(file, JoinedFile) else (file,):
            if isinstance(part, DecryptedSource):
                self._check_encrypted(part)
        try:
            with self._room_for(file, read_bytes):
                if checks_crc:
                    check_file_crc(file, index)
                found = content_digests(file, wanted, _BLOCK_BYTES, assumed=indexed.assumed)
                digests = {entry.name: digest for entry, digest in zip(wanted, found, strict=True)}
        except HeaderMismatchError:
            return self._record(rank, file, Indexed(read_index(file)))
        return CatalogRecord(
            rank, str(file.location), file.size_bytes, file.version, self._interned(index), digests, indexed.assumed
        )

    def _check_encrypted(self, file: DecryptedSource) -> None:
        if file.mode is EncryptionMode.AES_GCM and not file.is_authenticated:
            self.notes = (_WITHOUT_TAGS,)
        with self._room_for(file, file.size_bytes):
            file.check_tags()

    def _room_for(self, file: SourceFile, read_bytes: int) -> AbstractContextManager[object]:
        return nullcontext() if read_bytes <= _BLOCK_BYTES else self._whole_files.room_for(file)

    def _interned(self, index: FileIndex) -> FileIndex:
        # texts may differ on every rank: without them in the key, each index would be compared with all others
        texts = tuple(entry.text for entry in index.entries.values() if entry.text is not None)
        key = (index.size_bytes, tuple(index.entries), texts)
        with self._lock:
            alike = self._indexes.setdefault(key, [])
            for known in alike:
                if known == index:
                    return known
            alike.append(index)
            return index


def _opened(location: Location) -> SourceFile:
    return open_checkpoint(location, source_key())

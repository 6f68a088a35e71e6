"""The catalog of a checkpoint: for each rank the file that is its part, and from the headers what that file holds.

The survey lists, the selection chooses by name, and only then are files opened, one a rank. Everything that is wrong
with the ranks or with the files is one error.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, Semaphore

import numpy as np

from core.checkpoint.digests import UnlikeError, content_digests
from core.checkpoint.formats import check_crc as check_file_crc
from core.checkpoint.formats import read_index
from core.checkpoint.indexing import Indexed, Workers, read_indexes, workers_on
from core.checkpoint.model import FileIndex, TensorEntry
from core.checkpoint.records import CatalogRecord, CheckpointCatalog
from core.checkpoint.selection import rank_names, select_files
from core.checkpoint.survey import CheckpointShape, CheckpointSurvey, survey
from core.errors import CatalogError, CheckpointError, InputError
from core.storage.files import SourceFile, open_source
from core.storage.urls import Location

__all__ = ["CatalogRecord", "CheckpointCatalog", "build_catalog"]

_BLOCK_BYTES = 4 * 1024**2  # of a digest: large enough for a remote read, small enough for a thread to hold
_MAX_FILE_ERRORS = 20
_LONG_READS_AT_ONCE = 4  # of remote files: each has up to 16 MiB under way

WantsDigest = Callable[[int, TensorEntry], bool]


def build_catalog(
    url: str,
    ranks: range | None,
    *,
    step: str | None = None,
    source_prefix: str | None = None,
    digest: WantsDigest,
    check_crc: bool = True,
    assume_alike: bool = True,
    workers: int = 8,
    allow_extra_ranks: bool = False,
    found: CheckpointSurvey | None = None,
) -> CheckpointCatalog:
    """Finds the checkpoint's file of each rank and reads what it holds.

    Args:
        url: a directory with `rank_N` folders; a directory with checkpoint files or a checkpoint file, which are rank
            0's; or a pattern with `{rank}` that names each rank's folder or file.
        ranks: the ranks that the source strategy has; None if there is no strategy: rank 0 holds all.
        step: the step to take, `10_5` or `10_5_breakpoint`; None for the newest that every rank has.
        source_prefix: the prefix of the files to take, where there are several.
        digest: says of which parameters of which rank a digest of the contents is taken.
        check_crc: whether files that carry a CRC are read whole to check it.
        assume_alike: whether of remote files with the same size that agree in samples only one's headers are read; the
            records of the others say so.
        workers: files read at a time; more if they are remote.
        allow_extra_ranks: whether there may be ranks besides `ranks`, which are then ignored.
        found: the survey of `url`, if it was made already.

    Raises:
        CatalogError: ranks are missing or too many, no choice of files is right or several are, the directory cannot
            be read or is an unfinished conversion; or several files cannot be used.
        CheckpointError: one file is damaged or cannot be used.
        StorageError: a transient failure of the storage.
    """
    found = found or survey(url)
    if found.unfinished:
        raise CatalogError(
            f"{found.url}: an unfinished conversion (its .reshard folder has no manifest): complete it first, "
            "or name another checkpoint"
        )
    needed = range(1) if ranks is None else ranks
    notes = _check_ranks(found, needed, has_strategy=ranks is not None, allow_extra_ranks=allow_extra_ranks)
    names = {rank: [file.name for file in found.files[rank]] for rank in needed}
    selection = select_files(found.url, names, step=step, source_prefix=source_prefix, named=found.names_files)
    locations = {
        rank: next(file.location for file in found.files[rank] if file.name == name)
        for rank, name in selection.names.items()
    }
    records = _read_records(found.url, locations, _RecordReader(digest, check_crc, assume_alike), workers)
    chosen_step = None if selection.step is None else str(selection.step)
    return CheckpointCatalog(found.url, selection.format, chosen_step, records, (*selection.notes, *notes))


def _check_ranks(
    found: CheckpointSurvey, needed: range, *, has_strategy: bool, allow_extra_ranks: bool
) -> tuple[str, ...]:
    there_are = frozenset(found.ranks)
    missing = [rank for rank in needed if rank not in there_are]
    extra = [rank for rank in found.ranks if rank not in needed]
    there = f"{found.url}: {_count(len(found.ranks))}"
    wanted = f"the source strategy has {_count(len(needed))}"
    if missing and found.shape in (CheckpointShape.FILE, CheckpointShape.FOLDER):
        what = "a single checkpoint file" if found.shape is CheckpointShape.FILE else "files without rank_N folders"
        raise CatalogError(
            f"{there}, {what}, but {wanted}; missing: {rank_names(missing)}. "
            "Name the directory of the rank folders, or a pattern with {rank}"
        )
    if extra and not has_strategy and not allow_extra_ranks:
        raise CatalogError(
            f"{there} ({rank_names(found.ranks, 3)}): several ranks need a source strategy, none is given: "
            "name it with --source-strategy"
        )
    if missing:
        empty = [rank for rank in missing if rank in found.files]
        without_files = f" ({rank_names(empty)}: a folder without checkpoint files)" if empty else ""
        needs = wanted if has_strategy else "without a source strategy rank_0 has to hold all"
        raise CatalogError(f"{there}, but {needs}; missing: {rank_names(missing)}{without_files}")
    if not extra:
        return ()
    if not allow_extra_ranks:
        raise CatalogError(
            f"{there}, but {wanted}: it is another checkpoint's strategy, or one pipeline stage's own. "
            f"Too many: {rank_names(extra, 10)}"
        )
    return (f"ignored ranks that are not needed: {rank_names(extra, 10)}",)


def _count(ranks: int) -> str:
    return f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"


def _read_records(
    origin: str, locations: Mapping[int, Location], reader: "_RecordReader", workers: int
) -> dict[int, CatalogRecord]:
    """The records of all files; an error tells of all that cannot be used, not only of the first."""
    with workers_on(locations.values(), workers) as threads:
        if any(location.is_local for location in locations.values()):
            outcomes = threads.outcomes(reader.read_local, sorted(locations.items()))
        else:
            outcomes = reader.read_remote(dict(sorted(locations.items())), threads)
    errors = [outcome for outcome in outcomes if isinstance(outcome, InputError)]
    if errors:
        raise _joined(origin, errors, len(outcomes))
    return {outcome.rank: outcome for outcome in outcomes if isinstance(outcome, CatalogRecord)}


def _joined(origin: str, errors: Sequence[InputError], files: int) -> InputError:
    if len(errors) == 1:
        return errors[0]
    lines = [str(error) for error in errors[:_MAX_FILE_ERRORS]]
    if len(errors) > _MAX_FILE_ERRORS:
        lines.append(f"and {len(errors) - _MAX_FILE_ERRORS} more")
    return CatalogError("\n  ".join([f"{origin}: {len(errors)} of {files} checkpoint files cannot be used:", *lines]))


class _RecordReader:
    """Reads records, in many threads, and keeps one index per distinct content.

    4096 ranks of 2000 parameters each would be eight million entries; the ranks of a stage are laid out alike.
    """

    def __init__(self, digest: WantsDigest, check_crc: bool, assume_alike: bool) -> None:
        self._wants_digest = digest
        self._checks_crc = check_crc
        self._assumes_alike = assume_alike
        self._indexes: dict[tuple[object, ...], list[FileIndex]] = {}
        self._lock = Lock()
        self._long_reads = Semaphore(_LONG_READS_AT_ONCE)

    def read_local(self, item: tuple[int, Location]) -> CatalogRecord:
        """The record of a rank's file.

        Raises:
            InputError: it cannot be used.
            StorageError: it cannot be read.
        """
        rank, location = item
        file = open_source(location)
        try:
            return self._record(rank, file, Indexed(read_index(file)))
        finally:
            file.close()

    def read_remote(self, locations: Mapping[int, Location], threads: Workers) -> list[CatalogRecord | InputError]:
        """The records of all ranks' files, or why they cannot be used.

        Raises:
            StorageError: a transient failure of the storage.
        """
        opened = dict(zip(locations, threads.outcomes(open_source, locations.values()), strict=True))
        files = {rank: file for rank, file in opened.items() if not isinstance(file, InputError)}
        try:
            indexes = read_indexes(files, threads, assume_alike=self._assumes_alike)
            indexed = [(rank, files[rank], found) for rank, found in indexes.items() if isinstance(found, Indexed)]
            records = threads.outcomes(lambda item: self._record(*item), indexed)
        finally:
            for file in files.values():
                file.close()
        read = dict(zip((rank for rank, _, _ in indexed), records, strict=True))
        refused = {rank: why for rank, why in (*opened.items(), *indexes.items()) if isinstance(why, InputError)}
        outcomes = {**read, **refused}
        return [outcomes[rank] for rank in locations]

    def _record(self, rank: int, file: SourceFile, indexed: Indexed) -> CatalogRecord:
        index = indexed.index
        if index.redundancy_removed:
            raise CheckpointError(
                f"{file.location}: was saved with remove_redundancy=True: slices that several ranks share are in one "
                "rank's file only. Such checkpoints cannot be read; save it without"
            )
        wanted = [entry for entry in index.entries.values() if self._wants_digest(rank, entry)]
        checks_crc = self._checks_crc and index.has_crc
        read_bytes = index.size_bytes if checks_crc else sum(entry.size_bytes for entry in wanted)
        try:
            with self._room_for(file, read_bytes):
                if checks_crc:
                    check_file_crc(file, index)
                digests = _digests(file, wanted, indexed.assumed)
        except UnlikeError:
            return self._record(rank, file, Indexed(read_index(file)))
        return CatalogRecord(
            rank, str(file.location), file.size_bytes, file.version, self._interned(index), digests, indexed.assumed
        )

    def _room_for(self, file: SourceFile, read_bytes: int) -> AbstractContextManager[object]:
        return nullcontext() if file.location.is_local or read_bytes <= _BLOCK_BYTES else self._long_reads

    def _interned(self, index: FileIndex) -> FileIndex:
        # what a text says may differ on every rank: without it in the key, each would be compared with all others
        texts = tuple(entry.text for entry in index.entries.values() if entry.text is not None)
        key = (index.size_bytes, tuple(index.entries), texts)
        with self._lock:
            alike = self._indexes.setdefault(key, [])
            for known in alike:
                if known == index:
                    return known
            alike.append(index)
            return index


def _digests(file: SourceFile, entries: Sequence[TensorEntry], assumed: bool) -> dict[str, str]:
    # not zeroed: pages that no content reaches cost nothing
    buffer = np.empty(_BLOCK_BYTES, np.uint8).data
    digests = content_digests(file, entries, buffer, assumed=assumed)
    return {entry.name: digest for entry, digest in zip(entries, digests, strict=True)}

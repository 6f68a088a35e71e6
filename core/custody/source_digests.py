"""SHA-256 of a conversion's source files, each of which is read whole for it, as it is stored.

Nothing else reads all bytes of a checkpoint file: a conversion and a comparison of values read headers and the values
that are selected.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from contextvars import ContextVar
from threading import Event

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.manifest import SourceFileRecord
from reshard.core.custody.digests import sha256_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.context import having
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_phase
from reshard.core.storage.joined import JoinedFile, parts_of
from reshard.core.storage.urls import parse_url
from reshard.core.transfer.source_files import open_unchanged

PHASE = "reading source files for their SHA-256"
_known: ContextVar[Mapping[str, SourceFileRecord]] = ContextVar("reshard_known_files", default={})  # noqa: B039


def source_records(plan: ConversionPlan) -> tuple[CatalogRecord, ...]:
    """Return the records of a plan's checkpoint files, an adapter's as well, each file once."""
    adapter = plan.inputs.adapter
    catalogs = (plan.inputs.catalog, *((adapter.catalog,) if adapter else ()))
    records = {record.location: record for catalog in catalogs for record in catalog.records.values()}
    return tuple(records.values())


def source_file_bytes(plan: ConversionPlan) -> int:
    """Return the bytes that `hash_source` reads."""
    return sum(record.size_bytes for record in source_records(plan))


def knowing(files: Iterable[SourceFileRecord]) -> AbstractContextManager[Mapping[str, SourceFileRecord]]:
    """Let `hash_source` know files inside the block, which were read whole before, and are not read again for it."""
    return having(_known, {file.url: file for file in files})


def hash_source(plan: ConversionPlan, workers: int) -> tuple[SourceFileRecord, ...]:
    """Read a plan's checkpoint files whole, but those known already, and return the SHA-256 of each.

    Raises:
        CatalogError: a file is not the one that was planned with, before it was read or afterwards.
        CheckpointError: one ends too early.
        StorageError: one cannot be read.
    """
    records, note = source_records(plan), current_progress().note
    known = {record.location: files for record in records if (files := _known_files(record))}
    left = [record for record in records if record.location not in known]

    def read(record: CatalogRecord, advance: Callable[[int], None]) -> list[SourceFileRecord]:
        return with_retries(lambda: list(_hashed(record, advance)), note)

    read_now: list[list[SourceFileRecord]] = in_phase(
        PHASE, sum(record.size_bytes for record in left), read, left, workers, Event()
    )
    known |= {record.location: files for record, files in zip(left, read_now, strict=True)}
    return tuple(each for record in records for each in known[record.location])


def bytes_read_whole(files: Iterable[SourceFileRecord]) -> int:
    """Return the bytes that were read for these files, and for those that are known here, each file once."""
    return sum(file.size_bytes for file in ({file.url: file for file in files} | dict(_known.get())).values())


def _known_files(record: CatalogRecord) -> list[SourceFileRecord]:
    """The files of a record, if all were read before, and were what was planned with; else none."""
    location, known = parse_url(record.location), _known.get()
    files = [file for part in parts_of(location) or (location,) if (file := known.get(str(part)))]
    return files if "+".join(file.version for file in files) == record.version else []


def _hashed(record: CatalogRecord, advance: Callable[[int], None]) -> Iterator[SourceFileRecord]:
    """The files of a record: several, if they are read as one."""
    with closing(open_unchanged(record)) as opened:
        for file in opened.parts if isinstance(opened, JoinedFile) else (opened,):
            yield SourceFileRecord(
                url=str(file.location),
                size_bytes=file.size_bytes,
                version=file.version,
                sha256=sha256_of(file, advance),
            )
    open_unchanged(record).close()

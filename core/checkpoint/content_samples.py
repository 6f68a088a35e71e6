"""Samples a parameter on several ranks, the first bytes of its contents, for comparisons before a conversion."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file, open_record
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.remote_index.templates import header_mismatch
from reshard.core.runtime.keys import source_key
from reshard.core.storage.reading import read_bytes
from reshard.core.storage.transfers import at_once


def read_samples(catalog: CheckpointCatalog, ranks: Sequence[int], name: str, length: int) -> Iterator[bytes]:
    """Yield the first `length` bytes of a parameter on each rank; remote files are read concurrently.

    Raises:
        CatalogError: a file's headers differ from those assumed.
        StorageError: a file cannot be read.
    """
    records = [catalog.records[rank] for rank in ranks]
    read = partial(_read_sample, name=name, length=length)
    return at_once(read, records) if are_read_at_once(catalog) else map(read, records)


def are_read_at_once(catalog: CheckpointCatalog) -> bool:
    """True if samples of a checkpoint are better read concurrently: each waits for a server.

    Opening encrypted files may make them wait for one another.
    """
    return source_key() is None and not first_file(catalog).store.is_near


def _read_sample(record: CatalogRecord, name: str, length: int) -> bytes:
    entry = record.index.entries.get(name)
    if entry is None or not entry.extents:
        return b""
    extent = entry.extents[0]
    offset, head = extent.offset, b""
    if record.assumed:
        first = expected_heads(entry)[0]
        offset, head = first.offset, first.data
    with closing(open_record(record)) as file:
        found = read_bytes(file, offset, len(head) + min(length, extent.length))
    if not found.startswith(head):
        raise header_mismatch(record.rank, record.location, name, offset)
    return found[len(head) :]


def is_constant(content: bytes, itemsize: int) -> bool:
    """True if all elements are equal, so that a sample proves nothing."""
    return content == content[:itemsize] * (len(content) // itemsize)

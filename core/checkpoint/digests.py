"""Digests of contents: XXH3-128 over a parameter's bytes in C order, or over a text's UTF-8."""

from collections.abc import Callable

import xxhash

from core.checkpoint.model import TensorEntry
from core.storage.files import SourceFile


def content_digest(
    file: SourceFile, entry: TensorEntry, buffer: memoryview, advance: Callable[[int], None] = lambda _: None
) -> str:
    """The digest of a parameter's contents in hex, read block by block into `buffer`.

    Raises:
        CheckpointError: the file ends before the contents do.
        StorageError: it cannot be read.
    """
    digest = xxhash.xxh3_128()
    if entry.text is not None:
        digest.update(entry.text.encode("utf-8", "surrogatepass"))
    for extent in entry.extents:
        for start in range(0, extent.length, len(buffer)):
            part = buffer[: min(len(buffer), extent.length - start)]
            file.read_into(extent.offset + start, part)
            digest.update(part)
            advance(len(part))
    return digest.hexdigest()

"""Compares metadata.json of a written Checkpoint 2.0 with the records of its files."""

from collections.abc import Iterable

from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.layouts.checkpoint2.metadata import parse_metadata
from reshard.core.layouts.checkpoint2.names import UNLISTED_PARAMETERS
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.text.printing import printable


def metadata_problem(location: Location, index: IndexSummary, records: Iterable[ShardRecord]) -> str | None:
    """Return the first difference from the records of all files, as a sentence; None if there is none.

    Raises:
        StrategyError: the metadata is damaged.
        StorageError: it cannot be read.
    """
    metadata = parse_metadata(read_small_file(location, max(index.size_bytes, 1)), str(location))
    files = dict(metadata.files)
    for record in records:
        listed = files.pop(record.file, None)
        names = {parameter.name for parameter in record.parameters} - UNLISTED_PARAMETERS
        wrong = sorted(names.symmetric_difference(listed.tensors if listed else ()))
        if wrong:
            there = "is in" if wrong[0] in names else "is not in"
            return f"{location}: is wrong about parameter {wrong[0]!r}, which {there} {printable(record.file)}"
    return f"{location}: lists {printable(next(iter(files)))}, which is not a file of the checkpoint" if files else None

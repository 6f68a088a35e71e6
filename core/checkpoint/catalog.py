"""The catalog of a checkpoint as data, one record per rank, from file names and headers. Using it needs no storage."""

from collections.abc import Iterable, Mapping

from msgspec import field

from reshard.core.files.model import CheckpointFormat, FileIndex
from reshard.core.runtime.records import Record

StatePath = tuple[str | int, ...]
"""Keys of nested dicts, and indices of lists, that lead to a tensor."""


class CatalogRecord(Record):
    """One rank's checkpoint file.

    Attributes:
        location: URL of the file; a local one is a plain path.
        version: changes whenever the file's content does (modification time, etag).
        index: contents of the file; ranks whose files have the same layout share one object.
        digests: parameter -> XXH3-128 of its bytes in hex, for those requested.
        assumed: the index is another rank's, whose file has the same size and agrees in samples; the bytes before
            contents have to be compared with `templates.expected_heads` when contents are read.
    """

    rank: int
    location: str
    size_bytes: int
    version: str
    index: FileIndex
    digests: Mapping[str, str] = field(default_factory=dict)
    assumed: bool = False


def by_index(records: Iterable[CatalogRecord]) -> list[list[CatalogRecord]]:
    """Group records that share an index, in the order of the first of each group."""
    groups: dict[int, list[CatalogRecord]] = {}
    for record in records:
        groups.setdefault(id(record.index), []).append(record)  # contents would take seconds to compare
    return list(groups.values())


class CheckpointCatalog(Record):
    """A checkpoint: for each rank its file and the file's contents.

    Attributes:
        url: the checkpoint, as it was named.
        step: the chosen step, such as `10_5`; None if file names carry none.
        records: rank -> record, by ascending rank.
        notes: sentences for the user: what was chosen, what was ignored and why.
        lost: rank -> why its file is not used: missing, damaged, or named as faulty. Such a rank has no record.
        stage_numbers: the pipeline stages whose files make up each rank's file; empty for ordinary files.
        has_whole_tensors: its tensors are whole, each in one of the files, which count as ranks.
        outside: of whole tensors, those that no strategy covers.
        state_paths: parameter -> its keys in a nested state dict, if it is in one; not part of a plan's document.
        unconvertible: parameters whose place in the whole model is unknown -> what they are; they can only be left out.
            Not part of a plan's document.
        tied: parameter -> another one, which is the same bytes of its files. Not part of a plan's document.
    """

    url: str
    format: CheckpointFormat
    step: str | None
    records: Mapping[int, CatalogRecord]
    notes: tuple[str, ...] = ()
    lost: Mapping[int, str] = field(default_factory=dict)
    stage_numbers: tuple[int, ...] = ()
    has_whole_tensors: bool = False
    outside: tuple[str, ...] = ()
    state_paths: Mapping[str, StatePath] = field(default_factory=dict)
    unconvertible: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    def indexes(self, ranks: Iterable[int] | None = None) -> list[FileIndex]:
        """The distinct indexes of the files of some ranks, or of all."""
        records = [self.records[rank] for rank in (self.records if ranks is None else ranks) if rank in self.records]
        return [alike[0].index for alike in by_index(records)]

    @property
    def world_size(self) -> int:
        """Number of ranks, including those without a usable file."""
        return len(self.records) + len(self.lost)

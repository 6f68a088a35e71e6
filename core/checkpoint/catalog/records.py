"""What is known of a checkpoint from its file names and headers: one record a rank. No storage is needed to use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reshard.core.checkpoint.model import CheckpointFormat, FileIndex


@dataclass(frozen=True)
class CatalogRecord:
    """One rank's checkpoint file.

    Attributes:
        rank: global device number.
        location: URL of the file; a local one is a plain path.
        size_bytes: size of the file.
        version: changes whenever the file's content does (modification time, etag).
        index: what the file holds; ranks whose files are laid out alike share one object.
        digests: parameter -> XXH3-128 of its bytes in hex, for those that were asked for.
        assumed: the index is another rank's, whose file is as large and agrees in samples; what stands before
            contents has to be compared with `heads.expected_heads` when they are read.
    """

    rank: int
    location: str
    size_bytes: int
    version: str
    index: FileIndex
    digests: Mapping[str, str] = field(default_factory=dict)
    assumed: bool = False


@dataclass(frozen=True)
class CheckpointCatalog:
    """A checkpoint: for each rank its file and what that holds.

    Attributes:
        url: the checkpoint, as it was named.
        format: the kind of all its files.
        step: the step chosen, `10_5` say; None if the names of the files carry none.
        records: rank -> record, by ascending rank.
        notes: sentences for the user: what was chosen, what was passed over and why.
        lost: rank -> why its file is not used: it is not there, damaged, or named as faulty. Such a rank has no record.
        parts: the pipeline stages whose parts each file is made of; none if it was written as one.
        unified: its tensors are whole, each in one of the files, which count as ranks.
        outside: of a unified one, parameters that no strategy knows.
    """

    url: str
    format: CheckpointFormat
    step: str | None
    records: Mapping[int, CatalogRecord]
    notes: tuple[str, ...] = ()
    lost: Mapping[int, str] = field(default_factory=dict)
    stage_numbers: tuple[int, ...] = ()
    unified: bool = False
    outside: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of the checkpoint, those without a usable file included."""
        return len(self.records) + len(self.lost)

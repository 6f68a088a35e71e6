"""The files of a checkpoint of ranks, by their names, which say prefix and step."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

from reshard.core.files.file_names import Step, group_prefixes
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.source_layout import FoundCheckpoint
from reshard.core.storage.patterns import spelled_for


class RankShape(StrEnum):
    """How the files of ranks are named."""

    FILE = "file"
    FOLDER = "folder"  # files without rank folders
    RANK_FOLDERS = "rank folders"
    RANK_FILES = "rank files"  # of several ranks in one folder, whose names say the ranks
    PATTERN = "pattern"


class RankFiles(FoundCheckpoint, dict=True):
    """The files that were found of a checkpoint of ranks.

    Attributes:
        shape: how it was named.
        names_files: `url` names the files themselves, not their folders.
        lists_records: False if a listing of rank folders shows that none of reshard's records are beside them.
    """

    shape: RankShape
    names_files: bool = False
    lists_records: bool = True

    is_self_described = False

    @property
    def has_records(self) -> bool:
        """True for rank folders with reshard's records beside them."""
        return self.shape is RankShape.RANK_FOLDERS and self.lists_records

    @property
    def is_one_rank(self) -> bool:
        """True for files that were named without saying of which ranks they are."""
        return self.shape in (RankShape.FILE, RankShape.FOLDER)

    @cached_property
    def formats(self) -> tuple[CheckpointFormat, ...]:
        """Formats of the files."""
        there = {file.name.format for files in self.files.values() for file in files}
        return tuple(file_format for file_format in CheckpointFormat if file_format in there)

    @cached_property
    def steps(self) -> Mapping[str, Mapping[Step | None, tuple[int, ...]]]:
        """Prefix -> step -> ranks that have it.

        A prefix that contains the rank has `{rank}` in its place. Steps ascend; None, for files without, comes first.
        """
        names = {rank: [file.name for file in self.files[rank]] for rank in self.ranks}
        groups = group_prefixes({rank: {name.prefix for name in ours} for rank, ours in names.items()})
        result: dict[str, Mapping[Step | None, tuple[int, ...]]] = {}
        for spelling, ranks in groups.items():
            owners: dict[Step | None, list[int]] = {}
            for rank in ranks:
                for step in {name.step for name in names[rank] if name.prefix == spelled_for(spelling, rank)}:
                    owners.setdefault(step, []).append(rank)
            ordered = sorted(owners, key=lambda step: (step is not None, step or Step(0, 0)))
            result[spelling] = {step: tuple(owners[step]) for step in ordered}
        return result

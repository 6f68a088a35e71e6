"""A checkpoint of ranks as a source: each rank's files, whose names say prefix and step."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.file_names import Step, group_prefixes
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.ranks.parts_beside import with_parts_beside_noted
from reshard.core.layouts.seen_steps import TrainingSteps
from reshard.core.layouts.source_layout import CatalogOptions, Document, FoundCheckpoint
from reshard.core.storage.patterns import spelled_for


class RankShape(StrEnum):
    """How the files of ranks are named."""

    FILE = "file"
    FOLDER = "folder"  # files without rank folders
    RANK_FOLDERS = "rank folders"
    RANK_FILES = "rank files"  # of several ranks in one folder, whose names say the ranks
    PATTERN = "pattern"


class FoundRanks(FoundCheckpoint, dict=True):
    """A checkpoint of ranks that was found.

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

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Choose each rank's file by its name, and index it."""
        from reshard.core.layouts.ranks.catalog import ranks_catalog

        return ranks_catalog(self, options)

    def as_source(self, catalog: CheckpointCatalog, *, refuses_parts: bool) -> CheckpointCatalog:
        """Note, or refuse, that it is one rank or one numbered file of several."""
        if not self.is_one_rank:
            return catalog
        is_file = self.shape is RankShape.FILE
        return with_parts_beside_noted(catalog, self.url, is_file=is_file, refuses_others=refuses_parts)

    def other_steps(self, source_prefix: str, chosen: Step) -> list[Step]:
        """The steps of the prefix of `chosen`, newest first."""
        for spelling, steps in self.steps.items():
            spelled = {spelling, *(spelled_for(spelling, rank) for ranks in steps.values() for rank in ranks)}
            if chosen in steps and (not source_prefix or source_prefix in spelled):
                return sorted((step for step in steps if step is not None), reverse=True)
        return []

    def training_steps(self) -> TrainingSteps:
        """The steps that its files have in their names."""
        from reshard.core.layouts.ranks.steps import RankSteps

        if self.shape is RankShape.FILE:
            raise CatalogError(f"{self.url}: is one file. Name the directory that training saves into")
        return RankSteps(self)

    def describe(self) -> Document:
        """Describe it by the names of its files, which are not opened."""
        return {
            "kind": "checkpoint",
            "url": self.url,
            "shape": str(self.shape),
            "ranks": list(self.ranks),
            "formats": [str(file_format) for file_format in self.formats],
            "prefixes": [
                {
                    "prefix": prefix,
                    "steps": [
                        {"step": None if step is None else str(step), "ranks": list(ranks)}
                        for step, ranks in steps.items()
                    ],
                }
                for prefix, steps in self.steps.items()
            ],
            "parts": sorted(
                {part for files in self.files.values() for file in files for part in file.name.stage_numbers}
            ),
            "ranks_without_files": [rank for rank, files in self.files.items() if not files],
            "ignored": list(self.ignored),
            "unfinished": self.unfinished,
        }

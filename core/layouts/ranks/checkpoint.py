"""A checkpoint of ranks as a source."""

from collections.abc import Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.file_names import Step
from reshard.core.layouts.ranks.parts_beside import with_parts_beside_noted
from reshard.core.layouts.ranks.rank_files import RankFiles, RankShape
from reshard.core.layouts.ranks.strategies_beside import neighbors_of, strategies_beside
from reshard.core.layouts.seen_steps import TrainingSteps
from reshard.core.layouts.source_layout import CatalogOptions, Document
from reshard.core.storage.patterns import spelled_for
from reshard.core.storage.urls import Location, parse_url


class FoundRanks(RankFiles, dict=True):
    """A checkpoint of ranks that was found."""

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Choose each rank's file by its name, and index it."""
        from reshard.core.layouts.ranks.catalog import ranks_catalog

        return ranks_catalog(self, options)

    def strategies_beside(self) -> tuple[Location, ...]:
        """What is named as strategies are, in its directory and around it; a pattern has no directory."""
        if self.shape not in (RankShape.RANK_FOLDERS, RankShape.RANK_FILES):
            return ()
        return strategies_beside(parse_url(self.url), self.ignored)

    def neighbors(self, strategy: Location) -> Sequence[Location]:
        """Other checkpoints of ranks in the directory around it, if the strategy is there, too."""
        return neighbors_of(parse_url(self.url), strategy)

    def chosen_files(self, options: CatalogOptions) -> Sequence[Location]:
        """The file of each rank."""
        from reshard.core.layouts.ranks.catalog import chosen_files

        return chosen_files(self, options)

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

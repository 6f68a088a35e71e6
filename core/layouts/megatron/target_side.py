"""Megatron-Core's files of ranks as a target: iterations, or a release, below a directory with a tracker."""

from collections.abc import Mapping
from typing import Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.files.model import FileIndex
from reshard.core.layouts.megatron.iteration_side import IterationSide
from reshard.core.layouts.megatron.names import is_rank_path
from reshard.core.layouts.megatron.target import MegatronTarget
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.reading import SourceFile


class MegatronSide(IterationSide):
    """The answers about targets of Megatron's files of ranks."""

    record: ClassVar[type[PlannedLayout]] = MegatronTarget

    def choose(self, options: Any, catalog: CheckpointCatalog) -> MegatronTarget:
        """Return the record of the target that a request with all options asks for."""
        from reshard.core.layouts.megatron.choice import choose_target

        return choose_target(options, catalog)

    def from_plan(self, document: Mapping[str, Any]) -> MegatronTarget | None:
        """Return the record in the JSON document of a plan."""
        fields = document.get("megatron")
        if fields is None:
            return None
        from reshard.core.layouts.megatron.choice import target_from_fields

        return target_from_fields(fields)

    def owns(self, name: str) -> bool:
        """True for the path of a rank's file."""
        return is_rank_path(name)

    def read_index(self, file: SourceFile, record: ShardRecord) -> FileIndex:
        """Index a rank's file, and compare what it says of every tensor with its record."""
        from reshard.core.layouts.megatron.written_files import read_written

        return read_written(file, record)


SIDE = MegatronSide()

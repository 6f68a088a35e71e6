"""Megatron-Core's files of ranks as a target: iterations, or a release, below a directory with a tracker."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.files.model import FileIndex
from reshard.core.layouts.megatron.names import TRACKER, is_rank_path, iteration_name, parse_iteration
from reshard.core.layouts.megatron.target import MegatronTarget
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.tracker import check_tracker, track
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location


class MegatronSide(TargetSide):
    """The answers about targets of Megatron's files of ranks."""

    record: ClassVar[type[PlannedLayout]] = MegatronTarget

    def fill_in(self, request: Any) -> Mapping[str, str]:
        """Return the number of the iteration, and the step of a source that has iterations."""
        from reshard.core.layouts.megatron.choice import choose_number

        return choose_number(request)

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

    def place(self, location: Location, value: MegatronTarget) -> Location:
        """Return the iteration's directory, in that of all iterations if the tracker there is to name it."""
        return location.child(iteration_name(value.iteration)) if value.tracked else location

    def check_place(self, final: Location, value: MegatronTarget) -> None:
        """Refuse a tracker that cannot be advanced, and one of another library, which would lose its own place."""
        if value.tracked:
            check_tracker(final.parent, TRACKER)

    def announce(self, final: Location, value: MegatronTarget) -> None:
        """Name the iteration in the tracker, unless that names a newer one."""
        if value.tracked:
            track(final.parent, value.iteration, TRACKER)

    def owns(self, name: str) -> bool:
        """True for the path of a rank's file."""
        return is_rank_path(name)

    def read_index(self, file: SourceFile, record: ShardRecord) -> FileIndex:
        """Index a rank's file, and compare what it says of every tensor with its record."""
        from reshard.core.layouts.megatron.written_files import read_written

        return read_written(file, record)

    def targets_in(self, names: Collection[str]) -> list[str]:
        """Return the names of iterations, and of a release."""
        return sorted(name for name in names if parse_iteration(name) is not None)


SIDE = MegatronSide()

"""DeepSpeed's universal checkpoint as a target: steps below a directory with `latest_universal`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.files.model import FileIndex
from reshard.core.layouts.tracked_side import TrackedSide
from reshard.core.layouts.tracker import Tracker, remove_tracker_leftovers, tracker_leftovers
from reshard.core.layouts.universal.names import LATEST, is_own_path, parse_tag, tag_name
from reshard.core.layouts.universal.target import UniversalTarget
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location


class UniversalSide(TrackedSide):
    """The answers about universal targets."""

    record: ClassVar[type[PlannedLayout]] = UniversalTarget
    tracker: ClassVar[Tracker] = LATEST

    def directory_name(self, number: int) -> str:
        """Return the name of a step's directory."""
        return tag_name(number)

    def number_in(self, name: str) -> int | None:
        """Return the number of the step in a tag; None for other names."""
        return parse_tag(name)

    def choose(self, options: Any, catalog: CheckpointCatalog) -> UniversalTarget:
        """Return the record of the target that a request with all options asks for."""
        from reshard.core.layouts.universal.choice import choose_target

        return choose_target(options, catalog)

    def from_plan(self, document: Mapping[str, Any]) -> UniversalTarget | None:
        """Return the record in the JSON document of a plan."""
        fields = document.get("universal")
        if fields is None:
            return None
        from reshard.core.layouts.universal.choice import target_from_fields

        return target_from_fields(fields)

    def owns(self, name: str) -> bool:
        """True for the path of one of its files."""
        return is_own_path(name)

    def read_index(self, file: SourceFile, record: ShardRecord) -> FileIndex:
        """Index a file, and compare what it says of every tensor with its record."""
        from reshard.core.layouts.universal.written_files import read_written

        return read_written(file, record)

    def leftovers(self, root: Location) -> list[Location]:
        """Find what is left of runs that were killed while they advanced the tracker."""
        return tracker_leftovers(root, LATEST)

    def remove_leftovers(self, root: Location) -> None:
        """Remove what `leftovers` finds."""
        remove_tracker_leftovers(root, LATEST)


SIDE = UniversalSide()

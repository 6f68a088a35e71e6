"""MindFormers' Checkpoint 2.0 as a target: iterations with metadata, below a directory with a tracker."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.layouts.checkpoint2.names import (
    COMMON_NAME,
    MAX_COMMON_BYTES,
    MAX_METADATA_BYTES,
    METADATA_NAME,
    TRACKER,
    iteration_name,
    parse_iteration,
    parse_tensor_file,
)
from reshard.core.layouts.checkpoint2.target import IterationTarget
from reshard.core.layouts.documents import Document, DocumentKind, Documents
from reshard.core.layouts.target_side import TargetSide
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.plan.plan import ConversionPlan


class Checkpoint2Side(TargetSide):
    """The answers about targets that are an iteration."""

    record: ClassVar[type[PlannedLayout]] = IterationTarget
    blank_plan_fields: ClassVar[Mapping[str, Any]] = {"iteration": None}
    documents: ClassVar[Mapping[str, DocumentKind]] = {
        METADATA_NAME: DocumentKind("metadata", MAX_METADATA_BYTES),
        COMMON_NAME: DocumentKind("state of the training", MAX_COMMON_BYTES),
    }

    keeps_training_state: ClassVar[bool] = True

    def fill_in(self, request: Any) -> Mapping[str, str]:
        """Return the number of the iteration, and the step of a source that has iterations."""
        from reshard.core.layouts.checkpoint2.choice import choose_number

        return choose_number(request)

    def choose(self, options: Any, catalog: CheckpointCatalog) -> IterationTarget:
        """Return the record of the iteration that a request with all options asks for."""
        from reshard.core.layouts.checkpoint2.choice import choose_iteration

        return choose_iteration(options, catalog)

    def from_plan(self, document: Mapping[str, Any]) -> IterationTarget | None:
        """Return the record in the JSON document of a plan; plans of earlier versions have no iterations."""
        fields = document.get("iteration")
        if fields is None:
            return None
        common = tuple((str(key), value) for key, value in fields["common"])
        return IterationTarget(int(fields["number"]), common, bool(fields["tracked"]))

    def place(self, location: Location, value: IterationTarget) -> Location:
        """Return the iteration's directory, in that of all iterations if the tracker there is to name it."""
        return location.child(iteration_name(value.number)) if value.tracked else location

    def check_place(self, final: Location, value: IterationTarget) -> None:
        """Refuse a tracker that cannot be advanced, and one of another library, which would lose its own place."""
        if value.tracked:
            from reshard.core.layouts.checkpoint2.tracking import check_tracker

            check_tracker(final.parent)

    def announce(self, final: Location, value: IterationTarget) -> None:
        """Name the iteration in the tracker, unless that names a newer one."""
        if value.tracked:
            from reshard.core.layouts.tracker import track

            track(final.parent, value.number, TRACKER)

    def owns(self, name: str) -> bool:
        """True for the name of a file of tensors."""
        return parse_tensor_file(name) is not None

    def document_names(self, plan: "ConversionPlan", value: IterationTarget) -> tuple[str, ...]:
        """Return the names of its documents; that of a single rank has no metadata."""
        strategy = plan.inputs.target_strategy
        is_single_card = strategy is None or len(strategy.ranks) == 1
        return (COMMON_NAME,) if is_single_card else (METADATA_NAME, COMMON_NAME)

    def build_documents(self, plan: "ConversionPlan", value: IterationTarget) -> Documents:
        """Build metadata.json and common.json."""
        from reshard.core.layouts.checkpoint2.common import Common, build_common
        from reshard.core.layouts.checkpoint2.metadata_writing import build_metadata

        has_metadata = METADATA_NAME in self.document_names(plan, value)
        metadata = Document(METADATA_NAME, build_metadata(plan)) if has_metadata else None
        return Documents(metadata, Document(COMMON_NAME, build_common(Common(dict(value.common)))))

    def places_problem(
        self, location: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: "ConversionPlan | None"
    ) -> str | None:
        """Return the first wrong entry of metadata.json; None if there is none."""
        from reshard.core.layouts.checkpoint2.metadata_checks import metadata_problem

        return metadata_problem(location, index, records)

    def targets_in(self, names: Collection[str]) -> list[str]:
        """Return the names of iterations."""
        return sorted({name for name in names if parse_iteration(name) is not None})

    def leftovers(self, root: Location) -> list[Location]:
        """Find leftovers of runs that were killed while they advanced a tracker."""
        from reshard.core.layouts.tracker import tracker_leftovers

        return tracker_leftovers(root, TRACKER)

    def remove_leftovers(self, root: Location) -> None:
        """Remove what `leftovers` finds."""
        from reshard.core.layouts.tracker import remove_tracker_leftovers

        remove_tracker_leftovers(root, TRACKER)


SIDE = Checkpoint2Side()

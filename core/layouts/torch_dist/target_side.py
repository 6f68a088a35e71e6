"""Megatron-Core's `torch_dist` as a target: DCP's files, and what Megatron wants beside them."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, MAX_METADATA_BYTES
from reshard.core.layouts.documents import DocumentKind, Documents
from reshard.core.layouts.megatron.names import TRACKER, iteration_name, parse_iteration
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.torch_dist.names import COMMON_NAME, CONFIG_NAME, MAX_COMMON_BYTES, OBJECTS_NAME
from reshard.core.layouts.torch_dist.target import TorchDistTarget
from reshard.core.layouts.tracker import check_tracker, track
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.plan.plan import ConversionPlan


class TorchDistSide(TargetSide):
    """The answers about targets of `torch_dist`."""

    record: ClassVar[type[PlannedLayout]] = TorchDistTarget
    documents: ClassVar[Mapping[str, DocumentKind]] = {
        DCP_METADATA_NAME: DocumentKind("metadata", MAX_METADATA_BYTES),
        COMMON_NAME: DocumentKind("state of the training", MAX_COMMON_BYTES),
        OBJECTS_NAME: DocumentKind("file of objects", MAX_COMMON_BYTES),
        CONFIG_NAME: DocumentKind("metadata", MAX_METADATA_BYTES),
    }

    def fill_in(self, request: Any) -> Mapping[str, str]:
        """Return the number of the iteration, and the step of a source that has iterations."""
        from reshard.core.layouts.megatron.choice import choose_number

        return choose_number(request)

    def choose(self, options: Any, catalog: CheckpointCatalog) -> TorchDistTarget:
        """Return the record of the target that a request with all options asks for."""
        from reshard.core.layouts.torch_dist.choice import choose_target

        return choose_target(options, catalog)

    def from_plan(self, document: Mapping[str, Any]) -> TorchDistTarget | None:
        """Return the record in the JSON document of a plan."""
        fields = document.get("torch_dist")
        if fields is None:
            return None
        from reshard.core.layouts.torch_dist.choice import target_from_fields

        return target_from_fields(fields)

    def place(self, location: Location, value: TorchDistTarget) -> Location:
        """Return the iteration's directory, in that of all iterations if the tracker there is to name it."""
        return location.child(iteration_name(value.iteration)) if value.tracked else location

    def check_place(self, final: Location, value: TorchDistTarget) -> None:
        """Refuse a tracker that cannot be advanced."""
        if value.tracked:
            check_tracker(final.parent, TRACKER)

    def announce(self, final: Location, value: TorchDistTarget) -> None:
        """Name the iteration in the tracker, unless that names a newer one."""
        if value.tracked:
            track(final.parent, value.iteration, TRACKER)

    def document_names(self, plan: "ConversionPlan", value: TorchDistTarget) -> tuple[str, ...]:
        """Return the names of its documents."""
        return tuple(self.documents)

    def build_documents(self, plan: "ConversionPlan", value: TorchDistTarget) -> Documents:
        """Build its documents."""
        from reshard.core.layouts.torch_dist.documents import build_torch_dist_documents

        return build_torch_dist_documents(plan, value)

    def places_problem(
        self, location: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: "ConversionPlan | None"
    ) -> str | None:
        """Return the first wrong entry of the metadata; None if there is none."""
        from reshard.core.layouts.torch_dist.metadata_checks import torch_dist_metadata_problem

        return torch_dist_metadata_problem(location, index, records, plan)

    def targets_in(self, names: Collection[str]) -> list[str]:
        """Return the names of iterations, and of a release."""
        return sorted(name for name in names if parse_iteration(name) is not None)


SIDE = TorchDistSide()

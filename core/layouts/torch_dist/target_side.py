"""Megatron-Core's `torch_dist` as a target: DCP's files, and what Megatron wants beside them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, MAX_METADATA_BYTES
from reshard.core.layouts.documents import DocumentKind, Documents
from reshard.core.layouts.megatron.iteration_side import IterationSide
from reshard.core.layouts.torch_dist.names import COMMON_NAME, CONFIG_NAME, MAX_COMMON_BYTES, OBJECTS_NAME
from reshard.core.layouts.torch_dist.target import TorchDistTarget
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.plan.plan import ConversionPlan


class TorchDistSide(IterationSide):
    """The answers about targets of `torch_dist`."""

    record: ClassVar[type[PlannedLayout]] = TorchDistTarget
    documents: ClassVar[Mapping[str, DocumentKind]] = {
        DCP_METADATA_NAME: DocumentKind("metadata", MAX_METADATA_BYTES),
        COMMON_NAME: DocumentKind("state of the training", MAX_COMMON_BYTES),
        OBJECTS_NAME: DocumentKind("file of objects", MAX_COMMON_BYTES),
        CONFIG_NAME: DocumentKind("metadata", MAX_METADATA_BYTES),
    }

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


SIDE = TorchDistSide()

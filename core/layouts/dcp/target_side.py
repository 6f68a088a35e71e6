"""PyTorch's Distributed Checkpoint (DCP) as a target."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord, record_entries
from reshard.core.files.model import FileIndex
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, MAX_METADATA_BYTES, is_data_name
from reshard.core.layouts.dcp.options import DEFAULT_SHARDS, MAX_SHARDS, DcpOptions
from reshard.core.layouts.dcp.target import DcpTarget
from reshard.core.layouts.documents import Document, DocumentKind, Documents
from reshard.core.layouts.options import own_options
from reshard.core.layouts.target_side import TargetSide
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.plan.plan import ConversionPlan


class DcpSide(TargetSide):
    """The answers about DCP targets."""

    record: ClassVar[type[PlannedLayout]] = DcpTarget
    documents: ClassVar[Mapping[str, DocumentKind]] = {DCP_METADATA_NAME: DocumentKind("metadata", MAX_METADATA_BYTES)}

    def choose(self, options: Any, catalog: CheckpointCatalog) -> DcpTarget:
        """Return the record of the target that a request asks for, with the state dict of a source that has one."""
        shards = 0 if options.target_strategy else own_options(options, DcpOptions).shards or DEFAULT_SHARDS
        return DcpTarget(shards, tuple(catalog.state_paths.items()))

    def from_plan(self, document: Mapping[str, Any]) -> DcpTarget | None:
        """Return the record in the JSON document of a plan."""
        fields = document.get("dcp")
        if fields is None:
            return None
        from reshard.core.layouts.dcp.metadata import is_state_path

        if type(fields["shards"]) is not int or not 0 <= fields["shards"] <= MAX_SHARDS:
            raise ValueError(f"invalid shard count {fields['shards']!r}")
        paths = tuple((str(name), tuple(path)) for name, path in fields["paths"])
        if not all(is_state_path(path) for _, path in paths):
            raise ValueError("invalid keys of a state dict")
        return DcpTarget(fields["shards"], paths)

    def owns(self, name: str) -> bool:
        """True for the name of a file of tensors."""
        return is_data_name(name)

    def read_index(self, file: SourceFile, record: ShardRecord) -> FileIndex:
        """Index a `.distcp` file, which does not name its tensors: their headers have to be those of its record."""
        from reshard.core.files import distcp

        return distcp.read_index(file, record_entries(record))

    def document_names(self, plan: "ConversionPlan", value: DcpTarget) -> tuple[str, ...]:
        """Return the name of the metadata."""
        return (DCP_METADATA_NAME,)

    def build_documents(self, plan: "ConversionPlan", value: DcpTarget) -> Documents:
        """Build the metadata."""
        from reshard.core.layouts.dcp.metadata_writing import build_dcp_metadata

        return Documents(Document(DCP_METADATA_NAME, build_dcp_metadata(plan, dict(value.paths))))

    def places_problem(
        self, location: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: "ConversionPlan | None"
    ) -> str | None:
        """Return the first wrong entry of the metadata; None if there is none.

        Only the plan knows which boxes of their tensors the shards in files are.
        """
        from reshard.core.layouts.dcp.metadata_checks import dcp_metadata_problem

        return dcp_metadata_problem(location, index, records, plan)


SIDE = DcpSide()

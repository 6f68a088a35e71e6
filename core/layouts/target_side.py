"""What a layout answers about targets in it; each package has its answers in a module `target_side`.

Those modules are loaded together, to tell a target's files from others, so they import lazily what takes time to load.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.files.any_format import read_index
from reshard.core.files.model import FileIndex
from reshard.core.layouts.documents import NO_DOCUMENTS, DocumentKind, Documents
from reshard.core.plan.planned_layout import CompanionFile, PlannedLayout
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.plan.plan import ConversionPlan


class TargetSide:
    """A layout's answers about its targets; a `value` is the record of one target in it.

    Attributes:
        record: the class of its values.
        blank_plan_fields: its fields in plans of other layouts.
        documents: names of the documents that it may have beside its files of tensors.
        companions: names of files that are copied beside those.
        brings_others: its loaders expect files beside it that a conversion does not write.
        keeps_training_state: it has a place for the state of the training that a source has beside its files.
    """

    record: ClassVar[type[PlannedLayout]]
    blank_plan_fields: ClassVar[Mapping[str, Any]] = {}
    documents: ClassVar[Mapping[str, DocumentKind]] = {}
    companions: ClassVar[Mapping[str, DocumentKind]] = {}
    brings_others: ClassVar[bool] = False
    keeps_training_state: ClassVar[bool] = False

    def fill_in(self, request: Any) -> Mapping[str, str]:
        """Return options that a request leaves open, as far as only the source tells them.

        Raises:
            InputError: neither the request nor the source tells them.
            StorageError: the source cannot be listed.
        """
        return {}

    def choose(self, options: Any, catalog: CheckpointCatalog) -> PlannedLayout:
        """Return the record of the target that a request with all options asks for.

        Raises:
            CatalogError: the source is damaged.
            PlanError: the source lacks what the layout needs.
            StorageError: a file cannot be read.
        """
        raise NotImplementedError

    def for_adapter(self, value: Any) -> Any:
        """Return the record with the files that an adapter with PEFT's names has in this layout."""
        return value

    def needs_adapter_config(self, value: Any) -> bool:
        """True if an adapter's configuration is among the target's documents."""
        return False

    def with_adapter_config(self, value: Any, config: str) -> Any:
        """Return the record with an adapter's configuration, as JSON, if it needs one."""
        raise NotImplementedError

    def from_plan(self, document: Mapping[str, Any]) -> PlannedLayout | None:
        """Return the record in the JSON document of a plan; None if the plan is of another layout.

        Raises:
            ValueError: it is damaged.
        """
        raise NotImplementedError

    def place(self, location: Location, value: Any) -> Location:
        """Return the directory of the target's files, given the one that a request names."""
        return location

    def check_place(self, final: Location, value: Any) -> None:
        """Refuse a place where `announce` would fail.

        Raises:
            TargetError: what is there is in the way.
            StorageError: it cannot be read.
        """

    def announce(self, final: Location, value: Any) -> None:
        """Make a committed target known to those who look for one beside its directory.

        Raises:
            TargetError: what is there is in the way.
            StorageError: it cannot be read or written.
        """

    def owns(self, name: str) -> bool:
        """True for the path of a file of tensors that conversions write below the target's directory.

        And for folders with such files, if they end in a slash; rank folders are known.
        """
        return False

    def read_index(self, file: SourceFile, record: ShardRecord) -> FileIndex:
        """Index a file of tensors that a conversion wrote, with this record.

        Raises:
            CheckpointError: it is damaged, or of another kind.
            StorageError: it cannot be read.
        """
        return read_index(file)

    def document_names(self, plan: "ConversionPlan", value: Any) -> tuple[str, ...]:
        """Return the names of a target's documents, without building them."""
        return ()

    def build_documents(self, plan: "ConversionPlan", value: Any) -> Documents:
        """Build a target's documents."""
        return NO_DOCUMENTS

    def places_problem(
        self,
        location: Location,
        index: IndexSummary,
        records: Iterable[ShardRecord],
        plan: "ConversionPlan | None",
    ) -> str | None:
        """Return the first wrong entry of an index, compared with the records of all files; None if there is none.

        Raises:
            CatalogError: the index cannot be parsed.
            StrategyError: the index cannot be parsed.
        """
        raise NotImplementedError

    def companion_content(self, value: Any, file: CompanionFile) -> bytes:
        """Return the bytes of a file that is copied beside the target's.

        Raises:
            InputError: it has changed since the conversion was planned, or cannot be read.
            StorageError: a transient failure.
        """
        raise NotImplementedError

    def targets_in(self, names: Collection[str]) -> list[str]:
        """Return those names in a directory of several targets that are targets' names; none if it holds one."""
        return []

    def leftovers(self, root: Location) -> list[Location]:
        """Find what killed runs left in a directory of several targets.

        Raises:
            TargetBusyError: a run is working on it.
            TargetError: other files are in the way.
            StorageError: the directory cannot be listed.
        """
        return []

    def remove_leftovers(self, root: Location) -> None:
        """Remove what `leftovers` finds."""

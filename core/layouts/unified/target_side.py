"""Unified checkpoints as targets: whole tensors in a few files with an index."""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.layouts.documents import NO_DOCUMENTS, Document, DocumentKind, Documents
from reshard.core.layouts.options import own_options
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.unified.companions import companion_content, companions_from_json
from reshard.core.layouts.unified.names import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_NAME,
    COMPANION_NAMES,
    INDEX_NAME,
    MAP_NAME,
    MAX_COMPANION_BYTES,
    PEFT,
    UnifiedNaming,
    index_name,
    is_index_name,
    is_unified_name,
)
from reshard.core.layouts.unified.options import UnifiedOptions
from reshard.core.layouts.unified.target import UnifiedTarget
from reshard.core.layouts.weight_maps import MAX_INDEX_BYTES
from reshard.core.plan.planned_layout import CompanionFile, PlannedLayout
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.plan.plan import ConversionPlan

_INDEX = DocumentKind("index", MAX_INDEX_BYTES)
_CONFIG = DocumentKind("configuration", MAX_COMPANION_BYTES)
_COMPANION = DocumentKind("file", MAX_COMPANION_BYTES)


class UnifiedSide(TargetSide):
    """The answers about unified targets."""

    record: ClassVar[type[PlannedLayout]] = UnifiedTarget
    blank_plan_fields: ClassVar[Mapping[str, Any]] = {"unified": None}
    documents: ClassVar[Mapping[str, DocumentKind]] = {
        INDEX_NAME: _INDEX,
        MAP_NAME: _INDEX,
        ADAPTER_CONFIG_NAME: _CONFIG,
    }
    companions: ClassVar[Mapping[str, DocumentKind]] = dict.fromkeys(COMPANION_NAMES, _COMPANION)
    brings_others: ClassVar[bool] = True

    def choose(self, options: Any, catalog: CheckpointCatalog) -> UnifiedTarget:
        """Return the record of the target that a request asks for; its companions are known later."""
        own = own_options(options, UnifiedOptions)
        return UnifiedTarget(own.max_shard_bytes, str(own.unified_naming))

    def for_adapter(self, value: UnifiedTarget) -> UnifiedTarget:
        """Return the record with PEFT's files, if it has Hugging Face's."""
        if value.naming != UnifiedNaming.HUGGINGFACE:
            return value
        return replace(value, naming=PEFT, max_shard_bytes=sys.maxsize)

    def needs_adapter_config(self, value: UnifiedTarget) -> bool:
        """True for PEFT's files."""
        return value.naming == PEFT

    def with_adapter_config(self, value: UnifiedTarget, config: str) -> UnifiedTarget:
        """Return the record with an adapter's configuration."""
        return replace(value, adapter_config=config)

    def from_plan(self, document: Mapping[str, Any]) -> UnifiedTarget | None:
        """Return the record in the JSON document of a plan; plans of earlier versions have no companions."""
        fields, companions = document["unified"], document.get("companions")
        if not fields:
            return None
        copied = companions_from_json(companions) if companions else None
        return UnifiedTarget(fields["max_shard_bytes"], fields["naming"], copied, fields.get("adapter_config", ""))

    def owns(self, name: str) -> bool:
        """True for the name of a file of tensors."""
        return name == ADAPTER_NAME or (is_unified_name(name) and not is_index_name(name))

    def document_names(self, plan: "ConversionPlan", value: UnifiedTarget) -> tuple[str, ...]:
        """Return the name of the index, unless a single file needs none, or that of an adapter's configuration."""
        if value.adapter_config:
            return (ADAPTER_CONFIG_NAME,)
        name = index_name(value.naming, len(plan.match.files.names))
        return (name,) if name else ()

    def build_documents(self, plan: "ConversionPlan", value: UnifiedTarget) -> Documents:
        """Build the index, or an adapter's configuration."""
        if value.adapter_config:
            return Documents(others=(Document(ADAPTER_CONFIG_NAME, value.adapter_config.encode()),))
        from reshard.core.layouts.unified.index_writing import build_index

        names = self.document_names(plan, value)
        return Documents(Document(names[0], build_index(plan, names[0]))) if names else NO_DOCUMENTS

    def places_problem(
        self, location: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: "ConversionPlan | None"
    ) -> str | None:
        """Return the first wrong entry of an index; None if there is none."""
        from reshard.core.layouts.unified.index_writing import index_problem

        return index_problem(location, records)

    def companion_content(self, value: UnifiedTarget, file: CompanionFile) -> bytes:
        """Return the bytes of a companion."""
        assert value.companions is not None
        return companion_content(value.companions, file)


SIDE = UnifiedSide()

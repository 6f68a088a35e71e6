"""The state of the training that a source has beside its files of tensors."""

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.checkpoint2.common import common_beside
from reshard.core.layouts.checkpoint2.names import COMMON_NAME
from reshard.core.runtime.wording import listed


def with_lost_state_noted(catalog: CheckpointCatalog) -> CheckpointCatalog:
    """Return the catalog with a note of what the source has beside its files only, and the target will not have."""
    common = common_beside(catalog)
    if common is None:
        return catalog
    in_files = {name for index in catalog.indexes() for name in index.entries}
    left = {key: value for key, value in common.items() if key not in in_files}
    known = [f"{key} {value}" for key, value in left.items() if value is not None]
    note = f"in {COMMON_NAME} of the source, and not in the result: {listed(known)}"
    return replace(catalog, notes=(*catalog.notes, note)) if known else catalog

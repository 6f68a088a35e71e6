"""Names of the files that a conversion writes into the target's directory itself, and not into rank folders."""

from reshard.core.storage.checkpoint2_names import COMMON_NAME, METADATA_NAME, parse_tensor_file
from reshard.core.storage.unified_names import is_index_name, is_unified_name


def is_target_name(name: str) -> bool:
    """True for the name of a file of a unified checkpoint or of an iteration of Checkpoint 2.0, or of a document."""
    return is_unified_name(name) or parse_tensor_file(name) is not None or is_document_name(name)


def is_document_name(name: str) -> bool:
    """True for the name of an index, or of an iteration's metadata."""
    return name in (METADATA_NAME, COMMON_NAME) or (is_index_name(name) and is_unified_name(name))

"""Names of the files that a conversion writes into the target's directory itself, and not into rank folders."""

from reshard.core.layouts.checkpoint2.names import COMMON_NAME, METADATA_NAME, parse_tensor_file
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, is_data_name
from reshard.core.layouts.unified.names import is_index_name, is_unified_name


def is_target_name(name: str) -> bool:
    """True for the name of a file of a unified checkpoint, an iteration of Checkpoint 2.0 or DCP, or of a document."""
    is_file = is_unified_name(name) or parse_tensor_file(name) is not None or is_data_name(name)
    return is_file or is_document_name(name)


def is_document_name(name: str) -> bool:
    """True for the name of an index, or of the metadata of an iteration or of DCP."""
    return name in (METADATA_NAME, COMMON_NAME, DCP_METADATA_NAME) or (is_index_name(name) and is_unified_name(name))

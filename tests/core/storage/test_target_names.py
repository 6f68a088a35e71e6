"""Names of files that a conversion writes into the target's directory."""

import pytest

from reshard.core.storage.target_names import is_document_name, is_target_name


@pytest.mark.parametrize(
    ("name", "is_target", "is_document"),
    [
        ("model-0000000-0000004.safetensors", True, False),
        ("a-b-opt-0000003-0000004.safetensors", True, False),
        ("metadata.json", True, True),
        ("common.json", True, True),
        ("model.safetensors", True, False),
        ("model.safetensors.index.json", True, True),
        ("param_name_map.json", True, True),
        ("config.json", False, False),
        ("latest_checkpointed_iteration.txt", False, False),
        ("../model-0000000-0000004.safetensors", False, False),
        ("other.safetensors.index.json", False, False),
    ],
)
def test_names(name: str, is_target: bool, is_document: bool) -> None:
    assert (is_target_name(name), is_document_name(name)) == (is_target, is_document)

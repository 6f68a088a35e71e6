"""Names of a unified checkpoint's files, in both schemes."""

import pytest

from reshard.core.layouts.unified.names import (
    UnifiedNaming,
    file_names,
    index_name,
    is_index_name,
    is_unified_name,
)


@pytest.mark.parametrize("naming", list(UnifiedNaming))
@pytest.mark.parametrize("count", [1, 2, 12])
def test_written_names_are_recognized(naming: UnifiedNaming, count: int) -> None:
    names = file_names(naming, count, has_others=naming is UnifiedNaming.MINDSPORE)
    assert len(set(names)) == count + (naming is UnifiedNaming.MINDSPORE)
    index = index_name(naming, count)
    assert all(map(is_unified_name, [*names, *([index] if index else [])]))
    assert not index or is_index_name(index)


def test_a_single_file_of_hugging_face_needs_no_index() -> None:
    assert file_names(UnifiedNaming.HUGGINGFACE, 1) == ("model.safetensors",)
    assert index_name(UnifiedNaming.HUGGINGFACE, 1) == ""


def test_other_names() -> None:
    assert not any(
        map(is_unified_name, ["part.safetensors", "model-1-of-2.safetensors", "readme.md", "part٣.safetensors"])
    )

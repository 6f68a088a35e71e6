"""The layouts' answers about targets: names of files in a target's directory, records in plans."""

import gzip
import json
import pkgutil

import pytest

from reshard.core import layouts
from reshard.core.layouts.documents import DocumentKind
from reshard.core.layouts.registry import SOURCE_NAMES, TargetLayout
from reshard.core.layouts.targets import (
    all_sides,
    document_kind,
    is_document_name,
    is_target_name,
    layout_from_plan,
    plan_fields,
)
from tests.support.places import FIXTURES


def test_each_package_is_a_layout_in_the_list() -> None:
    packages = {module.name for module in pkgutil.iter_modules(layouts.__path__) if module.ispkg}
    assert packages == {*TargetLayout, *SOURCE_NAMES}
    assert [side.record.name for side in all_sides()] == list(TargetLayout)


def test_a_name_beside_the_files_is_the_same_in_all_layouts() -> None:
    kinds: dict[str, list[DocumentKind]] = {}
    for side in all_sides():
        for name, kind in [*side.documents.items(), *side.companions.items()]:
            kinds.setdefault(name, []).append(kind)
    assert [name for name, of_name in kinds.items() if len(set(of_name)) > 1] == []
    assert document_kind(".metadata").title == "metadata"
    assert document_kind("config.json").title == "file"


def test_a_plan_of_two_layouts_is_refused() -> None:
    documents = [
        json.loads(gzip.decompress((FIXTURES / f"plans/{name}.json.gz").read_bytes())) for name in ("unified", "dcp")
    ]
    both = documents[0] | {"dcp": documents[1]["dcp"]}
    with pytest.raises(ValueError, match="its target has several layouts: unified, dcp"):
        layout_from_plan(both)


@pytest.mark.parametrize("name", ["ranks_with_prefix", "unified_with_companions", "checkpoint2", "dcp"])
def test_a_layout_is_read_back_from_a_plan(name: str) -> None:
    document = json.loads(gzip.decompress((FIXTURES / f"plans/{name}.json.gz").read_bytes()))
    fields = plan_fields(layout_from_plan(document))
    assert json.loads(json.dumps(fields)) == {key: document[key] for key in fields}


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

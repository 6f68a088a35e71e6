"""The commands of the guide to Hugging Face run, in its order and unchanged."""

import json
from pathlib import Path

import pytest
import yaml

from reshard.core.changes.preset import LoadedName, Names, Preset, Switch, list_presets
from reshard.core.changes.preset_rows import Positions, Regrouping, Row
from reshard.core.changes.rules import Rule
from tests.support.families import directory_contents
from tests.support.guides import follow
from tests.support.places import PROJECT


@pytest.mark.slow
def test_to_hugging_face_and_back(tmp_path: Path) -> None:
    printed = follow("guides/huggingface.md", tmp_path)
    assert printed.count("the same model") == 3
    names = directory_contents(tmp_path / "export").keys()
    assert "model.layers.3.self_attn.q_proj.weight" in names
    assert json.loads((tmp_path / "export/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_the_reference_lists_every_preset() -> None:
    page = (PROJECT / "docs/reference/presets.md").read_text()
    for preset in list_presets().presets:
        assert f"| `{preset.preset}` |" in page


@pytest.mark.parametrize("rule", [Row, Regrouping, Positions, Switch, Names, LoadedName, Preset])
def test_the_reference_explains_every_field(rule: type[Rule]) -> None:
    page = (PROJECT / "docs/reference/presets.md").read_text()
    document = page.partition("## The document")[2]
    assert [name for name in rule.model_fields if f"`{name}`" not in document and f"{name}:" not in document] == []


def test_the_document_of_the_reference_is_a_preset() -> None:
    page = (PROJECT / "docs/reference/presets.md").read_text()
    document = page.partition("```yaml\n")[2].partition("```")[0]
    preset = Preset.model_validate(yaml.load(document, yaml.BaseLoader))
    assert preset.worlds == ("mcore",)

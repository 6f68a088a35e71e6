"""What inspect and doctor tell of LoRA adapters alone: PEFT's and MindFormers', as their own code wrote them."""

import json
import shutil
from pathlib import Path

import pytest

from reshard.core.source.description import describe
from tests.support.diagnosed import diagnose
from tests.support.places import FIXTURES

LORA = FIXTURES / "lora"
SUMMARIES = {
    "case_bias_all": "LoRA, 6 modules, rank 4, alpha 6, trained with 'base'",
    "case_rank_pattern": "LoRA, 6 modules, ranks 2, 4, 8, alpha 6, others by alpha_pattern, trained with 'base'",
    "case_mf_adapter_only": "LoRA, 4 modules, rank 4, alpha 6",
}


def told_by_doctor(directory: Path) -> str:
    return dict(diagnose(str(directory)).facts).get("adapter", "")


@pytest.mark.parametrize(("case", "text"), SUMMARIES.items(), ids=str)
def test_an_adapter_is_told(case: str, text: str) -> None:
    adapter = LORA / case / "adapter"
    assert told_by_doctor(adapter) == text
    if (adapter / "adapter_config.json").exists():
        assert describe(str(adapter))["adapter"] == text


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    base = LORA / "case_bias_all" / "base"
    assert told_by_doctor(base) == ""
    assert "adapter" not in describe(str(base))
    assert told_by_doctor(LORA / "case_mf_one_file" / "src") == ""


def test_an_adapter_without_its_configuration(tmp_path: Path) -> None:
    shutil.copy(LORA / "case_bias_all" / "adapter" / "adapter_model.safetensors", tmp_path)
    assert told_by_doctor(tmp_path) == "LoRA, 6 modules, rank 4, alpha not recorded"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"use_dora": True}, "'use_dora' is true"), ({"r": "\x1b[31m"}, "'r' must be a whole number from 1 on")],
)
def test_a_configuration_that_cannot_be_used(fields: dict[str, object], problem: str, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(LORA / "case_bias_all" / "adapter", adapter)
    config = json.loads((adapter / "adapter_config.json").read_text()) | fields
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for text in (told_by_doctor(adapter), describe(str(adapter))["adapter"]):
        assert text.startswith("LoRA, 6 modules; its configuration cannot be used: ")
        assert problem in text
        assert text.isprintable()

"""torchtitan's names to and from others by presets.

tests/fixtures/torchtitan has what torchtitan's own StateDictAdapter, of the version in each name, makes of the models
in tests/fixtures/model_families and torchtitan_models. Of gpt-oss, version 0.3.0's adapter loses the experts: there the
names are those of its model, which loaded these tensors strictly.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError, ReshardError
from tests.core.conversion.test_megatron_names import (
    FROM,
    Model,
    bytes_of,
    found_in,
    of_family,
    refusal,
    request,
    source_of,
)
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays

assert ml_dtypes.bfloat16, "imported for safetensors"

FIXTURES = Path(__file__).parents[2] / "fixtures" / "torchtitan"
MODELS = FIXTURES.parent / "torchtitan_models"
CASES = [path.stem.rpartition("_")[::2] for path in sorted(FIXTURES.iterdir())]


def titan(name: str, version: str) -> Arrays:
    return load_file(FIXTURES / f"{name}_{version}.safetensors")


def model_of(name: str) -> Model:
    directory = MODELS / name
    if not directory.exists():
        return of_family(name)
    return Model(name, load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text()))


@pytest.mark.parametrize(("name", "version"), CASES)
def test_as_torchtitans_own_adapter_has_it(name: str, version: str, tmp_path: Path) -> None:
    model, tensors = model_of(name), titan(name, version)
    hf = model.directory(tmp_path / "hf")
    convert(request(hf, tmp_path / "titan", model.preset, f"titan_version={version[:3]}", names="titan"))
    assert found_in(tmp_path / "titan") == bytes_of(tensors)
    source = source_of(tensors, tmp_path / "source", model.config)
    report = convert(request(source, tmp_path / "back", model.preset))
    assert found_in(tmp_path / "back") == bytes_of(model.hf)
    assert f"preset {model.preset}: torchtitan to Hugging Face (titan names" in str(report.notes)
    assert "were read in the code" not in str(report.notes)


def test_todays_names_unless_asked_for_others(tmp_path: Path) -> None:
    hf = of_family("qwen3").directory(tmp_path / "hf")
    convert(request(hf, tmp_path / "titan", "qwen3", names="titan"))
    assert found_in(tmp_path / "titan") == bytes_of(titan("qwen3", "0.3.0"))


def test_a_wrong_value_of_a_switch_that_this_way_does_not_need(tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(titan("qwen3", "0.3.0"), tmp_path / "source", model.config)
    asked = request(source, tmp_path / "back", "qwen3", "titan_version=0.4")
    assert refusal(asked) == "switch=['titan_version=0.4']: must be one of 0.3, 0.2"


def test_between_torchtitan_and_megatron(tmp_path: Path) -> None:
    model, tensors = of_family("qwen3_moe"), titan("qwen3_moe", "0.2.2")
    source = source_of(tensors, tmp_path / "titan", model.config)
    convert(request(source, tmp_path / "megatron", "qwen3_moe", "megatron_experts=stacked", names="megatron"))
    assert found_in(tmp_path / "megatron") == bytes_of(megatron(model.hf, model.config, "stacked"))
    (tmp_path / "megatron/config.json").write_bytes((source / "config.json").read_bytes())
    asked = request(tmp_path / "megatron", tmp_path / "back", "qwen3_moe", FROM, "titan_version=0.2", names="titan")
    convert(asked)
    assert found_in(tmp_path / "back") == bytes_of(tensors)


def test_from_one_version_to_another(tmp_path: Path) -> None:
    model = of_family("qwen3_moe")
    source = source_of(titan("qwen3_moe", "0.2.2"), tmp_path / "old", model.config)
    convert(request(source, tmp_path / "new", "qwen3_moe", names="titan"))
    assert found_in(tmp_path / "new") == bytes_of(titan("qwen3_moe", "0.3.0"))


def test_the_table_of_rotations_is_left_out(tmp_path: Path) -> None:
    """Older versions store it."""
    model = of_family("llama")
    tensors = titan("llama", "0.2.2") | {"freqs_cis": np.ones((64, 4), np.complex64)}
    source = source_of(tensors, tmp_path / "source", model.config)
    report = convert(request(source, tmp_path / "hf", "llama"))
    assert found_in(tmp_path / "hf") == bytes_of(model.hf)
    assert "left out: 1 buffer freqs_cis, which models compute from config.json" in report.notes


def test_a_training_of_torchtitan_to_hugging_face_and_back(tmp_path: Path) -> None:
    """A DCP with the names of its model at the top."""
    model = of_family("llama")
    moments = {"optimizer.state.norm.weight.exp_avg": np.ones(32, np.float32)}
    source = source_of(titan("llama", "0.3.0") | moments, tmp_path / "source", model.config)
    convert(request(source, tmp_path / "step-1000", "", layout="dcp"))
    like = model.directory(tmp_path / "like")
    convert(request(tmp_path / "step-1000", tmp_path / "hf", "llama", like=str(like), select="weights-only"))
    assert found_in(tmp_path / "hf") == bytes_of(model.hf)
    convert(request(tmp_path / "hf", tmp_path / "seed", "llama", layout="dcp", names="titan"))
    convert(request(tmp_path / "seed", tmp_path / "whole", ""))
    assert found_in(tmp_path / "whole") == bytes_of(titan("llama", "0.3.0"))


def test_a_bias_that_hugging_faces_model_lacks_is_refused(tmp_path: Path) -> None:
    """torchtitan may balance the load of Qwen3's experts by one, and its own adapter drops it without a word."""
    model = of_family("qwen3_moe")
    tensors = titan("qwen3_moe", "0.3.0") | {"layers.0.moe.expert_bias_E": np.ones(4, np.float32)}
    source = source_of(tensors, tmp_path / "source", model.config)
    assert "'layers.0.moe.expert_bias" in refusal(request(source, tmp_path / "hf", "qwen3_moe"), PlanError)


def test_a_tied_head_that_is_no_copy_is_refused(tmp_path: Path) -> None:
    model = of_family("llama_tied")
    tensors = titan("llama_tied", "0.3.0")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][::-1].copy()
    source = source_of(tensors, tmp_path / "source", model.config)
    with pytest.raises(ReshardError, match=r"'output.weight'|'lm_head.weight'"):
        convert(request(source, tmp_path / "hf", "llama"))

"""Megatron-Core's own gated delta net answers as transformers' does, with the weights that the preset makes for it."""

import json
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.mindspore_process import MEGATRON_PYTHON, TORCH_PYTHON

SCRIPT = Path(__file__).parent / "delta_net_judge.py"
CONFIG = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 1,
    "hidden_size": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
}


def judged(python: Path, *arguments: object) -> str:
    return subprocess.run([python, SCRIPT, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not (MEGATRON_PYTHON.exists() and TORCH_PYTHON.exists()),
    reason="make .venv-megatron/installed .venv-torch/installed",
)
def test_megatron_core_answers_as_transformers(tmp_path: Path) -> None:
    source, target = tmp_path / "hf", tmp_path / "megatron"
    source.mkdir()
    judged(TORCH_PYTHON, source)
    (source / "config.json").write_text(json.dumps(CONFIG))
    # of a model only the layer is there
    options = {"preset": "qwen3_next", "switch": ["in_proj=fused"], "allow_missing": ["*"]}
    convert(build_request(source=str(source), target=str(target), layout="unified", **options))
    weights = target / "model.safetensors"
    spoiled = load_file(weights)
    spoiled["decoder.layers.0.self_attention.in_proj.weight"][[0, 8]] = spoiled[
        "decoder.layers.0.self_attention.in_proj.weight"
    ][[8, 0]]
    save_file(spoiled, tmp_path / "spoiled.safetensors")
    right, wrong = map(float, judged(MEGATRON_PYTHON, source, weights, tmp_path / "spoiled.safetensors").split())
    assert right < 1e-5
    assert wrong > 1e-3

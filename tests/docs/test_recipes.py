"""The recipes are carried out, in their order and as they stand."""

import json
from pathlib import Path

import ml_dtypes  # noqa: F401 - with it numpy, and so safetensors, knows bfloat16
import numpy as np
import pytest
from safetensors import safe_open

from demo.model import Parameter, stage_parameters, values
from tests.support.guides import follow

pytestmark = pytest.mark.slow


def test_recipes(tmp_path: Path) -> None:
    printed = follow("guides/recipes.md", tmp_path)
    assert "RECOVERED" in printed
    assert printed.count("the same model") == 1
    check_llama(tmp_path / "llama")


def check_llama(directory: Path) -> None:
    """What a loader of Hugging Face's finds: the demo's weights, under the names that were asked for."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    weights = {parameter.name: parameter for parameter in stage_parameters(0, 1) if "adam" not in parameter.name}
    assert len(index) == len(weights)
    queries = "model.layers.2.self_attn.q_proj.weight"
    found = bits_of(directory / index[queries], queries)
    assert np.array_equal(found, values(weights["model.layers.2.attention.wq.weight"], 1200))
    norm = "model.layers.3.ffn_norm.weight"
    assert np.array_equal(bits_of(directory / index[norm], norm), widened(weights[norm]))


def bits_of(path: Path, name: str) -> np.ndarray:
    """A tensor's elements as unsigned integers."""
    with safe_open(path, "numpy") as file:
        array = file.get_tensor(name)
    return array.view({2: np.uint16, 4: np.uint32}[array.itemsize])


def widened(parameter: Parameter) -> np.ndarray:
    """The bits of a bfloat16 weight as a float32 one."""
    return values(parameter, 1200).astype(np.uint32) << 16

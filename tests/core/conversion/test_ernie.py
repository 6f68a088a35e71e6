"""ERNIE 4.5 with biases and with its layer for multi-token prediction: what Megatron has no place for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import PlanError
from reshard.core.request.conversion import build_request
from tests.core.conversion.test_expert_families import MODEL, bytes_of, found_in
from tests.support.diagnosed import diagnose
from tests.support.mindformers_rules import Arrays
from tests.support.written_models import fused, written

PLAIN = MODEL["ernie4_5_moe"]
HIDDEN = PLAIN.hf["model.norm.weight"].size


def with_biases() -> Arrays:
    """Each linear layer has one, but for experts and their router."""
    hf = PLAIN.hf
    linear = [name for name in hf if ("_proj." in name and ".experts." not in name) or name == "lm_head.weight"]
    return hf | {name.replace(".weight", ".bias"): np.ones(len(hf[name]), np.float32) for name in linear}


def with_prediction() -> Arrays:
    """The layer for multi-token prediction is one without experts."""
    hf = PLAIN.hf
    start = "model.layers.0."
    block = {name.replace(start, "model.mtp_block.0."): array for name, array in hf.items() if name.startswith(start)}
    norms = {f"model.mtp_{name}_norm.0.weight": np.ones(HIDDEN, np.float32) for name in ("emb", "hidden")}
    return hf | block | norms | {"model.mtp_linear_proj.0.weight": np.ones((HIDDEN, 2 * HIDDEN), np.float32)}


MODELS = {"biases": (with_biases(), {"use_bias": True}), "prediction": (with_prediction(), {})}


def request(source: Path, target: Path, **options: Any) -> Any:
    return build_request(source=str(source), target=str(target), layout="unified", preset=PLAIN.preset, **options)


def refusal(source: Path, **options: Any) -> str:
    with pytest.raises(PlanError) as caught:
        make_plan(request(source, source.parent / "out", **options))
    return str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_both_dialects(name: str, tmp_path: Path) -> None:
    hf, fields = MODELS[name]
    hub = written(tmp_path / "hub", hf, {**PLAIN.config, **fields})
    convert(request(hub, tmp_path / "there", dialect="transformers5", verify="content"))
    assert found_in(tmp_path / "there") == bytes_of(fused(hf))
    convert(request(tmp_path / "there", tmp_path / "back", dialect="hub", config_json=str(hub)))
    assert found_in(tmp_path / "back") == bytes_of(hf)
    loaded = diagnose(str(hub)).loaded
    assert loaded is not None
    assert (loaded.missing, loaded.dropped, loaded.mismatched) == ((), (), ())
    assert len(loaded.speculative) == (12 if name == "prediction" else 0)


@pytest.mark.parametrize(
    ("name", "refused"), [("biases", "lm_head.bias"), ("prediction", "model.mtp_block.0.mlp.up_proj.weight")]
)
def test_megatron_has_no_place_for_it(name: str, refused: str, tmp_path: Path) -> None:
    hf, fields = MODELS[name]
    source = written(tmp_path / "hf", hf, {**PLAIN.config, **fields})
    assert f"parameter {refused!r} is in no row of the preset" in refusal(source, names="megatron")


def test_without_the_layer_for_prediction_megatron_gets_the_rest(tmp_path: Path) -> None:
    source = written(tmp_path / "hf", with_prediction(), dict(PLAIN.config))
    convert(request(PLAIN.directory(tmp_path / "plain"), tmp_path / "expected", names="megatron"))
    convert(request(source, tmp_path / "out", names="megatron", exclude=["model.mtp_*"]))
    assert found_in(tmp_path / "out") == found_in(tmp_path / "expected")


@pytest.mark.parametrize(
    ("name", "missing", "asked"),
    [
        ("biases", "lm_head.bias", ": config.json asks for it (use_bias)"),
        ("biases", "model.layers.1.self_attn.k_proj.bias", ": config.json asks for it (use_bias)"),
        ("biases", "model.layers.0.mlp.down_proj.bias", ""),
        ("biases", "model.layers.2.mlp.shared_experts.up_proj.bias", ""),
        ("prediction", "model.mtp_hidden_norm.0.weight", ""),
        ("prediction", "model.mtp_block.0.self_attn.v_proj.weight", ""),
    ],
)
def test_what_a_dialect_lacks_is_named(name: str, missing: str, asked: str, tmp_path: Path) -> None:
    """Names do not change on this way, but are checked."""
    hf, fields = MODELS[name]
    kept = {each: array for each, array in hf.items() if each != missing}
    source = written(tmp_path / "hf", kept, {**PLAIN.config, **fields})
    assert f"parameter {missing!r} is missing{asked}" in refusal(source, dialect="transformers5")


def test_biases_that_config_json_does_not_ask_for(tmp_path: Path) -> None:
    source = written(tmp_path / "hf", with_biases(), dict(PLAIN.config))
    text = refusal(source, dialect="transformers5")
    assert "parameter 'lm_head.bias' is read by no loader, since config.json does not set use_bias" in text

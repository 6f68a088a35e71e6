"""Models of which a preset knows the text part only: others keep their names, and may not get lost."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.changes.model_config import fields_of
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import PlanError
from reshard.core.request.conversion import build_request
from tests.support.diagnosed import diagnose
from tests.support.families import directory_contents
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays
from tests.support.written_models import written

TEXT = {"model_type": "gemma3_text", "num_hidden_layers": 2, "vocab_size": 32, "hidden_size": 16, "head_dim": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 10}  # fmt: skip
CONFIG: dict[str, Any] = {
    "model_type": "gemma3",
    "tie_word_embeddings": True,
    "text_config": TEXT,
    "vision_config": {"hidden_size": 8, "num_hidden_layers": 1},
}
LAYER = {
    **{f"{name}_layernorm.weight": (16,) for name in ("input", "post_attention")},
    **{f"{name}_feedforward_layernorm.weight": (16,) for name in ("pre", "post")},
    **{f"self_attn.{name}_proj.weight": (rows, 16) for name, rows in (("q", 16), ("k", 8), ("v", 8), ("o", 16))},
    **{f"self_attn.{name}_norm.weight": (4,) for name in "qk"},
    "mlp.gate_proj.weight": (10, 16),
    "mlp.up_proj.weight": (10, 16),
    "mlp.down_proj.weight": (16, 10),
}
VISION = {
    "vision_tower.encoder.layers.0.self_attn.q_proj.weight": (8, 8),
    "vision_tower.encoder.layers.0.self_attn.q_proj.bias": (8,),
    "multi_modal_projector.mm_input_projection_weight": (8, 16),
}
WITHOUT_VISION = ["vision_tower.*", "multi_modal_projector.*"]


def random(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    draw = np.random.default_rng(1)
    return {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}


TEXT_MODEL = random(
    {"model.embed_tokens.weight": (32, 16), "model.norm.weight": (16,)}
    | {f"model.layers.{number}.{name}": shape for number in range(2) for name, shape in LAYER.items()}
)
OTHERS = random(VISION)
HF = {f"language_model.{name}": array for name, array in TEXT_MODEL.items()} | OTHERS


def bytes_of(arrays: Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def found_in(directory: Path) -> dict[str, bytes]:
    return {name: content for name, (_, _, content) in directory_contents(directory).items()}


def directory(path: Path, hf: Arrays = HF, **fields: Any) -> Path:
    return written(path, hf, CONFIG | fields)


def converted(source: Path, target: Path, **options: Any) -> Path:
    convert(build_request(source=str(source), target=str(target), preset="gemma3_vl", **options))
    return target


def test_other_parts_pass_through(tmp_path: Path) -> None:
    hf = directory(tmp_path / "hf")
    whole = converted(hf, tmp_path / "whole", layout="unified", verify="content")
    assert found_in(whole) == bytes_of(megatron(TEXT_MODEL, TEXT) | OTHERS)
    back = converted(whole, tmp_path / "back", layout="unified", like=str(hf), verify="content")
    assert found_in(back) == bytes_of(HF)


def test_megatron_has_no_place_for_other_parts(tmp_path: Path) -> None:
    hf, out = directory(tmp_path / "hf"), tmp_path / "out"
    said = r"vision_tower.* are not parameters of Megatron-Core: .* leave them out, 'exclude'"
    with pytest.raises(PlanError, match=said):
        converted(hf, out, layout="megatron")
    converted(hf, out, layout="megatron", exclude=WITHOUT_VISION)
    # without a preset the names stay, so that each tensor is held against the rules in numpy
    convert(build_request(source=str(out), target=str(tmp_path / "whole"), layout="unified"))
    assert found_in(tmp_path / "whole") == bytes_of(megatron(TEXT_MODEL, TEXT))


def test_a_model_without_one_of_its_parts_is_refused(tmp_path: Path) -> None:
    """Loaders would begin with random weights in their place."""
    hf = directory(tmp_path / "hf")
    text = written(tmp_path / "text", megatron(TEXT_MODEL, TEXT))
    options: dict[str, Any] = {"layout": "unified", "config_json": str(hf)}
    with pytest.raises(PlanError) as caught:
        converted(text, tmp_path / "out", **options)
    for prefix in ("vision_tower.", "multi_modal_projector."):
        assert f"there are no parameters {prefix}*, and the model of config.json has that part" in str(caught.value)
        assert f"allow_missing=['{prefix}*']" in str(caught.value)
    out = converted(text, tmp_path / "out", allow_missing=WITHOUT_VISION, **options)
    assert found_in(out) == bytes_of({name: array for name, array in HF.items() if name not in OTHERS})


def test_another_unknown_part_is_refused(tmp_path: Path) -> None:
    hf = directory(tmp_path / "hf", HF | {"audio_tower.weight": np.zeros(2, np.float32)})
    with pytest.raises(PlanError, match="'audio_tower.weight' is in no row of the preset"):
        make_plan(build_request(source=str(hf), target=str(tmp_path / "out"), preset="gemma3_vl", layout="unified"))


def test_what_a_diagnosis_tells_of_other_parts(tmp_path: Path) -> None:
    whole = diagnose(str(directory(tmp_path / "hf")))
    assert whole.fits is True
    assert [each.found for each in whole.findings] == [
        "2 parameters vision_tower.* of another part of the model",
        "1 parameter multi_modal_projector.* of another part of the model",
    ]
    lost = {name: array for name, array in HF.items() if not name.startswith("vision_tower.")}
    without = diagnose(str(directory(tmp_path / "without", lost)))
    assert without.fits is False
    assert without.findings[0].found == "no parameters vision_tower.*, and the model has that part"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"hidden_size": 8, "text_config": {"hidden_size": 16}}, {"hidden_size": 16}),
        ({"vocab_size": 32, "text_config": {"hidden_size": 16}}, {"vocab_size": 32, "hidden_size": 16}),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, {"tie_word_embeddings": False}),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, {"model_type": "gemma3"}),
        ({"hidden_size": 8, "text_config": ["hidden_size"]}, {"hidden_size": 8, "text_config": ["hidden_size"]}),
        ({"hidden_size": 8}, {"hidden_size": 8}),
    ],
)
def test_fields_of_a_part(config: dict[str, Any], found: dict[str, Any]) -> None:
    assert {name: fields_of(config, "text_config")[name] for name in found} == found
    assert fields_of(config, "") == json.loads(json.dumps(config))

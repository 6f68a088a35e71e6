"""What is exported in block-fp8 loads into transformers, which dequantizes it as reshard does."""

from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.mindspore_process import TORCH_PYTHON, TransformersJudge

_HAS_ACCELERATE = any((TORCH_PYTHON.parents[1] / "lib").glob("python3*/site-packages/accelerate"))
"""Without it transformers loads no quantized model."""
_DENSE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_SPARSE = _DENSE | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@pytest.mark.slow
@pytest.mark.skipif(not _HAS_ACCELERATE, reason="make .venv-torch/installed")
@pytest.mark.parametrize("config", [_DENSE, _SPARSE], ids=["qwen3", "qwen3_moe"])
def test_transformers_loads_what_was_quantized(
    config: dict[str, Any], transformers: TransformersJudge, tmp_path: Path
) -> None:
    """From MindFormers' names, whose experts are transposed, and as it dequantizes what it loads on a CPU."""
    model, trained, fp8, plain = (tmp_path / name for name in ("model", "trained", "fp8", "plain"))
    switches = ["use_interleaved_weight_layout_mlp=true", "use_contiguous_weight_layout_attention=true"]
    options = {"preset": config["model_type"], "switch": switches, "layout": "unified"}
    transformers.ask("make_model", directory=str(model), config=config, dtype="bfloat16", seed=1)
    convert(build_request(source=str(model), target=str(trained), **options))
    quantized = options | {"fp8": "quantize", "like": str(model), "verify": "content"}
    convert(build_request(source=str(trained), target=str(fp8), **quantized))
    convert(build_request(source=str(fp8), target=str(plain), layout="unified", fp8="dequantize", like=str(model)))
    assert transformers.ask("compare_models", directory=str(plain), other=str(fp8), seed=1) == []

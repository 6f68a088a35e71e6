"""Quantized weights are kept byte for byte, with what belongs to them; where that is not possible, they are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from tests.support.families import directory_contents
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout
from tests.support.safetensors_files import write_safetensors

Tensors = dict[str, tuple[str, np.ndarray]]
RANDOM = np.random.default_rng(1)
FP8: Tensors = {
    "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", RANDOM.integers(0, 120, (256, 128), np.uint8)),
    "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", RANDOM.random((2, 1), np.float32).view(np.uint32)),
    "model.norm.weight": ("BF16", RANDOM.integers(0, 2**14, (128,), np.uint16)),
}
INT8: Tensors = {
    "model.layers.0.mlp.up_proj.weight": ("I8", RANDOM.integers(0, 120, (256, 128), np.uint8)),
    "model.layers.0.mlp.up_proj.weight_scale": ("F32", RANDOM.random((256, 1), np.float32).view(np.uint32)),
    "model.layers.0.mlp.up_proj.weight_offset": ("F32", RANDOM.random((256, 1), np.float32).view(np.uint32)),
    "model.layers.0.mlp.up_proj.deq_scale": ("I64", RANDOM.integers(0, 2**40, (256,), np.uint64)),
    "model.layers.0.mlp.up_proj.quant_bias": ("I32", RANDOM.integers(0, 2**20, (256,), np.uint32)),
    "model.layers.0.mlp.up_proj.input_scale": ("BF16", RANDOM.integers(0, 2**14, (1,), np.uint16)),
    "model.layers.0.mlp.up_proj.input_offset": ("BF16", RANDOM.integers(0, 2**14, (1,), np.uint16)),
    "model.norm.weight": ("BF16", RANDOM.integers(0, 2**14, (128,), np.uint16)),
}
MXFP4: Tensors = {
    "model.layers.0.mlp.experts.down_proj_blocks": ("U8", RANDOM.integers(0, 256, (2, 64, 2, 16), np.uint8)),
    "model.layers.0.mlp.experts.down_proj_scales": ("U8", RANDOM.integers(100, 140, (2, 64, 2), np.uint8)),
    "model.norm.weight": ("BF16", RANDOM.integers(0, 2**14, (128,), np.uint16)),
}
UP = "model.layers.0.mlp.up_proj"
NORM: Tensors = {"model.norm.weight": ("BF16", RANDOM.integers(0, 2**14, (512,), np.uint16))}
OTHERS: dict[str, Tensors] = {
    "scaled fp8": {
        f"{UP}.weight": ("F8_E4M3", RANDOM.integers(0, 120, (256, 128), np.uint8)),
        f"{UP}.weight_scale": ("BF16", RANDOM.integers(0, 2**14, (256, 1), np.uint16)),
    },
    "nvfp4": {
        f"{UP}.weight": ("U8", RANDOM.integers(0, 256, (256, 64), np.uint8)),
        f"{UP}.weight_scale": ("F8_E4M3", RANDOM.integers(0, 120, (256, 8), np.uint8)),
        f"{UP}.weight_scale_2": ("F32", RANDOM.random(1, np.float32).view(np.uint32)),
    },
    "nf4": {
        f"{UP}.weight": ("U8", RANDOM.integers(0, 256, (16384, 1), np.uint8)),
        f"{UP}.weight.absmax": ("F32", RANDOM.random(512, np.float32).view(np.uint32)),
    },
    "gptq": {
        f"{UP}.qweight": ("I32", RANDOM.integers(0, 2**31, (16, 256), np.uint32)),
        f"{UP}.scales": ("F16", RANDOM.integers(0, 2**14, (1, 256), np.uint16)),
    },
    "packed": {
        f"{UP}.weight_packed": ("I32", RANDOM.integers(0, 2**31, (256, 16), np.uint32)),
        f"{UP}.weight_scale": ("BF16", RANDOM.integers(0, 2**14, (256, 1), np.uint16)),
    },
    "bitsandbytes": {
        f"{UP}.weight": ("I8", RANDOM.integers(0, 120, (256, 128), np.uint8)),
        f"{UP}.SCB": ("F32", RANDOM.random(256, np.float32).view(np.uint32)),
    },
}
CONFIG = {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "its own"}}
DESCRIPTION = {"model.layers.0.mlp.up_proj.weight": "W8A8", "model.norm.weight": "FLOAT"}
KINDS = {"fp8": FP8, "int8": INT8, "mxfp4": MXFP4}


def write(directory: Path, tensors: Tensors) -> Path:
    """A directory, whose weights ModelSlim names in its own way."""
    directory.mkdir()
    is_int8 = any(tag == "I8" for tag, _ in tensors.values())
    name = "quant_model_weight_w8a8.safetensors" if is_int8 else "model.safetensors"
    write_safetensors(directory / name, tensors)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    if is_int8:
        (directory / "quant_model_description_w8a8.json").write_text(json.dumps(DESCRIPTION))
    return directory


def run(source: Path, target: Path, **options: Any) -> Path:
    assert convert(build_request(source=str(source), target=str(target), **{"verify": "content"} | options)).committed
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_is_copied_with_its_description(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path / "source", KINDS[kind])
    target = run(source, tmp_path / "target", layout="unified", like=str(source), max_shard_size="20KB")
    assert directory_contents(target) == directory_contents(source)
    for name in ("config.json", "quant_model_description_w8a8.json"):
        if (source / name).exists():
            assert (target / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_belong_together_are_renamed(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path / "source", KINDS[kind])
    target = run(source, tmp_path / "target", layout="unified", rename=[r"re:model\.(.*)=\1"])
    want = {name.removeprefix("model."): content for name, content in directory_contents(source).items()}
    assert directory_contents(target) == want


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_ranks_are_made_and_joined_again(tmp_path: Path, kind: str) -> None:
    tensors = KINDS[kind]
    source = write(tmp_path / "source", tensors)
    strategy = str(tmp_path / "strategy.ckpt")
    rows = {
        name: as_layout(RandomLayout((2,), ((0,) if len(array) % 2 == 0 else (), *((),) * (array.ndim - 1)), ()))
        for name, (_, array) in tensors.items()
    }
    write_strategy(make_strategy(rows), strategy)
    layout = "dcp" if kind == "fp8" else "ranks"  # MindSpore's files hold no floats of 8 bits
    options = {} if layout == "dcp" else {"format": "safetensors"}
    ranks = run(source, tmp_path / "ranks", layout=layout, target_strategy=strategy, **options)
    back = {} if layout == "dcp" else {"source_strategy": strategy}
    whole = run(ranks, tmp_path / "back", layout="unified", like=str(source), **back)
    assert directory_contents(whole) == directory_contents(source)
    assert json.loads((whole / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        (
            "fp8",
            {"cast": ["*=float16"]},
            "'model.layers.0.mlp.up_proj.weight_scale_inv' would be cast to Float16; make",
        ),
        ("fp8", {"transpose": ["*up_proj.weight"]}, "'model.layers.0.mlp.up_proj.weight' would be transposed; make"),
        ("fp8", {"exclude": ["*_scale_inv"]}, "'model.layers.0.mlp.up_proj.weight_scale_inv' would be left out, not"),
        (
            "fp8",
            {"rename": ["model.layers.0.mlp.up_proj.weight=a.weight"]},
            "'model.layers.0.mlp.up_proj.weight_scale_inv', not 'a.weight_scale_inv'; make them bfloat16, fp8='dequant",
        ),
        (
            "int8",
            {"cast": ["*=float16"]},
            "'model.layers.0.mlp.up_proj.weight_scale' would be cast to Float16; convert",
        ),
        (
            "int8",
            {"transpose": ["*up_proj.weight"]},
            "'model.layers.0.mlp.up_proj.weight' would be transposed; convert",
        ),
        ("int8", {"exclude": ["*deq_scale"]}, "'model.layers.0.mlp.up_proj.deq_scale' would be left out, not 'model."),
        ("mxfp4", {"transpose": ["*_scales"]}, "'model.layers.0.mlp.experts.down_proj_scales' would be transposed"),
    ],
)
def test_what_would_part_them_is_refused(tmp_path: Path, kind: str, options: dict[str, Any], problem: str) -> None:
    source = write(tmp_path / "source", KINDS[kind])
    with pytest.raises(PlanError) as error:
        run(source, tmp_path / "target", layout="unified", **options)
    assert problem in str(error.value)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_schemes_keep_their_description_and_their_scales(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path / "source", OTHERS[kind] | NORM)
    target = run(source, tmp_path / "target", layout="unified", like=str(source))
    assert directory_contents(target) == directory_contents(source)
    assert json.loads((target / "config.json").read_text())["quantization_config"] == CONFIG["quantization_config"]
    with pytest.raises(PlanError, match="both can only be kept as they are"):
        run(source, tmp_path / "cast", layout="unified", cast=[f"{UP}*=float64"])


def test_a_scheme_that_is_not_known_keeps_its_description(tmp_path: Path) -> None:
    tensors: Tensors = {f"{UP}.W_q": ("U8", RANDOM.integers(0, 256, (64, 128), np.uint8))}
    source = write(tmp_path / "source", tensors | NORM)
    target = run(source, tmp_path / "target", layout="unified", like=str(source))
    assert (target / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_fp8_becomes_bfloat16_if_asked_to(tmp_path: Path) -> None:
    source = write(tmp_path / "source", FP8)
    target = run(source, tmp_path / "target", layout="unified", fp8="dequantize", like=str(source), verify="content")
    assert {name: dtype for name, (dtype, _, _) in directory_contents(target).items()} == {
        "model.layers.0.mlp.up_proj.weight": "BFloat16",
        "model.norm.weight": "BFloat16",
    }
    assert "quantization_config" not in json.loads((target / "config.json").read_text())


def test_nothing_to_dequantize_is_said(tmp_path: Path) -> None:
    source = write(tmp_path / "source", INT8)
    with pytest.raises(PlanError, match="fp8='dequantize': there are no weights of block-fp8, whose scales end in _sc"):
        run(source, tmp_path / "target", layout="unified", fp8="dequantize")

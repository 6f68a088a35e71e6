"""Experts in MXFP4 become bfloat16 on the way, against transformers' own function where that runs, else numpy."""

import json
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, PlanError
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.scaling import unpacked_values
from tests.support.checkpoints import read_tree
from tests.support.families import directory_contents
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout, layouts, shard_of
from tests.support.safetensors_files import write_safetensors

_PYTHON = Path(__file__).parents[3] / ".venv-torch/bin/python"
_JUDGE = """
import sys
import numpy, torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
blocks, scales = (torch.from_numpy(numpy.load(path)) for path in sys.argv[1:3])
numpy.save(sys.argv[3], convert_moe_packed_tensors(blocks, scales).view(torch.uint16).numpy())
"""
UNPACK = {"unpack": {"parameters": "{x:*}_blocks", "scale": "{x:*}_scales", "to": "{x:*}"}}
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def packed(seed: int, shape: tuple[int, int, int], low: int = 110, high: int = 140) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (*shape, 16), np.uint8), generator.integers(low, high, shape, np.uint8)


def unpacked(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Values in the axes of the result, one pair of a byte after the other."""
    experts, rows, groups, _ = blocks.shape
    values = np.empty((experts, rows, groups, 16, 2), np.float32)
    values[..., 0] = np.array(VALUES, np.float32)[blocks % 16]
    values[..., 1] = np.array(VALUES, np.float32)[blocks // 16]
    with np.errstate(over="ignore"):
        values *= (2.0 ** (scales.astype(np.float64) - 127)).astype(np.float32)[..., np.newaxis, np.newaxis]
    return values.reshape(experts, rows, -1).astype(ml_dtypes.bfloat16).transpose(0, 2, 1)


@pytest.mark.skipif(not _PYTHON.exists(), reason="needs .venv-torch")
def test_the_bytes_are_those_of_transformers(tmp_path: Path) -> None:
    blocks, scales = packed(1, (3, 64, 5), 0, 255)
    blocks[0, 0, 0] = np.arange(16) * 16 + np.arange(16)[::-1]
    paths = [tmp_path / name for name in ("blocks.npy", "scales.npy", "values.npy")]
    np.save(paths[0], blocks)
    np.save(paths[1], scales)
    subprocess.run([_PYTHON, "-c", _JUDGE, *paths], check=True, capture_output=True)
    want = np.load(paths[2])
    found = unpacked_values(blocks.reshape(3, 64, -1), (0, 0, 0), scales).transpose(0, 2, 1)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(unpacked(blocks, scales).view(np.uint16), want)


def run(directory: Path, tensors: dict[str, Any], steps: list[Any], cuts: dict[str, RandomLayout]) -> Path:
    source, target = directory / "source", directory / "target"
    source.mkdir()
    write_safetensors(source / "model.safetensors", tensors)
    write_strategy(
        make_strategy({each: as_layout(cut) for each, cut in cuts.items()}), str(directory / "strategy.ckpt")
    )
    document = directory / "changes.yaml"
    document.write_text(str({"steps": steps}).replace("'", '"'))
    request = build_request(
        source=str(source),
        target=str(target),
        target_strategy=str(directory / "strategy.ckpt"),
        changes=str(document),
        format="safetensors",
        verify="content",
        memory_limit="16MiB",
        workers=64,
    )
    assert convert(request).committed
    return target


@settings(max_examples=10)
@given(st.data())
def test_values_are_unpacked_group_by_group(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("packed")
    blocks, scales = packed(data.draw(st.integers(0, 99)), (24, 48, 3))
    whole = unpacked(blocks, scales)
    steps: list[Any] = [UNPACK]
    wanted = {"w": whole}
    if data.draw(st.booleans()):
        steps.append({"transpose": {"parameters": "w", "axes": [0, 2, 1]}})
        wanted = {"w": whole.transpose(0, 2, 1)}
    if data.draw(st.booleans()):  # columns in turn, an odd one first, as of gate and up
        groups = wanted["w"].shape[2] // 2
        steps.append({"split": {"parameters": "w", "into": ["gate", "up"], "axis": 2, "groups": groups}})
        wanted = {"gate": wanted["w"][..., ::2], "up": wanted["w"][..., 1::2]}
    if data.draw(st.booleans()):
        steps += [{"unstack": {"parameters": name, "into": f"{name}.{{e}}", "count": 24}} for name in wanted]
        wanted = {f"{name}.{expert}": each[expert] for name, each in wanted.items() for expert in range(24)}
    cuts = {name: data.draw(layouts(4, array.ndim)) for name, array in wanted.items()}
    target = run(directory, {"w_blocks": ("U8", blocks), "w_scales": ("U8", scales)}, steps, cuts)
    for rank, held in read_tree(target).items():
        assert {*held} == {*wanted}
        for name, found in held.items():
            shard = shard_of(wanted[name], cuts[name], rank)
            assert found == ("BFloat16", shard.shape, np.ascontiguousarray(shard).tobytes()), (rank, name)


@pytest.mark.parametrize(
    ("shapes", "steps", "problem"),
    [
        (((2, 8, 3, 16), (2, 8, 2)), [UNPACK], "so 'w_scales' must have [2, 8, 3], not [2, 8, 2]"),
        (((2, 8, 3, 8), (2, 8, 3)), [UNPACK], "has shape [2, 8, 3, 8], not experts, rows, groups and 16 bytes"),
        (((2, 8, 3, 16), None), [UNPACK], "'w_blocks' has no scales"),
        (
            ((2, 8, 3, 16), (2, 8, 3)),
            [{"transpose": {"parameters": "w_blocks", "axes": [1, 0, 2, 3]}}, UNPACK],
            "'w_blocks' can only be used as the source has it: unpack before other steps change it",
        ),
    ],
)
def test_what_cannot_be_unpacked_is_refused(tmp_path: Path, shapes: Any, steps: list[Any], problem: str) -> None:
    tensors = {
        name: ("U8", np.zeros(shape, np.uint8))
        for name, shape in zip(("w_blocks", "w_scales"), shapes, strict=True)
        if shape
    }
    with pytest.raises(PlanError) as error:
        run(tmp_path, tensors, steps, {"w": RandomLayout((1,), ((), (), ()), ())})
    assert problem in str(error.value)


LAYERS, HIDDEN, INNER, EXPERTS, HEADS, GROUPS, SIZE = 2, 64, 32, 4, 4, 2, 16
CONFIG = {
    "model_type": "gpt_oss",
    "num_hidden_layers": LAYERS,
    "vocab_size": 32,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_local_experts": EXPERTS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": SIZE,
    "quantization_config": {"quant_method": "mxfp4"},
}
SHAPES = {
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
    "self_attn.q_proj.weight": (HEADS * SIZE, HIDDEN),
    "self_attn.k_proj.weight": (GROUPS * SIZE, HIDDEN),
    "self_attn.v_proj.weight": (GROUPS * SIZE, HIDDEN),
    "self_attn.q_proj.bias": (HEADS * SIZE,),
    "self_attn.k_proj.bias": (GROUPS * SIZE,),
    "self_attn.v_proj.bias": (GROUPS * SIZE,),
    "self_attn.o_proj.weight": (HIDDEN, HEADS * SIZE),
    "self_attn.o_proj.bias": (HIDDEN,),
    "self_attn.sinks": (HEADS,),
    "mlp.router.weight": (EXPERTS, HIDDEN),
    "mlp.router.bias": (EXPERTS,),
    "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * INNER),
    "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
}
PACKED = {"gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN // 32), "down_proj": (EXPERTS, HIDDEN, INNER // 32)}


def gpt_oss(directory: Path, *, is_packed: bool) -> Path:
    """A directory of gpt-oss as the hub has it, or as it is unpacked."""
    generator = np.random.default_rng(5)
    shapes = {"model.embed_tokens.weight": (32, HIDDEN), "lm_head.weight": (32, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in SHAPES.items()}
    tensors = {name: ("BF16", generator.integers(0, 2**14, shape, np.uint16)) for name, shape in shapes.items()}
    for layer in range(LAYERS):
        for number, (name, shape) in enumerate(PACKED.items()):
            blocks, scales = packed(10 * layer + number, shape)
            stem = f"model.layers.{layer}.mlp.experts.{name}"
            if is_packed:
                tensors |= {f"{stem}_blocks": ("U8", blocks), f"{stem}_scales": ("U8", scales)}
            else:
                tensors[stem] = "BF16", np.ascontiguousarray(unpacked(blocks, scales)).view(np.uint16)
    directory.mkdir()
    write_safetensors(directory / "model.safetensors", tensors)
    config = CONFIG if is_packed else {key: value for key, value in CONFIG.items() if key != "quantization_config"}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("names", ["megatron", "titan"])
def test_the_preset_unpacks_what_the_hub_has(names: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"preset": "gpt_oss", "layout": "unified", "verify": "content"}
    hub, plain = (gpt_oss(tmp_path / str(each), is_packed=each) for each in (True, False))
    for source in (hub, plain):
        asked = build_request(source=str(source), target=f"{source} trained", names=names, **options)
        assert convert(asked).committed
    trained = Path(f"{hub} trained")
    assert directory_contents(trained) == directory_contents(Path(f"{plain} trained"))
    for like in (hub, plain):
        back = tmp_path / f"like {like.name}"
        assert convert(build_request(source=str(trained), target=str(back), like=str(like), **options)).committed
        assert directory_contents(back) == directory_contents(plain)
        assert "quantization_config" not in json.loads((back / "config.json").read_text())


def test_a_preset_does_not_keep_what_is_packed(tmp_path: Path) -> None:
    hub = gpt_oss(tmp_path / "hub", is_packed=True)
    options: dict[str, Any] = {"layout": "unified", "preset": "gpt_oss", "names": "megatron", "fp8": "keep"}
    with pytest.raises(
        InputError, match="fp8='keep': the source is quantized, and preset gpt_oss leads to names whose programs"
    ):
        convert(build_request(source=str(hub), target=str(tmp_path / "t"), **options))
    assert not (tmp_path / "t").exists()

"""Linear layers become block-fp8 on the way, against the same in numpy; what cannot be is refused."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.verification.compare import compare_checkpoints
from tests.support.families import directory_contents
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import layouts, shard_of
from tests.support.safetensors_files import write_safetensors

O_PROJ = "model.layers.0.self_attn.o_proj.weight"
DOWN = "model.layers.1.mlp.experts.3.down_proj.weight"
OTHERS = (
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.1.mlp.gate.weight",
    "model.layers.2.eh_proj.weight",
    "model.layers.0.self_attn.o_proj.bias",
)
NUMPY = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16}
WORKERS = (1, 8, 64)
"""The more, the smaller are their buffers."""


def quantized(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and scales in blocks of 128 by 128, one block at a time."""
    rows, columns = values.shape
    made = np.empty(values.shape, np.uint8)
    scales = np.empty((-(-rows // 128), -(-columns // 128)), np.float32)
    for row in range(0, rows, 128):
        for column in range(0, columns, 128):
            block = values[row : row + 128, column : column + 128].astype(np.float32)
            largest = np.abs(block).max()
            factor = np.float32(1) / largest * np.float32(448) if largest else np.float32(1)
            scales[row // 128, column // 128] = np.float32(1) / factor
            scaled = np.clip(block * factor, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            made[row : row + 128, column : column + 128] = scaled.view(np.uint8)
    return made, scales


def random_values(seed: int, shape: tuple[int, ...], tag: str) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.normal(size=shape) * np.exp2(generator.integers(-9, 4, shape))).astype(NUMPY[tag])


def write(directory: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    directory.mkdir(parents=True)
    bits = {name: (tag, array.view(f"u{array.itemsize}")) for name, (tag, array) in tensors.items()}
    write_safetensors(directory / "model.safetensors", bits)


def fp8_of(source: Path, **more: Any) -> Path:
    target = source.parent / "target"
    options: dict[str, Any] = {"layout": "unified", "fp8": "quantize", "verify": "content"}
    assert convert(build_request(source=str(source), target=str(target), **options | more)).committed
    return target


def check(held: dict[str, Any], name: str, values: np.ndarray) -> None:
    made, scales = quantized(values)
    assert held[name] == ("F8_E4M3", values.shape, made.tobytes())
    assert held[f"{name}_scale_inv"] == ("Float32", scales.shape, scales.tobytes())


@settings(max_examples=12)
@given(st.data())
def test_matrices_are_quantized_block_by_block(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("quantized")
    tag = data.draw(st.sampled_from([*NUMPY]))
    shape = data.draw(st.tuples(st.sampled_from([1, 128, 200, 384]), st.sampled_from([1, 120, 256, 520])))
    whole = random_values(data.draw(st.integers(0, 99)), shape, tag)
    if data.draw(st.booleans()):
        whole[:128, :128] = 0
    transposed = data.draw(st.booleans())
    saved = np.ascontiguousarray(whole.T) if transposed else whole
    cut = data.draw(layouts(4, 2))
    sides = 4
    source = directory / "source"
    options: dict[str, Any] = {"memory_limit": "16MiB", "workers": data.draw(st.sampled_from(WORKERS))}
    if all(length % sides == 0 for length in shape) and data.draw(st.booleans()):
        for rank in range(4):
            shard = np.ascontiguousarray(shard_of(saved, cut, rank))
            write(source / f"rank_{rank}", {O_PROJ: (tag, shard)})
        write_strategy(make_strategy({O_PROJ: as_layout(cut)}), str(directory / "strategy.ckpt"))
        options["source_strategy"] = str(directory / "strategy.ckpt")
    else:
        write(source, {O_PROJ: (tag, saved)})
    if transposed:
        options["transpose"] = [O_PROJ]
    check(directory_contents(fp8_of(source, **options)), O_PROJ, whole)


def test_only_linear_layers_are_quantized(tmp_path: Path) -> None:
    linear = {name: ("BF16", random_values(3, (140, 130), "BF16")) for name in (O_PROJ, DOWN)}
    others = {name: ("BF16", random_values(4, (130, 140)[: 2 - name.count("norm")], "BF16")) for name in OTHERS}
    others["adam_m." + O_PROJ] = others[OTHERS[0]]
    write(tmp_path / "source", linear | others)
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "config.json").write_text(json.dumps({"model_type": "other", "torch_dtype": "float32"}))
    target = fp8_of(tmp_path / "source", like=str(tmp_path / "like"), cast=["*=float32"])
    held = directory_contents(target)
    assert {*held} == {*linear, *others, *(f"{name}_scale_inv" for name in linear)}
    for name, (_, values) in linear.items():
        check(held, name, values)  # by the source's values, whatever the others are cast to
    for name, (_, values) in others.items():
        assert held[name] == ("Float32", values.shape, values.astype(np.float32).tobytes())
    config = json.loads((target / "config.json").read_text())
    assert config == {
        "model_type": "other",
        "torch_dtype": "float32",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
            "modules_to_not_convert": [
                *("model.embed_tokens", "lm_head", "model.layers.1.mlp.gate", "model.layers.2.eh_proj"),
            ],
        },
    }


def test_a_comparison_quantizes_again(tmp_path: Path) -> None:
    write(tmp_path / "source", {O_PROJ: ("BF16", random_values(3, (300, 130), "BF16"))})
    target = fp8_of(tmp_path / "source")
    options = {"a": str(tmp_path / "source"), "b": str(target), "fp8": "quantize"}
    report = compare_checkpoints(build_comparison(**options))
    assert report.same, report
    for name, byte in ((O_PROJ, 1), (f"{O_PROJ}_scale_inv", 0)):
        tensors = {
            key: (tag, np.frombuffer(data, np.uint8).copy())
            for key, (tag, _, data) in directory_contents(target).items()
        }
        tensors[name][1][byte] ^= 1
        shapes = {key: shape for key, (_, shape, _) in directory_contents(target).items()}
        other = tmp_path / f"other {byte}"
        other.mkdir()
        kinds = {"F8_E4M3": ("F8_E4M3", np.uint8), "Float32": ("F32", np.uint32)}
        written = {
            key: (kinds[tag][0], data.view(kinds[tag][1]).reshape(shapes[key])) for key, (tag, data) in tensors.items()
        }
        write_safetensors(other / "model.safetensors", written)
        report = compare_checkpoints(build_comparison(**options | {"b": str(other)}))
        assert [each.name for each in report.differences] == [name]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    values = random_values(3, (300, 300), "BF16")
    values[290, 200] = value
    write(tmp_path / "source", {O_PROJ: ("BF16", values)})
    with pytest.raises(InputError) as error:
        fp8_of(tmp_path / "source")
    assert f"parameter '{O_PROJ}': cannot be quantized: it has NaN, infinite or, as float32, too large values" in str(
        error.value
    )
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("tensors", "options", "problem"),
    [
        ({O_PROJ: ("BF16", (130, 130))}, {"layout": "dcp"}, "fp8='quantize': only valid with layout='unified'"),
        ({"a.weight": ("BF16", (130, 130))}, {}, "fp8='quantize': there is no linear layer of Hugging Face's names"),
        (
            {O_PROJ: ("F8_E4M3", (130, 130)), f"{O_PROJ}_scale_inv": ("F32", (2, 2))},
            {},
            f"the quantization of '{O_PROJ}' makes '{O_PROJ}_scale_inv', which is there already",
        ),
        ({O_PROJ: ("F8_E4M3", (130, 130))}, {}, "its dtype is F8_E4M3, and only wider floating-point values can be"),
        ({O_PROJ: ("BF16", (2, 130, 130))}, {}, "has shape [2, 130, 130], and only matrices are quantized"),
    ],
)
def test_what_cannot_be_quantized_is_refused(
    tmp_path: Path, tensors: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    sizes = {"BF16": np.uint16, "F8_E4M3": np.uint8, "F32": np.uint32}
    write(tmp_path / "source", {name: (tag, np.zeros(shape, sizes[tag])) for name, (tag, shape) in tensors.items()})
    with pytest.raises(PlanError) as error:
        fp8_of(tmp_path / "source", **options)
    assert problem in str(error.value)

"""Block-fp8 against ml_dtypes' rounding, and against transformers' own quantizer where that runs."""

import json
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.quantizing import (
    block_factors,
    largest_magnitudes,
    quantize_into,
    stored_scales,
)

_PYTHON = Path(__file__).parents[3] / ".venv-torch/bin/python"
_JUDGE = """
import json, sys, types
import numpy, torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Quantize
directory = sys.argv[1]
for name in json.loads(sys.argv[2]):
    values = torch.from_numpy(numpy.load(f"{directory}/{name}.npy"))
    if name.startswith("BFloat16"):
        values = values.view(torch.bfloat16)
    quantizer = types.SimpleNamespace(quantization_config=FineGrainedFP8Config())
    made = Fp8Quantize(quantizer).convert({"w.weight": values})
    numpy.save(f"{directory}/{name}.values.npy", made["w.weight"].view(torch.uint8).numpy())
    numpy.save(f"{directory}/{name}.scales.npy", made["w.weight_scale_inv"].numpy())
"""


def quantized(bits: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The values and scales of a whole matrix, a row of blocks at a time."""
    values = np.empty(bits.shape, np.uint8)
    scales = []
    for start in range(0, len(bits), 128):
        rows = bits[start : start + 128]
        factors = block_factors(largest_magnitudes(rows, dtype_from_name(dtype), 0, 128))
        quantize_into(rows, dtype_from_name(dtype), 0, factors, 128, values[start : start + 128])
        scales.append(stored_scales(factors))
    return values, np.array(scales)


def matrices() -> dict[str, np.ndarray]:
    """Bits of matrices with all that is special: zero blocks, signed zeros, subnormal and large values."""
    generator = np.random.default_rng(7)
    plain = generator.normal(size=(256, 384)).astype(np.float32)
    wide = (plain * np.exp2(generator.integers(-40, 40, plain.shape))).astype(np.float32)
    plain[:128, 128:256] = 0
    plain[128:, :128] = -0.0
    plain[5, 7] = np.float32(1e-40)
    plain[200, 200] = np.finfo(np.float32).max
    halves = np.arange(2**16, dtype=np.uint16)[:, np.newaxis].repeat(2, 1).reshape(-1)[: 2**17].reshape(512, 256)
    finite = np.isfinite(halves.view(ml_dtypes.bfloat16).astype(np.float32))
    # of a magnitude this small transformers makes scales of 0, which loaders read as NaN
    finite &= np.abs(halves.view(ml_dtypes.bfloat16).astype(np.float32)) > 1e-30
    return {
        "Float32 plain": plain.view(np.uint32),
        "Float32 wide": wide.view(np.uint32),
        "BFloat16 all": np.where(finite, halves, 0).astype(np.uint16),
        "BFloat16 plain": plain[:, :128].astype(ml_dtypes.bfloat16).view(np.uint16),
    }


def test_rounding_is_that_of_ml_dtypes() -> None:
    bits = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32)
    bits = bits[np.isfinite(bits.view(np.float32))]
    # ties, and their neighbors
    values = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ties = ((values[1:] + values[:-1]) / 2).view(np.uint32)
    bits = np.concatenate([bits, ties, ties + 1, ties - 1, ties | np.uint32(2**31), values.view(np.uint32)])
    wanted = np.clip(bits.view(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    found = np.empty((1, len(bits)), np.uint8)
    quantize_into(bits[np.newaxis], dtype_from_name("Float32"), 0, np.ones(1, np.float32), len(bits), found)
    np.testing.assert_array_equal(found[0], wanted)


@pytest.mark.skipif(not _PYTHON.exists(), reason="needs .venv-torch")
def test_the_bytes_are_those_of_transformers(tmp_path: Path) -> None:
    cases = matrices()
    for name, bits in cases.items():
        np.save(tmp_path / f"{name}.npy", bits.view(np.float32) if bits.itemsize == 4 else bits)
    subprocess.run([_PYTHON, "-c", _JUDGE, tmp_path, json.dumps([*cases])], check=True, capture_output=True)
    for name, bits in cases.items():
        values, scales = quantized(bits, name.split()[0])
        np.testing.assert_array_equal(scales, np.load(tmp_path / f"{name}.scales.npy"), name)
        np.testing.assert_array_equal(values, np.load(tmp_path / f"{name}.values.npy"), name)


def test_blocks_at_the_ends_are_smaller() -> None:
    values = np.random.default_rng(1).normal(size=(130, 200)).astype(np.float32)
    _, scales = quantized(values.view(np.uint32), "Float32")
    parts = [[values[:128, :128], values[:128, 128:]], [values[128:, :128], values[128:, 128:]]]
    wanted = [[1 / (1 / np.abs(part).max() * np.float32(448)) for part in row] for row in parts]
    np.testing.assert_array_equal(scales, np.array(wanted, np.float32))


def test_columns_that_begin_inside_a_block_count_for_it() -> None:
    values = np.random.default_rng(1).normal(size=(4, 300)).astype(np.float32)
    found = largest_magnitudes(values[:, 100:].view(np.uint32), dtype_from_name("Float32"), 100, 128)
    wanted = [np.abs(values[:, part]).max() for part in (slice(100, 128), slice(128, 256), slice(256, 300))]
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def test_tiny_blocks_are_still_read_as_numbers() -> None:
    values = np.full((128, 128), 1e-40, np.float32)
    values[0, 0] = 0
    quantized_values, scales = quantized(values.view(np.uint32), "Float32")
    read = quantized_values.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales[0, 0]
    assert read[0, 0] == 0
    np.testing.assert_allclose(read[1:], values[1:], rtol=2**-3)

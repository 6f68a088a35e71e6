"""A LoRA adapter for the matrices of an exported model's layers, and what they become by it: by numpy alone.

    python -m benchmarks.adapters BASE ADAPTER    writes the adapter of a Hugging Face directory, as peft saves it

Factors are multiples of 2^-10 so small that float32 holds their products' sums exactly: a merge has the same bytes in
whatever order it adds. A sum is a half percent of the weights that it is added to, as in an adapter that was trained.
"""

import json
import sys
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

RANK = 16
SCALE = 2
_LARGEST = 32
_UNIT = 2.0**-10


def is_adapted(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the adapter is for a parameter."""
    return ".layers." in name and len(shape) == 2


def factors(name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """B and A of a parameter, float32."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    rows, columns = shape
    b, a = (generator.integers(-_LARGEST, _LARGEST + 1, each) * _UNIT for each in ((rows, RANK), (RANK, columns)))
    return b.astype(np.float32), a.astype(np.float32)


def merged(name: str, values: np.ndarray) -> np.ndarray:
    """What a parameter becomes, bfloat16."""
    if not is_adapted(name, values.shape):
        return values
    b, a = factors(name, values.shape)
    sums: np.ndarray = values.astype(np.float32) + b @ a * np.float32(SCALE)
    return sums.astype(ml_dtypes.bfloat16)


def write(base: Path, adapter: Path) -> None:
    """Write the adapter of a base."""
    tensors = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                shape = tuple(file.get_slice(name).get_shape())
                if is_adapted(name, shape):
                    module = f"base_model.model.{name.removesuffix('.weight')}"
                    tensors[f"{module}.lora_B.weight"], tensors[f"{module}.lora_A.weight"] = factors(name, shape)
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    modules = sorted({name.split(".")[-3] for name in tensors})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": SCALE * RANK}
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"target_modules": modules}))


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))

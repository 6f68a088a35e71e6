"""Directories of models as Hugging Face has them, made of arrays."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.support.mindformers_rules import Arrays


def written(directory: Path, arrays: Arrays, config: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def fused(hf: Arrays) -> Arrays:
    """The same weights with all experts of a layer in one, as transformers 5 has them."""
    found = {
        name.replace("block_sparse_moe.", "mlp.").replace("mlp.moe_statics.", "mlp.gate.moe_statics."): each
        for name, each in hf.items()
        if ".experts." not in name
    }
    for prefix in {name.partition(".experts.")[0] for name in hf if ".experts." in name}:
        kinds = ("w1", "w3", "w2") if "block_sparse" in prefix else ("gate_proj", "up_proj", "down_proj")
        count = len({name for name in hf if name.startswith(f"{prefix}.experts.")}) // 3
        gate, up, down = (
            np.stack([hf[f"{prefix}.experts.{number}.{kind}.weight"] for number in range(count)]) for kind in kinds
        )
        mlp = f"{prefix.rpartition('.')[0]}.mlp.experts"
        found[f"{mlp}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        found[f"{mlp}.down_proj"] = down
    return found

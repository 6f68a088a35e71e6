"""Writes safetensors files with any element types, float8 among them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """Write tensors, each with its tag (`F8_E4M3`) and an array of that item size."""
    header, contents, position = {}, b"", 0
    for name, (tag, array) in tensors.items():
        content = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": tag,
            "shape": list(array.shape),
            "data_offsets": [position, position + len(content)],
        }
        position += len(content)
        contents += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + contents)

"""Directories of Hugging Face's, changed: parameters renamed or left out, fields of config.json set."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rename = Callable[[str], str | None]
"""The new name of a parameter; None leaves it out."""


def changed_directory(source: Path, target: Path, rename: Rename = lambda name: name, **config: Any) -> Path:
    """Copy a directory of a model in .safetensors files, with other names and fields of config.json."""
    shutil.copytree(source, target)
    for path in target.iterdir():
        path.chmod(0o644)
    for path in target.glob("*.safetensors"):
        path.write_bytes(_renamed(path.read_bytes(), rename))
    index = target / "model.safetensors.index.json"
    if index.exists():
        document = json.loads(index.read_text())
        weights = document["weight_map"].items()
        document["weight_map"] = {new: file for name, file in weights if (new := rename(name)) is not None}
        index.write_text(json.dumps(document))
    configuration = target / "config.json"
    configuration.write_text(json.dumps(json.loads(configuration.read_text()) | config))
    return target


def _renamed(data: bytes, rename: Rename) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    kept: dict[str, Any] = {"__metadata__": header.pop("__metadata__", {"format": "pt"})}
    contents = b""
    for name, entry in header.items():
        new = rename(name)
        if new is not None:
            start, stop = entry["data_offsets"]
            content = data[8 + length + start : 8 + length + stop]
            kept[new] = entry | {"data_offsets": [len(contents), len(contents) + len(content)]}
            contents += content
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + contents

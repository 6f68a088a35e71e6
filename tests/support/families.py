"""The tiny models of tests/fixtures/model_families: Hugging Face's directories, and their weights under MF's names."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.checkpoints import Contents, read_safetensors

FAMILIES = Path(__file__).parents[1] / "fixtures" / "model_families"


@dataclass(frozen=True)
class Family:
    """One model: `hf` is the directory that transformers wrote, `mf` the same weights under MindFormers' names."""

    name: str

    @property
    def hf(self) -> Path:
        return FAMILIES / self.name / "hf"

    @property
    def mf(self) -> Path:
        return FAMILIES / self.name / "mf.safetensors"

    @property
    def case(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FAMILIES / self.name / "case.json").read_text())
        return found

    def __str__(self) -> str:
        return self.name


ALL_FAMILIES = [Family(path.name) for path in sorted(FAMILIES.iterdir())]


def directory_contents(directory: Path) -> Contents:
    """All tensors of a directory of .safetensors files."""
    found: Contents = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors = read_safetensors(path)
        assert not found.keys() & tensors.keys()
        found |= tensors
    return found


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a .safetensors file."""
    data = path.read_bytes()
    found: dict[str, str] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    return found

"""The tiny models of tests/fixtures/model_families: Hugging Face's directories, and their weights under MF's names."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard import make_strategy
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import ConversionRequest, build_request
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


SWITCHES = {
    "qwen3": ["use_interleaved_weight_layout_mlp=true", "use_contiguous_weight_layout_attention=false"],
    "qwen3_moe": ["use_contiguous_weight_layout_attention=false"],
    "deepseek3": ["use_interleaved_weight_layout_mlp=true"],
    "mixtral": ["use_gmm=false"],
}
"""What the fixtures' trainings decided, and no checkpoint shows."""


@dataclass(frozen=True)
class Sharded:
    """A family's weights under MindFormers' names, on the ranks of its strategy."""

    source: Path
    strategy: Path


def switches_of(family: Family, *, to_mf: bool = False) -> list[str]:
    """The switches of a family; those that only names of the target show as well, `to_mf`."""
    shown = ["mla_qkv_concat=false"] if to_mf and family.case["preset"] == "deepseek3" else []
    return [*SWITCHES.get(family.case["preset"], []), *shown]


def sharded(family: Family, directory: Path) -> Sharded:
    """Shard a family's weights by its case's strategy."""
    whole = directory / "whole"
    whole.mkdir(parents=True)
    (whole / "model.safetensors").write_bytes(family.mf.read_bytes())
    strategy = directory / "strategy.ckpt"
    options: list[str] = family.case["strategy"]
    numbers = {name: int(options[options.index(name) + 1]) for name in ("-D", "-M", "-P") if name in options}
    make_strategy(
        str(strategy),
        like=str(whole),
        data_parallel=numbers["-D"],
        model_parallel=numbers["-M"],
        pipeline=numbers.get("-P", 1),
        optimizer_parallel="--optimizer-parallel" in options,
        optimizer_threshold_bytes=0,
        cuts=family.case["cut"],
    )
    request = build_request(source=str(whole), target=str(directory / "ranks"), target_strategy=str(strategy))
    assert len(convert(request).ranks) > 1
    shutil.rmtree(whole)
    # as a training leaves it, without reshard's records
    shutil.rmtree(directory / "ranks/.reshard")
    return Sharded(directory / "ranks", strategy)


def exported(family: Family, target: Path, **options: Any) -> ConversionRequest:
    """A family's weights from MindFormers' names to a Hugging Face directory."""
    defaults: dict[str, Any] = {
        "source": str(family.mf),
        "target": str(target),
        "layout": "unified",
        "preset": family.case["preset"],
        "switch": switches_of(family),
    }
    return build_request(**(defaults | options))

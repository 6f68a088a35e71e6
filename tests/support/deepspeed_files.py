"""Checkpoints that DeepSpeed wrote, and the whole models that are in them; requests to convert such."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.megatron_sources import change_file
from tests.support.places import FIXTURES

DEEPSPEED_FIXTURES = FIXTURES / "deepspeed"
DEEPSPEED_CASES = sorted(path.name for path in DEEPSPEED_FIXTURES.glob("case_*"))
Tree = dict[Any, Any]


@dataclass(frozen=True)
class DeepSpeedCase:
    """The directory of a training, and the whole model that is in it."""

    root: Path
    answer: Path

    @property
    def tag(self) -> Path:
        """The directory of its only tag."""
        [found] = self.root.glob("global_step*")
        return found

    @property
    def want(self) -> Contents:
        """The whole model, and its optimizer's states."""
        return read_safetensors(self.answer / "want.safetensors")

    def copied(self, path: Path) -> "DeepSpeedCase":
        """A copy of it."""
        shutil.copytree(self.root, path)
        return DeepSpeedCase(path, self.answer)

    def change(self, change: Callable[[Tree], object], files: str) -> None:
        """Change the trees of files whose names match a pattern."""
        paths = sorted(self.tag.glob(files))
        assert paths, files
        for path in paths:
            change_file(path, change)


def deepspeed_case(name: str) -> DeepSpeedCase:
    """One of the cases, by its name."""
    return DeepSpeedCase(DEEPSPEED_FIXTURES / name / "src", DEEPSPEED_FIXTURES / name)


def to_whole(source: Path | str, target: Path | str, **options: object) -> ConversionRequest:
    """The request for whole tensors in safetensors, unless options say otherwise."""
    given: dict[str, object] = {"source": str(source), "target": str(target), "layout": "unified", "workers": 2}
    return build_request(**given | options)


def made(target: Path) -> Contents:
    """What a conversion to whole tensors made."""
    return read_safetensors(target / "model.safetensors")

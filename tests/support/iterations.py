"""Checkpoint 2.0 directories that MindFormers wrote, and changed copies of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.checkpoints import Contents, read_safetensors, read_tree
from tests.support.places import FIXTURES

CASES = sorted(path.name for path in (FIXTURES / "checkpoint2").iterdir())
Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class IterationCase:
    """A directory that MindFormers wrote, and the shards that its loader gave each target rank."""

    directory: Path

    @property
    def source(self) -> Path:
        """The directory of all iterations."""
        return self.directory / "src"

    @property
    def iteration(self) -> Path:
        """The directory of the iteration that the tracker names."""
        number = int((self.source / "latest_checkpointed_iteration.txt").read_text())
        return self.source / f"iteration_{number:08d}"

    @property
    def target_strategy(self) -> Path:
        """The target's strategy."""
        return self.directory / "dst_strategy.ckpt"

    @property
    def want(self) -> dict[int, Contents]:
        """The target's ranks."""
        return read_tree(self.directory / "want")

    @property
    def whole(self) -> Contents:
        """All whole tensors."""
        return read_safetensors(self.directory / "full" / "full.safetensors")

    def request(self, target: Path | str, source: Path | str = "", **options: object) -> ConversionRequest:
        """The request for the conversion to the target's strategy."""
        given: dict[str, object] = {
            "source": str(source or self.source),
            "target": str(target),
            "target_strategy": str(self.target_strategy),
            "workers": 2,
        }
        return build_request(**given | options)

    def copied(self, to: Path) -> "IterationCase":
        """A copy that a test may change."""
        shutil.copytree(self.directory, to)
        return IterationCase(to)

    def change_metadata(self, change: Change) -> None:
        """Change metadata.json of the iteration that the tracker names."""
        path = self.iteration / "metadata.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))


def iteration_request(source: Path | str, target: Path | str, **options: object) -> ConversionRequest:
    """The request for a conversion to a Checkpoint 2.0."""
    given = {"source": str(source), "target": str(target), "layout": "checkpoint2", "workers": 2}
    return build_request(**given | options)


def read_iteration(directory: Path) -> dict[str, Contents]:
    """The files of tensors in an iteration's directory, by name."""
    return {path.name: read_safetensors(path) for path in sorted(directory.glob("*.safetensors"))}


def read_metadata(directory: Path) -> dict[str, Any]:
    """metadata.json of an iteration, without the names of device axes, which are anybody's choice."""
    document: dict[str, Any] = json.loads((directory / "metadata.json").read_text())
    for tensor in document["state_dict_metadata"].values():
        if tensor["layout"] is not None:
            names = tensor["layout"].pop("alias_name")
            assert len(set(names)) == len(names) == len(tensor["layout"]["device_matrix"])
    return document


def tracked(root: Path) -> str:
    """The iteration that the tracker names."""
    return (root / "latest_checkpointed_iteration.txt").read_text()


def iteration_case(number: int) -> IterationCase:
    """One of the cases, by its number."""
    [name] = [name for name in CASES if name.startswith(f"case_{number}_")]
    return IterationCase(FIXTURES / "checkpoint2" / name)

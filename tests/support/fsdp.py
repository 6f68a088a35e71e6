"""Checkpoints that verl wrote with FSDP, and copies of them with other contents."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.runtime.pickled import Pairs, PickledObject
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.megatron_sources import Tree, change_file
from tests.support.places import FIXTURES

_ROOT = FIXTURES / "fsdp_ranks"
FSDP_CASES = sorted(path.name.removeprefix("case_") for path in _ROOT.iterdir())


@dataclass(frozen=True)
class FsdpCase:
    """The directory of a model, and the whole model that is in it."""

    root: Path
    answer: Path

    @property
    def want(self) -> Contents:
        """The whole model, and its moments."""
        return read_safetensors(self.answer / "want.safetensors")

    def file(self, rank: int, kind: str = "model") -> Path:
        """A rank's file."""
        [found] = self.root.glob(f"{kind}_world_size_*_rank_{rank}.pt")
        return found

    def copied(self, path: Path) -> "FsdpCase":
        """A copy of it."""
        shutil.copytree(self.root, path)
        return FsdpCase(path, self.answer)

    def change(self, change: Callable[[Tree], object], rank: int | str = "*", kind: str = "model") -> None:
        """Change the trees in its files."""
        for path in sorted(self.root.glob(f"{kind}_world_size_*_rank_{rank}.pt")):
            change_file(path, change)

    def change_specs(self, change: Callable[[dict[str, Any]], object], name: str = "*", rank: int | str = "*") -> None:
        """Change attributes of the spec of a tensor, or of all tensors, in the model's files."""

        def changed(tree: Tree) -> None:
            for key, value in tree.items():
                if isinstance(value, PickledObject) and name in ("*", key):
                    spec: PickledObject = tensor_state(value)["_spec"]
                    spec.state = _changed(spec.state, change)

        self.change(changed, rank)

    def change_meshes(self, change: Callable[[dict[str, Any]], object], name: str = "*", rank: int | str = "*") -> None:
        """Change attributes of the mesh of a tensor, or of all tensors, in the model's files."""

        def changed(spec: dict[str, Any]) -> None:
            spec["mesh"].state = _changed(spec["mesh"].state, change)

        self.change_specs(changed, name, rank)

    def request(self, target: Path | str, **options: object) -> ConversionRequest:
        """The request for whole tensors in safetensors, unless options say otherwise."""
        given: dict[str, object] = {"source": str(self.root), "target": str(target), "layout": "unified"}
        return build_request(**given | {"workers": 2} | options)


def fsdp_case(name: str) -> FsdpCase:
    """One of the cases, by its name without `case_`."""
    return FsdpCase(_ROOT / f"case_{name}" / "src", _ROOT / f"case_{name}")


def tensor_state(record: PickledObject) -> dict[str, Any]:
    """Attributes of a DTensor, as its pickle has them before it is read."""
    match record.arguments:
        case (*_, (None, Pairs() as state)):
            return {str(key): value for key, value in state}
    raise AssertionError(record)


def objects_in(value: object) -> Iterator[PickledObject]:
    """All objects in a tree, outer ones first."""
    if isinstance(value, PickledObject):
        yield value
        yield from objects_in((*value.arguments, value.state))
    elif isinstance(value, dict):
        yield from objects_in([*value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from objects_in(each)


def _changed(state: object, change: Callable[[dict[str, Any]], object]) -> Pairs:
    assert isinstance(state, Pairs)
    fields = {str(key): value for key, value in state}
    change(fields)
    return Pairs((key, value) for key, value in fields.items() if value is not ...)

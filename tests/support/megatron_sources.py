"""Checkpoints that Megatron-Core and MindSpeed wrote, as sources, and copies of them with other contents."""

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.runtime.pickle_writing import build_pickle
from reshard.core.runtime.pickled import Pairs, PersistentId, PickledObject, read_objects
from tests.support.checkpoints import Contents
from tests.support.megatron_files import whole_model
from tests.support.places import FIXTURES

_ROOT = FIXTURES / "megatron"
_ANSWERS = {"mindspeed_dualpipev_pp2": "legacy_tp2_pp2", "mindspeed_noop_pp2": "legacy_tp2_pp2"}
SOURCE_CASES = sorted(path.name for pattern in ("legacy_*", "mindspeed_*") for path in _ROOT.glob(pattern))
MODEL_FILE, OPTIMIZER_FILE = "model_optim_rng.pt", "distrib_optim.pt"
Tree = dict[Any, Any]
"""What a file holds; lists, and dicts in place of all kinds of them."""


@dataclass(frozen=True)
class MegatronSource:
    """The directory of a training, and the whole model that is in it."""

    root: Path
    answer: Path

    @property
    def iteration(self) -> Path:
        """The directory of its only iteration."""
        [found] = (path for path in self.root.iterdir() if path.is_dir())
        return found

    @property
    def want(self) -> Contents:
        """The whole model; experts in one tensor have an axis of their own."""
        return whole_model(self.answer)

    def file(self, folder: str, name: str = MODEL_FILE) -> Path:
        """A rank's file."""
        return self.iteration / folder / name

    def copied(self, path: Path) -> "MegatronSource":
        """A copy of it."""
        shutil.copytree(self.root, path)
        return MegatronSource(path, self.answer)

    def change(self, change: Callable[[Tree], object], folder: str = "mp_rank_*", name: str = MODEL_FILE) -> None:
        """Change the trees of its files."""
        for path in sorted(self.iteration.glob(f"{folder}/{name}")):
            change_file(path, change)

    def change_args(self, folder: str = "mp_rank_*", **fields: object) -> None:
        """Change the arguments in its files; the value `...` removes one."""

        def change(tree: Tree) -> None:
            namespace = tree["args"]
            state = dict(namespace.state) | fields
            namespace.state = Pairs((name, value) for name, value in state.items() if value is not ...)

        self.change(change, folder)

    def request(self, target: Path | str, source: Path | str = "", **options: object) -> ConversionRequest:
        """The request for whole tensors in safetensors, unless options say otherwise."""
        given: dict[str, object] = {"source": str(source or self.root), "target": str(target), "layout": "unified"}
        return build_request(**given | {"workers": 2} | options)


def megatron_source(name: str) -> MegatronSource:
    """One of the cases, by its name."""
    return MegatronSource(_ROOT / name / "src", _ROOT / _ANSWERS.get(name, name))


def change_file(path: Path, change: Callable[[Tree], object]) -> None:
    """Change the tree in a file that torch wrote; storages stay as they are."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    [pickle] = [name for name in contents if name.endswith("data.pkl")]
    tree = _plain(read_objects(contents[pickle]))
    change(tree)
    contents[pickle] = build_pickle(_pickled(tree))
    write_archive(path, contents)


def write_archive(path: Path, contents: dict[str, bytes]) -> None:
    """Write records, uncompressed."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def _plain(value: object) -> Any:
    """Dicts in place of pairs, also of an OrderedDict; objects as they are."""
    if isinstance(value, PickledObject) and value.made_by.module == "collections":
        value = value.pairs or Pairs()
    if isinstance(value, Pairs):
        return {key: _plain(item) for key, item in value}
    return [_plain(item) for item in value] if type(value) is list else value


def _pickled(value: object) -> object:
    if isinstance(value, dict):
        return Pairs((key, _pickled(item)) for key, item in value.items())
    if isinstance(value, PickledObject):
        arguments = tuple(map(_pickled, value.arguments))
        return PickledObject(value.made_by, arguments, _pickled(value.state))
    if isinstance(value, tuple):
        return tuple(map(_pickled, value))
    if isinstance(value, PersistentId):
        return PersistentId(_pickled(value.value))
    if isinstance(value, Pairs):
        return Pairs((key, _pickled(item)) for key, item in value)
    return [_pickled(item) for item in value] if type(value) is list else value

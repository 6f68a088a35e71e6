"""A file of DeepSpeed's universal checkpoint, among its others: the model's state, a tensor, a row of one, a step."""

from reshard.core.files.model import OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.layouts.deepspeed.numbers import step_in_file
from reshard.core.layouts.universal.checkpoint import open_universal
from reshard.core.layouts.universal.tag import UniversalTag
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from tests.fuzz.mutations import damaged_archive, lying_torch_file
from tests.fuzz.parsers import Parser
from tests.fuzz.placed import check_shards
from tests.support.torch_files import written

_ORIGIN = "hostile_universal"
_ROOT = parse_url(f"memory:///fuzz/{_ORIGIN}/global_step40_universal")
_STEP = "zero/w/step.pt"


def _file(archive: str, root: object, **shapes: tuple[int, ...]) -> bytes:
    entries = {name: OutputEntry(name, dtype_from_name("Float32"), shape) for name, shape in shapes.items()}
    return written(root, {name: (entry, bytes(entry.size_bytes)) for name, entry in entries.items()}, archive)


def _size(*shape: int) -> PickledObject:
    return PickledObject(Global("torch", "Size"), (shape,))


_STATE = {
    "module": {name: TensorPlace(name) for name in ("w", "seen")},
    "buffer_names": ["seen"],
    "param_shapes": [{"w": _size(3, 2), "row": _size(2, 2)}],
    "frozen_param_shapes": {"frozen": _size(2, 2)},
    "shared_params": {"other": "w"},
}
_FILES = {
    "zero_pp_rank_0_mp_rank_00_model_states.pt": _file("state", _STATE, w=(3, 2), seen=(2,)),
    "zero/w/fp32.pt": _file("tensor", {"cat_dim": 0, "param": TensorPlace("w")}, w=(3, 2)),
    "zero/row/fp32.pt": _file("row", TensorPlace("w"), w=(4,)),
    _STEP: _file("step", TensorPlace("w"), w=()),
}
"""Paths below the directory; the name of each archive in them is its own."""


def _open(data: bytes) -> None:
    archives = dict(zip((b"state/", b"tensor/", b"row/", b"step/"), _FILES, strict=True))
    hostile = next((path for archive, path in archives.items() if archive in data), "zero/w/fp32.pt")
    for path, content in _FILES.items():
        location = _ROOT.child(*path.split("/"))
        location.store.put(location.path, data if path == hostile else content)
    if hostile == _STEP:
        step_in_file(_ROOT.child(*_STEP.split("/")))
    opened = open_universal(UniversalTag(str(_ROOT), _ROOT, 40, tuple(names_in(_ROOT))))
    assert opened.strategy.stages
    check_shards(opened.files, hostile, data)


FILE = Parser(
    "universal-file",
    lambda: [*_FILES.values()],
    _open,
    (damaged_archive, lying_torch_file),
    _ORIGIN,
    memory_factor=200,
)

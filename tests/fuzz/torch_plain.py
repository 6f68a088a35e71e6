"""A file of whole tensors, whose state dict is all of it, or below a key of a training."""

from reshard.core.files.model import OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.layouts.torch.checkpoint import open_files
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from tests.fuzz.mutations import damaged_archive, lying_torch_file
from tests.fuzz.parsers import Parser
from tests.fuzz.placed import check_shards
from tests.support.torch_files import written

_ORIGIN = "hostile_file"
_NAME = f"{_ORIGIN}.pt"


def _files() -> list[bytes]:
    entries = {name: (OutputEntry(name, dtype_from_name(name), (2, 3)), b"") for name in ("Float32", "BFloat16")}
    filled = {name: (entry, bytes(entry.size_bytes)) for name, (entry, _) in entries.items()}
    ordered = PickledObject(
        Global("collections", "OrderedDict"),
        (),
        Pairs([("_metadata", 1)]),
        Pairs((each, TensorPlace(each)) for each in entries),
    )
    training = {"epoch": 3, "model": ordered, "moments": [{"exp_avg": TensorPlace("Float32", (3, 2))}]}
    return [written(ordered, filled), written(training, filled)]


def _open(data: bytes) -> None:
    location = parse_url(f"memory:///fuzz/{_NAME}")
    location.store.put(location.path, data)
    opened = open_files(str(location), [location], "model" if b"moments" in data else "", 1)
    check_shards([each.file for each in opened], _NAME, data)


STATE_DICT = Parser("torch-plain", _files, _open, (damaged_archive, lying_torch_file), _ORIGIN, memory_factor=200)

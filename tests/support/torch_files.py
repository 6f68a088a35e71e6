"""Files that torch.save wrote: described as PyTorch's judge describes them, and written as reshard lays them out."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from reshard.core.files.model import CheckpointFormat, Content, OutputEntry
from reshard.core.files.running_crc import ContentRange, running_crc
from reshard.core.files.torch_file import TorchFile, read_torch_file
from reshard.core.files.torch_file_writing import TensorPlace, plan_torch_file
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name, torch_name
from tests.support.checkpoints import Contents


def read(path: Path, *inert: str, known: Collection[tuple[str, str]] = ()) -> TorchFile:
    """Read a file."""
    return read_torch_file(open_source(parse_url(str(path))), inert=inert, known=known)


def items_of(value: object) -> dict[Any, Any]:
    """A dict that was read."""
    assert isinstance(value, Pairs)
    return dict(value)


def written(root: object, contents: dict[str, tuple[OutputEntry, bytes]], archive: str = "archive") -> bytes:
    """The file with a tree and the contents of its tensors, with its CRCs."""
    entries = [entry for entry, _ in contents.values()]
    plan = plan_torch_file(root, entries, archive)
    crc = running_crc(CheckpointFormat.DISTCP, plan, entries)
    file = b""
    for segment in plan.segments:
        is_content = isinstance(segment, Content)
        block = bytearray(contents[segment.name][1] if isinstance(segment, Content) else segment)
        if crc is not None:
            ranges = [ContentRange(segment.name, 0, len(block))] if isinstance(segment, Content) else []
            crc.add(memoryview(block), ranges, crc.sums(memoryview(block), ranges))
        assert block or not is_content
        file += block
    assert len(file) == plan.size_bytes
    return file


def state_dict_file(contents: Contents, shape_tree: Callable[[Any], object] = lambda tensors: tensors) -> bytes:
    """The file with the state dict of these tensors, in the tree that is made of it."""
    entries = {
        name: (OutputEntry(name, dtype_from_name(dtype), shape), data)
        for name, (dtype, shape, data) in contents.items()
    }
    return written(shape_tree({name: TensorPlace(name) for name in contents}), entries)


def content_of(data: bytes, tensor: StoredTensor) -> bytes:
    """The bytes of a tensor, in C order."""
    if tensor.extent is not None:
        return data[tensor.extent.offset : tensor.extent.offset + tensor.extent.length]
    assert tensor.strided is not None
    view = np.lib.stride_tricks.as_strided(
        np.frombuffer(data, np.uint8)[tensor.strided.offset :],
        (*tensor.shape, tensor.dtype.itemsize),
        (*tensor.strided.strides, 1),
    )
    return view.tobytes()


def described(value: Any, data: bytes) -> Any:
    """A tree that was read, as the judge describes one."""
    match value:
        case StoredTensor():
            return ["tensor", torch_name(value.dtype), [*value.shape], content_of(data, value).hex()]
        case Pairs():
            return ["dict", [[described(key, data), described(each, data)] for key, each in value]]
        case Global():
            return ["name", str(value)]
        case PickledObject():
            return ["object", str(value.made_by), None if value.state is None else described(value.state, data)]
        case list() | tuple():
            return ["list" if type(value) is list else "tuple", [described(each, data) for each in value]]
        case bytes():
            return ["bytes", value.hex()]
    return repr(value)


def tensors_of(value: object) -> list[StoredTensor]:
    """The tensors of a tree."""
    match value:
        case StoredTensor():
            return [value]
        case Pairs():
            return [tensor for pair in value for tensor in tensors_of(pair)]
        case list() | tuple():
            return [tensor for each in value for tensor in tensors_of(each)]
        case PickledObject():
            return tensors_of([value.arguments, value.state, value.pairs, value.values])
    return []

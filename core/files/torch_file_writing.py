"""Lays out whole files as torch.save writes them; `torch_file` reads them.

The tree is one pickle, of protocol 2. Each tensor is a record of its own, at a multiple of 64: places follow from the
tree and the tensors' dtypes and shapes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from reshard.core.files.model import Content, FilePlan, OutputEntry
from reshard.core.files.torch_records import VERSION, add_format, tensor_record, writable_name
from reshard.core.files.zip_writing import ArchiveLayout
from reshard.core.runtime.pickle_writing import build_pickle
from reshard.core.runtime.pickled import Pairs, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape


class TensorPlace(Record):
    """A tensor in the tree: the name of its entry, and its shape if that is another than the entry's."""

    name: str
    shape: Shape | None = None


class TensorValue(Record):
    """A tensor in the tree whose bytes are known, such as a number's."""

    dtype: DType
    shape: Shape
    data: bytes


def plan_torch_file(root: object, entries: Sequence[OutputEntry], archive: str) -> FilePlan:
    """Lay out the file with a tree whose tensors are `entries`, in their order.

    Args:
        root: None, bool, int, float, str, bytes, list, tuple, dict, `Pairs`, `Global`, `PickledObject` and a
            `TensorPlace` for each tensor; two of one name are tensors that share their storage. A `TensorValue` is a
            tensor besides these.
        archive: the prefix of all records: torch takes the file's name without its extension.

    Raises:
        CheckpointError: torch has no such dtype.
        ValueError: the tree and the entries do not name the same tensors.
    """
    tree = _Tree(entries)
    pickled = build_pickle(tree.of(root))
    tree.check_all_placed()
    layout = ArchiveLayout(f"{archive}/")
    layout.add("data.pkl", pickled)
    add_format(layout)
    for number, entry in enumerate(entries):
        layout.add_data(f"data/{number}", Content(entry.name, 0, entry.size_bytes))
    for key, data in tree.values.items():
        layout.add(f"data/{key}", data, aligned=True)
    layout.add("version", VERSION)
    return layout.finish()


class _Tree:
    """Replaces places of tensors by the calls that make them."""

    def __init__(self, entries: Sequence[OutputEntry]) -> None:
        self._keys = {entry.name: str(number) for number, entry in enumerate(entries)}
        self._entries = {entry.name: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ValueError("two entries have the same name")
        self._placed: set[str] = set()
        self.values: dict[str, bytes] = {}

    def of(self, value: object) -> object:
        match value:
            case TensorPlace():
                return self._tensor(value)
            case TensorValue():
                return self._value(value)
            case Mapping():
                return self._pairs(value.items())
            case Pairs():
                return self._pairs(value)
            case list():
                return [self.of(each) for each in value]
            case tuple():
                return tuple(self.of(each) for each in value)
            case PickledObject():
                pairs = None if value.pairs is None else self._pairs(value.pairs)
                values = None if value.values is None else [self.of(each) for each in value.values]
                arguments = tuple(self.of(each) for each in value.arguments)
                return PickledObject(value.made_by, arguments, self.of(value.state), pairs, values)
        return value

    def check_all_placed(self) -> None:
        missing = self._entries.keys() - self._placed
        if missing:
            raise ValueError(f"the tree has no place for {sorted(missing)[:3]}")

    def _pairs(self, items: Iterable[tuple[object, object]]) -> Pairs:
        return Pairs((self.of(key), self.of(value)) for key, value in items)

    def _tensor(self, place: TensorPlace) -> PickledObject:
        entry = self._entries.get(place.name)
        if entry is None:
            raise ValueError(f"the tree has a place for {place.name!r}, which is no entry")
        shape = entry.shape if place.shape is None else place.shape
        if math.prod(shape) != math.prod(entry.shape):
            raise ValueError(f"{place.name!r} has the shape {entry.shape}, which cannot become {shape}")
        self._placed.add(place.name)
        return tensor_record(entry.dtype, writable_name(entry), shape, self._keys[place.name])

    def _value(self, value: TensorValue) -> PickledObject:
        key = str(len(self._keys) + len(self.values))
        self.values[key] = value.data
        entry = OutputEntry("", value.dtype, value.shape)
        return tensor_record(value.dtype, writable_name(entry), value.shape, key)

"""What both kinds of files have in common: the names of their classes, and checks of numbers, names and shapes."""

from collections.abc import Container, Mapping
from contextlib import closing

from reshard.core.errors import CheckpointError
from reshard.core.files.torch_file import read_torch_file, text_fields
from reshard.core.layouts.deepspeed.names import parse_rank_name
from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.runtime.pickled import Pairs
from reshard.core.runtime.wording import shortened
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location
from reshard.core.tensor.slices import Shape, is_countable

FRAGMENT = ("deepspeed.utils.tensor_fragment", "fragment_address")
STAGE = ("deepspeed.runtime.zero.config", "ZeroStageEnum")
_KNOWN = (
    FRAGMENT,
    STAGE,
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
)
_LARGEST = 10**18
_ITEM_BYTES, _MOST_AXES = 8, 64


class _AllBut(Container[str]):
    """All texts but these."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def __contains__(self, text: object) -> bool:
        return text not in self._texts


class Fields:
    """The items of a dict in a file; what is not as DeepSpeed writes it is a CheckpointError that names the key."""

    def __init__(self, location: Location, items: Mapping[str, object], inside: str = "") -> None:
        self.location = location
        self.items = items
        self._inside = inside

    def below(self, key: str) -> "Fields":
        """Return a dict with texts as keys."""
        return self.of(self.items.get(key), key)

    def of(self, value: object, key: str) -> "Fields":
        """Return a dict that was found below a key."""
        items = text_fields(value)
        if items is None:
            raise self.refusal(key, "not a dict of different names")
        return Fields(self.location, items, f"{self._inside}[{key!r}]")

    def numbered(self, key: str) -> dict[int, object]:
        """Return a dict with numbers as keys."""
        value = self.items.get(key)
        found = {number: each for number, each in value if type(number) is int} if isinstance(value, Pairs) else None
        if found is None or not isinstance(value, Pairs) or len(found) != len(value):
            raise self.refusal(key, "not a dict of different numbers")
        return found

    def list(self, key: str) -> list[object]:
        """Return a list."""
        value = self.items.get(key)
        if type(value) is not list:
            raise self.refusal(key, "not a list")
        return value

    def number(self, key: str, value: object = ...) -> int:
        """Return the number of a key, or one that was found below it."""
        found = self.items.get(key) if value is ... else value
        if type(found) is not int or not 0 <= found <= _LARGEST:
            raise self.refusal(key, f"{shortened(repr(found), 40)}, not a number of 0 or more")
        return found

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.items.get(key)
        if not isinstance(value, str):
            raise self.refusal(key, "not a text")
        return value

    def shapes(self, value: object, key: str) -> dict[str, Shape]:
        """Return shapes by name."""
        return {
            name: self._shape(shape, f"{key}[{shortened(name)!r}]") for name, shape in self.of(value, key).items.items()
        }

    def refusal(self, key: str, problem: str) -> CheckpointError:
        """Return the error for what is below a key."""
        return CheckpointError(f"{self.location}: its {self._inside}[{key!r}] is {problem}")

    def _shape(self, value: object, key: str) -> Shape:
        if not isinstance(value, tuple) or not all(type(each) is int and each >= 0 for each in value):
            raise self.refusal(key, "not a shape")
        if len(value) > _MOST_AXES or not is_countable(value, _ITEM_BYTES):
            raise self.refusal(key, "a shape that no file can hold: damaged")
        return value


def read_fields(location: Location, *wanted: str) -> tuple[ShardFile, Fields]:
    """Read a file's dict from its headers; below other keys than the `wanted` ones may be objects of any class.

    Raises:
        CheckpointError: it is damaged, has no dict, or was saved under another file's name.
        StorageError: it cannot be read.
    """
    with closing(open_source(location)) as file:
        saved = read_torch_file(file, inert=_AllBut(*wanted), known=_KNOWN)
        opened = ShardFile(location.name, str(location), file.size_bytes, file.version, ())
    saved.check_name(location, parse_rank_name)
    items = text_fields(saved.root)
    if items is None:
        raise CheckpointError(f"{location}: has no dict of different names: DeepSpeed did not save it")
    return opened, Fields(location, items)

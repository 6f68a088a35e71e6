"""Finds the state dict in the tree of a file: the dict whose values are the model's tensors.

It is the tree itself, or a dict in it, which then has to be named: a training saves others beside the model, such as
moments and averages.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.torch_file import not_data
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.pickled import Global, Pairs, PersistentId, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.text.options import source_option

_MAX_LISTED = 8
_MAX_KEY, _MOST_DICTS = 200, 100
"""For messages: characters of a key, and dicts that are named."""
_EXTRA_STATE = re.compile(r"(.*\.)?_extra_state\d*", re.ASCII | re.DOTALL)


class StateDict(Record):
    """A state dict.

    Attributes:
        tensors: by name, in the order of the file.
        others: names of its values that are not tensors, and are left out.
        beside: what the tree has beside it, in words.
    """

    tensors: Mapping[str, StoredTensor]
    others: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


class NotChosenError(CatalogError):
    """A tree has its tensors in dicts below its root, and none was chosen; `there` are all of them, in words."""

    def __init__(self, message: str, there: tuple[str, ...] = ()) -> None:
        """Keep what is there beside the message."""
        super().__init__(message)
        self.there = there


class _Reached(Record):
    """A value of a tree, and the keys that lead to it."""

    keys: tuple[str, ...]
    value: object


def find_state_dict(tree: object, root: str, origin: str) -> StateDict:
    """Return the state dict of a tree.

    Args:
        tree: as `read_torch_file` reads it, all of its keys inert.
        root: the keys that lead to the state dict, joined by dots; empty for the tree itself.
        origin: the file, for messages.

    Raises:
        NotChosenError: tensors are in dicts below the root, and which are meant is not said.
        CatalogError: the tree has no such root, or several.
        CheckpointError: the state dict has something else than data, or no tensors.
    """
    if not isinstance(tree, Pairs):
        raise CheckpointError(f"{origin}: holds {_kind(tree)}, not a dict of tensors; save model.state_dict()")
    reached = _only(tree, root, origin) if root else _Reached((), tree)
    chosen = reached.value
    place = f"{origin}: at {root}: " if root else f"{origin}: "
    if not isinstance(chosen, Pairs):
        raise CatalogError(f"{place}holds {_kind(chosen)}, not a dict of tensors{_advice(tree)}")
    if any(isinstance(value, Pairs | list | tuple) and _count(value) for _, value in chosen):
        raise NotChosenError(f"{place}has tensors in dicts or lists in it{_advice(tree)}", tuple(_listing(tree)))
    tensors: dict[str, StoredTensor] = {}
    others = []
    for key, value in chosen:
        if not isinstance(key, str):
            raise CheckpointError(f"{place}has the key {_shown(key)}, which is not the name of a tensor")
        if isinstance(value, StoredTensor):
            tensors[key] = value
        elif (refusal := _refusal(value)) and not _EXTRA_STATE.fullmatch(key):
            raise CheckpointError(f"{place}{_shown(key)} {refusal}")
        else:
            others.append(key)
    if not tensors:
        raise CheckpointError(f"{place}has no tensors{_advice(tree)}")
    return StateDict(tensors, tuple(others), tuple(_beside(tree, reached.keys)))


def _only(tree: Pairs, root: str, origin: str) -> _Reached:
    """The one value that keys lead to; a key may have dots itself."""
    found = list(_reached(tree, root))
    if not found:
        raise CatalogError(f"{origin}: has no {root!r}{_advice(tree)}")
    if len(found) > 1:
        spelled = listed([".".join(map(repr, each.keys)) for each in found], _MAX_LISTED)
        raise CatalogError(f"{origin}: several keys are {root!r}: {spelled}; save the one that is meant by itself")
    return found[0]


def _reached(value: object, root: str) -> Iterator[_Reached]:
    for key, inner in value if isinstance(value, Pairs) else ():
        if key == root:
            yield _Reached((root,), inner)
        elif isinstance(key, str) and root.startswith(f"{key}."):
            for each in _reached(inner, root[len(key) + 1 :]):
                yield _Reached((key, *each.keys), each.value)


def _refusal(value: object) -> str:
    """Why a value of a state dict is refused; empty for data, which is left out."""
    match value:
        case PersistentId():
            return "has a storage that belongs to no tensor; save tensors instead"
        case Global(module="torch"):
            return ""
        case Global() | PickledObject():
            return not_data(value)
    return ""


def _advice(tree: Pairs) -> str:
    """What a tree has, and the option that chooses a part of it, as the end of a message."""
    paths = [path for path, _ in islice(_dicts(tree, ""), 2)]
    there = f"; it has {listed(_listing(tree), _MAX_LISTED)}" if tree else ""
    if not paths:
        return there
    is_clear = len(paths) == 1 and not any(_is_tensor(value) for _, value in tree)
    return f"{there}: choose one with {source_option('root', paths[0] if is_clear else 'KEY')}"


def _listing(tree: Pairs) -> list[str]:
    """What a tree has, in words: its dicts of tensors, then other keys at its top, those with tensors first."""
    dicts = [_with_count(path, count) for path, count in islice(_dicts(tree, ""), _MOST_DICTS)]
    others = [(str(key), _count(value)) for key, value in tree if not any(_dicts(value, str(key)))]
    others.sort(key=lambda other: other[1] == 0)
    return [*dicts, *(_with_count(key, count) for key, count in others)]


def _beside(tree: object, keys: tuple[str, ...]) -> Iterator[str]:
    """What a tree has beside the value that keys lead to, in words."""
    before = ""
    for chosen in keys:
        assert isinstance(tree, Pairs)
        yield from (_with_count(f"{before}{key}", _count(value)) for key, value in tree if key != chosen)
        before += f"{chosen}."
        tree = next(value for key, value in tree if key == chosen)


def _with_count(key: str, tensors: int) -> str:
    return f"{key[:_MAX_KEY]} ({counted(tensors, 'tensor')})" if tensors else key[:_MAX_KEY]


def _dicts(value: object, path: str) -> Iterator[tuple[str, int]]:
    """The dicts with tensors in a value, by the keys that lead to them, and how many tensors each has itself."""
    if not isinstance(value, Pairs):
        return
    count = sum(_is_tensor(inner) for _, inner in value)
    if count and path:
        yield path, count
    for key, inner in value:
        if isinstance(key, str):
            yield from _dicts(inner, f"{path}.{key}"[:_MAX_KEY] if path else key[:_MAX_KEY])


def _count(value: object) -> int:
    """The number of tensors in a value, at any depth of dicts and lists."""
    match value:
        case Pairs():
            return sum(_count(inner) for _, inner in value)
        case list() | tuple():
            return sum(map(_count, value))
    return int(_is_tensor(value))


def _is_tensor(value: object) -> bool:
    """True for a tensor, of any class."""
    return isinstance(value, StoredTensor) or (
        isinstance(value, PickledObject) and value.made_by.name.startswith("_rebuild_")
    )


def _kind(value: object) -> str:
    """What a value is, for messages."""
    match value:
        case StoredTensor():
            return "a tensor"
        case PickledObject():
            return f"an object of {str(value.made_by)[:_MAX_KEY]!r}"
    return f"a {type(value).__name__}"


def _shown(key: object) -> str:
    return repr(str(key) if not isinstance(key, int | str) else key)[:_MAX_KEY]

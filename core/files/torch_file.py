"""Whole files that torch.save wrote: a tree of dicts, lists and objects in one pickle, and the storages of its tensors.

    {prefix}/data.pkl     the tree, read as data: nothing is imported or called
    {prefix}/data/0, …    the storages' bytes, uncompressed; tensors may share one
    {prefix}/byteorder    little
    {prefix}/version, .format_version, .storage_alignment, .data/serialization_id

A pickle names classes and functions. Those that stand for data, such as an OrderedDict, are replaced by it. Of others,
a record of the name and the arguments is kept if the caller knows the name, or below top-level keys that it names.
"""

import codecs
from collections.abc import Callable, Collection, Container, Mapping, Sequence

from reshard.core.errors import CheckpointError
from reshard.core.files.torch_views import BUILDERS, PARAMETER, StoredTensor, parse_view
from reshard.core.files.zip_records import Archive, Window
from reshard.core.runtime.metadata import Parse, parsing
from reshard.core.runtime.pickled import (
    OPCODE_BYTES,
    Global,
    Pairs,
    PickledObject,
    PickleError,
    read_objects,
)
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location
from reshard.core.tensor.dtypes import TORCH_DTYPES
from reshard.core.tensor.slices import Extent

_MAX_RECORDS = 1 << 18
_MAX_DIRECTORY_BYTES = 64 << 20
_MAX_PICKLE_BYTES = 256 << 20
_TAIL_BYTES = 64 << 10
_MAX_DEPTH = 100
_MAX_WRAPPERS = 4
_MIN_VISITS = 4096
_LIST_BYTES, _VALUE_BYTES, _PAIR_BYTES, _OBJECT_BYTES = 150, 8, 100, 1000
"""Memory for a part of the tree: shared parts are repeated, so the pickle's size does not bound it."""
_PICKLE_START, _LFS_START = b"\x80", b"version https://git-lfs"
_BUILTINS = ("builtins", "__builtin__")
_FACTORIES = frozenset(
    (module, name) for module in _BUILTINS for name in ("dict", "list", "set", "int", "float", "str")
)
_DTYPES = frozenset(("torch", name) for name in TORCH_DTYPES)
_ORDERED_DICT, _DEFAULT_DICT = ("collections", "OrderedDict"), ("collections", "defaultdict")
_ENCODE, _BYTES = ("_codecs", "encode"), frozenset((module, "bytes") for module in _BUILTINS)
_SIZE = ("torch", "Size")
_OBJECTS = frozenset([("argparse", "Namespace"), ("torch", "device"), ("io", "BytesIO"), ("_io", "BytesIO")])
"""Classes whose objects are kept as records everywhere."""
_BUILDERS = frozenset((each.module, each.name) for each in BUILDERS)
_WRAPPERS = frozenset([(PARAMETER.module, PARAMETER.name), ("torch._utils", "_rebuild_parameter_with_state")])
_FROM_TYPE = ("torch._tensor", "_rebuild_from_type_v2")
_TENSOR_CLASSES = frozenset([("torch", "Tensor"), ("torch.nn.parameter", "Parameter")])
_DTENSOR = "DTensor"
_OTHER_TENSORS: Mapping[str, tuple[str, str]] = {
    "_rebuild_qtensor": ("a quantized tensor", "save what its dequantize() gives"),
    "_rebuild_sparse_tensor": ("a sparse tensor", "save what its to_dense() gives"),
    "_rebuild_sparse_csr_tensor": ("a sparse tensor", "save what its to_dense() gives"),
    "_rebuild_nested_tensor": ("a nested tensor", "save what its unbind() gives"),
    "_rebuild_meta_tensor_no_storage": ("a tensor on the device 'meta', without values", "save one that has some"),
    "_rebuild_device_tensor_from_cpu_tensor": ("a tensor of another device", "save what its cpu() gives"),
    "_rebuild_device_tensor_from_numpy": ("a tensor of another device", "save what its cpu() gives"),
}
"""Functions of `torch._utils` whose tensors are not read -> what they make, and what to do."""
_MODULE_FIELDS = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of every torch.nn.Module."""
_Names = frozenset[tuple[str, str]]


class _Everything(Container[str]):
    def __contains__(self, key: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()
"""All keys, as those that are inert."""


class TorchFile(Record):
    """What torch.save wrote.

    Attributes:
        root: None, bool, int, float, str, bytes, list, tuple; `Pairs` for dicts of every kind, without attributes;
            `StoredTensor` for tensors; `Global` for dtypes; `PickledObject` for a Namespace, a device, a BytesIO.
            `Global` and `PickledObject` of names that are known to the caller; below inert keys any of these, and
            `PersistentId`.
        storages: where the bytes of all storages are in the file. Several tensors may be views of one.
        archive: what all its records are below: the name that it was saved under, without its extension, unless it was
            saved elsewhere first.
    """

    root: object
    storages: tuple[Extent, ...]
    archive: str

    def check_name(self, location: Location, is_of_rank: Callable[[str], object]) -> None:
        """Check that it was saved under its name, if it was saved as a rank's file: others of a training look alike.

        Raises:
            CheckpointError: it was saved as another rank's.
        """
        saved_as = f"{self.archive}.pt"
        if saved_as != location.name and is_of_rank(saved_as):
            raise CheckpointError(
                f"{location}: was saved as {saved_as}, by the name inside: it was renamed, or copied over another "
                "file. Restore the file of this name"
            )


def read_torch_file(
    file: SourceFile, *, inert: Container[str] = (), known: Collection[tuple[str, str]] = ()
) -> TorchFile:
    """Read the tree of a file, and where its tensors are, from its headers alone.

    Args:
        inert: top-level keys below which objects of any class are kept as records; `not_data` refuses one of these.
        known: (module, name) of classes and functions whose calls are kept as records everywhere. A tensor of such a
            class is a call of the class, with the arguments of the function that makes it, and what is set afterwards.

    Raises:
        CheckpointError: it is damaged, of another format, or has an object that is not data elsewhere.
        LimitError: its pickle would take too much memory.
        StorageError: the file cannot be read.
    """
    try:
        return _read(file, inert, _OBJECTS.union(known))
    except (CheckpointError, PickleError) as error:
        raise CheckpointError(f"{file.location}: {error}") from None


def text_fields(value: object) -> dict[str, object] | None:
    """Return a pickled dict's items with texts as keys; None for another value, and if a key is there twice."""
    if not isinstance(value, Pairs):
        return None
    fields = {key: item for key, item in value if isinstance(key, str)}
    return fields if len(fields) == sum(isinstance(key, str) for key, _ in value) else None


def not_data(value: Global | PickledObject) -> str:
    """Return why a name, or an object of it, is refused where data is wanted."""
    if isinstance(value, Global):
        return _foreign_name(value)
    value = _innermost(value)
    name = value.made_by
    if _name_of(value) == _FROM_TYPE:
        return _foreign_class(value)
    if name.module == "torch._utils" and name.name in _OTHER_TENSORS:
        what, advice = _OTHER_TENSORS[name.name]
        return f"has {what} ({name}), which reshard does not read; {advice}"
    fields = text_fields(value.state)
    if fields is not None and fields.keys() >= _MODULE_FIELDS:
        return (
            f"has a whole module, {str(name)[:200]!r}, which is not data and was not run; load it in PyTorch, and save "
            "its tensors with torch.save(module.state_dict(), FILE)"
        )
    return _foreign_name(name)


def _foreign_name(name: Global) -> str:
    return f"has {str(name)[:200]!r}, which is not data and was not run; save the checkpoint without it"


def _foreign_class(tensor: PickledObject) -> str:
    match tensor.arguments:
        case (_, Global() as kind, *_) if kind.name == _DTENSOR:
            return (
                f"has a tensor of the class {str(kind)[:200]!r}, of which this is one rank's part; name the directory "
                "with the files of all ranks, or save what its full_tensor() gives"
            )
        case (_, Global() as kind, *_):
            return f"has a tensor of the class {str(kind)[:200]!r}; save a plain tensor instead"
    return "its pickle describes no tensor"


def _read(file: SourceFile, inert: Container[str], known: _Names) -> TorchFile:
    whole = Extent(0, file.size_bytes)
    tail = min(_TAIL_BYTES, file.size_bytes)
    window = Window(file, [Extent(0, min(1, tail)), Extent(file.size_bytes - tail, tail)])
    if tail and window.read(0, 1) == _PICKLE_START:
        raise CheckpointError(
            "is saved in PyTorch's format before 1.6, or is a plain pickle; load it in PyTorch and save it again: "
            "torch.save(torch.load(FILE), NEW_FILE)"
        )
    if window.read(0, min(tail, len(_LFS_START))) == _LFS_START:
        raise CheckpointError("is a Git LFS pointer; fetch the file itself (git lfs pull)")
    archive = Archive(window, whole, max_records=_MAX_RECORDS, max_directory_bytes=_MAX_DIRECTORY_BYTES)
    name = archive.only("data.pkl")
    prefix = name.removesuffix("data.pkl")
    if f"{prefix}constants.pkl" in archive.records:
        raise CheckpointError("is a TorchScript program, not a checkpoint; save its state_dict with torch.save")
    data_names = [each for each in archive.records if each.startswith(f"{prefix}data/")]
    # a request for the header of each takes a remote file longer than it is worth
    aligned = {} if file.location.store.is_near else {each: archive.aligned(each) for each in data_names}
    archive.window = Window(file, archive.headers(each for each in archive.records if not aligned.get(each)))
    archive.check_byteorder(prefix)
    with parsing(file.location) as parse:
        parse.take(archive.records[name].size * OPCODE_BYTES // 4)
        data = archive.content(name, _MAX_PICKLE_BYTES)
        storages = {}
        for each in data_names:
            extent = aligned.get(each) or archive.in_file(each)
            storages[each.removeprefix(f"{prefix}data/")] = extent, archive.records[each].crc
        try:
            root = _Tree(storages, inert, known, parse, 2 * len(data) + _MIN_VISITS).of_root(read_objects(data))
        except (CheckpointError, PickleError) as error:
            raise CheckpointError(f"record {name!r}: {error}") from None
    return TorchFile(root, tuple(extent for extent, _ in storages.values()), prefix.removesuffix("/"))


class _Tree:
    """Replaces objects that stand for data with that data, and refuses any other."""

    def __init__(
        self,
        storages: dict[str, tuple[Extent, int]],
        inert: Container[str],
        known: _Names,
        parse: Parse,
        max_visits: int,
    ) -> None:
        self._storages = storages
        self._inert = inert
        self._known = known
        self._parse = parse
        self._max_visits = max_visits
        self._path: list[object] = []
        self._is_inert = False
        self._records: dict[tuple[int, bool], PickledObject] = {}

    def of_root(self, value: object) -> object:
        try:
            return self._of(value)
        except CheckpointError as error:
            keys = "".join(f"[{_shown(key)}]" for key in self._path)
            raise CheckpointError(f"at {keys}: {error}" if keys else str(error)) from None

    def _at(self, key: object, value: object) -> object:
        """A value below a key; the path stays where an error was found."""
        if len(self._path) >= _MAX_DEPTH:
            raise CheckpointError(f"nests deeper than {_MAX_DEPTH} levels, or contains itself")
        self._path.append(key)
        result = self._of(value)
        self._path.pop()
        return result

    def _of(self, value: object) -> object:
        self._max_visits -= 1
        if self._max_visits < 0:
            raise CheckpointError("repeats its parts again and again: damaged, or made to fill the time")
        kind = type(value)
        if value is None or kind in (bool, int, float, str, bytes):
            return value
        if isinstance(value, Pairs):
            return self._pairs(value)
        if isinstance(value, list):
            return self._each(value)
        if isinstance(value, tuple):
            return tuple(self._each(value))
        if isinstance(value, Global):
            return self._global(value)
        if isinstance(value, PickledObject):
            return self._object(value)
        if self._is_inert:
            return value
        raise CheckpointError("has a storage that belongs to no tensor; save tensors instead")

    def _each(self, values: Sequence[object]) -> list[object]:
        self._parse.take(_LIST_BYTES + _VALUE_BYTES * len(values))
        return [self._at(index, value) for index, value in enumerate(values)]

    def _pairs(self, pairs: Pairs) -> Pairs:
        self._parse.take(_LIST_BYTES + _PAIR_BYTES * len(pairs))
        is_top, known, result = not self._path, set(), Pairs()
        for key, value in pairs:
            read_key = self._at(key, key)
            if isinstance(read_key, str):
                if read_key in known:
                    raise CheckpointError(f"has the key {_shown(read_key)} twice: damaged")
                known.add(read_key)
            if is_top:
                self._is_inert = isinstance(read_key, str) and read_key in self._inert
            result.append((read_key, self._at(key, value)))
        return result

    def _global(self, value: Global) -> Global:
        name = (value.module, value.name)
        if not self._is_inert and name not in _DTYPES and name not in self._known:
            raise CheckpointError(not_data(value))
        return value

    def _object(self, value: PickledObject) -> object:
        name = _name_of(value)
        if name == _FROM_TYPE and (of_class := self._of_known_class(value.arguments)):
            return self._record(of_class)
        if name in _BUILDERS or name in _WRAPPERS or name == _FROM_TYPE:
            inner = _innermost(value)
            if _name_of(inner) != _FROM_TYPE:
                return self._tensor(inner)
            has_class = len(inner.arguments) > 1 and isinstance(inner.arguments[1], Global)
            if self._is_inert and has_class:
                return self._record(value)
            raise CheckpointError(_foreign_class(inner))
        if name == _ORDERED_DICT and not value.arguments:
            return self._pairs(value.pairs or Pairs())
        if name == _DEFAULT_DICT and self._is_factory(value.arguments):
            return self._pairs(value.pairs or Pairs())
        match value.arguments:
            case (str(text), "latin1") if name == _ENCODE:
                return self._encoded(text)
            case () if name in _BYTES:
                return b""
            case (tuple(sizes),) if name == _SIZE:
                return self._of(sizes)
        if not self._is_inert and name not in self._known:
            raise CheckpointError(not_data(value))
        # an object with a long list may be that of each tensor; the tree that is read keeps it, and so its id
        key = id(value), self._is_inert
        if key not in self._records:
            self._records[key] = self._record(value)
        return self._records[key]

    def _of_known_class(self, arguments: tuple[object, ...]) -> PickledObject | None:
        """What makes a tensor of a class that the caller knows; None for another one."""
        match arguments:
            case (_, Global() as kind, tuple(own), state) if (kind.module, kind.name) in self._known:
                return PickledObject(kind, own, state)
        return None

    def _is_factory(self, arguments: tuple[object, ...]) -> bool:
        match arguments:
            case () | (None,):
                return True
            case (Global() as made_by,):
                return (made_by.module, made_by.name) in _FACTORIES
        return False

    def _encoded(self, text: str) -> bytes:
        try:
            return codecs.encode(text, "latin1")
        except UnicodeEncodeError:
            raise CheckpointError("has bytes above 255: damaged") from None

    def _record(self, value: PickledObject) -> PickledObject:
        self._parse.take(_OBJECT_BYTES)
        arguments = tuple(self._each(value.arguments))
        state = self._at("state", value.state)
        pairs = None if value.pairs is None else self._pairs(value.pairs)
        values = None if value.values is None else self._each(value.values)
        return PickledObject(value.made_by, arguments, state, pairs, values)

    def _tensor(self, value: PickledObject) -> StoredTensor:
        self._parse.take(_OBJECT_BYTES)
        view = parse_view(value)
        if view.is_lazy:
            raise CheckpointError("has a tensor whose stored bytes are conjugated or negated; save it resolved")
        found = self._storages.get(view.key)
        if found is None:
            raise CheckpointError(
                f"has a tensor in the storage {view.key[:40]!r}, which the file does not have: damaged"
            )
        return view.placed(*found)


def _innermost(value: PickledObject) -> PickledObject:
    """The tensor inside what makes a parameter, or a tensor with attributes, of it; one of another class stays."""
    for _ in range(_MAX_WRAPPERS):
        match value.arguments:
            case (PickledObject() as inner, *_) if _name_of(value) in _WRAPPERS:
                value = inner
            case (Global() as function, Global() as kind, tuple(arguments), _) if (
                _name_of(value) == _FROM_TYPE and (kind.module, kind.name) in _TENSOR_CLASSES
            ):
                value = PickledObject(function, arguments)
            case _:
                break
    return value


def _name_of(value: PickledObject) -> tuple[str, str]:
    return value.made_by.module, value.made_by.name


def _shown(key: object) -> str:
    text = repr(key) if isinstance(key, str | int) else str(key)
    return text if len(text) <= 100 else f"{text[:100]}…"

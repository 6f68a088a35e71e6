"""`save_checkpoint`: arrays as a checkpoint file."""

import errno
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reshard.core.files.block_writing import FileKind, write_checkpoint
from reshard.core.files.map_parameters import build_map_parameter
from reshard.core.files.model import CheckpointFormat, Content, OutputEntry, text_entry
from reshard.core.files.numpy_values import Value, array_of, bytes_of, dtype_of, is_array_like, is_same
from reshard.core.mindspore_api.arguments import (
    DEFAULT_MODE,
    ChoiceFunction,
    check_async_save,
    check_format,
    check_key,
    check_safetensors_has_none,
    check_type,
    check_value,
    is_network,
    key_of,
)
from reshard.core.mindspore_api.failures import writing
from reshard.core.runtime.keys import Key
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import kind_of, lacks_directory
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT

ContentsByName = Callable[[str], memoryview]
"""Returns the bytes of a value."""

_KEYWORDS = ("incremental", "global_step_num", "remove_redundancy")
_EXCEPTION_MARK = "__exception_save__"
"""In `append_dict`, MindSpore reads this name as an instruction, and does not save it."""


def save_checkpoint(
    save_obj: Any,
    ckpt_file_name: str,
    integrated_save: bool = True,
    async_save: bool | str = False,
    append_dict: Mapping[str, Any] | None = None,
    enc_key: bytes | None = None,
    enc_mode: str = DEFAULT_MODE,
    choice_func: ChoiceFunction = None,
    crc_check: bool = False,
    format: str = "ckpt",
    **kwargs: Any,
) -> None:
    """Save arrays as a checkpoint file, which only its owner may read.

    Args:
        save_obj: a dict of arrays, texts and map parameters; a list of `{"name", "data"}` or of parameters with a
            `name`; or a network, which has `parameters_and_names()` or `parameters_dict()`.
        ckpt_file_name: the file; the extension of `format` is added if missing.
        integrated_save: ignored.
        async_save: False, True, "process" or "thread"; ignored.
        append_dict: further numbers, texts and arrays to save.
        enc_key: a key to encrypt the file with.
        enc_mode: its encryption: AES-GCM, AES-CBC or SM4-CBC.
        choice_func: whether to save a parameter, by its name; not called for `append_dict`.
        crc_check: add a CRC-32 to the file.
        format: `ckpt` or `safetensors`.
        kwargs: `remove_redundancy`, the mark in a .safetensors file that only some ranks' files hold the slices that
            ranks share. `incremental` and `global_step_num` are accepted for .ckpt files, and ignored.

    Raises:
        TypeError: `save_obj` or a value in it, `append_dict`, the file's name, `integrated_save` or `async_save` has
            a wrong type.
        ValueError: another argument has a wrong type, or is for the other format only; the file cannot hold a value.
        IsADirectoryError: the file is a directory.
        OSError: it cannot be written.
    """
    location = _checked_target(save_obj, ckpt_file_name, format)
    check_type("integrated_save", integrated_save, bool)
    check_async_save(async_save)
    appended = _checked_append_dict(append_dict)
    key = _checked_key(enc_key, enc_mode, crc_check, format, kwargs)
    values = _chosen_values(save_obj, choice_func) | appended
    if not values:
        raise ValueError(f"{location}: there is nothing to save")
    with writing():
        kind = FileKind(CheckpointFormat(format), crc_check, kwargs.get("remove_redundancy"), key)
        save_values(location, values, kind)


def values_to_save(
    save_obj: Any, append_dict: Mapping[str, Any] | None, omitted: Collection[str] = ()
) -> dict[str, Value]:
    """Return the values of a file by name, without the `omitted` parameters.

    Appended values replace parameters, such as a loaded `epoch_num`, as in MindSpore.
    """
    return _chosen_values(save_obj, lambda name: name not in omitted) | _checked_append_dict(append_dict)


def save_values(location: Location, values: Mapping[str, Value], kind: FileKind) -> None:
    """Write a checkpoint file of values, in their order."""
    entries, contents_of = described_values(location, values, kind)
    write_values(location, kind, entries, contents_of)


def described_values(
    location: Location, values: Mapping[str, Value], kind: FileKind
) -> tuple[list[OutputEntry], ContentsByName]:
    """Return the entries of a file of values, in their order, and a function that returns each one's contents."""
    if kind.format is CheckpointFormat.CKPT:
        values = _readable_in_ckpt(location, values)
    messages = {name: build_map_parameter(value) for name, value in values.items() if isinstance(value, list)}
    entries = [_entry(name, value, messages.get(name, b"")) for name, value in values.items()]

    def contents_of(name: str) -> memoryview:
        value = values[name]
        return bytes_of(value) if isinstance(value, np.ndarray) else memoryview(messages[name])

    return entries, contents_of


def write_values(
    location: Location, kind: FileKind, entries: Sequence[OutputEntry], contents_of: ContentsByName
) -> None:
    """Write a checkpoint file of described values."""

    def blocks(contents: Sequence[Content]) -> Iterator[memoryview]:
        for content in contents:
            yield contents_of(content.name)[content.start : content.stop]

    write_checkpoint(location, kind, entries, blocks)


def _checked_target(save_obj: object, name: object, format: str) -> Location:
    check_format("format", format)
    if not isinstance(save_obj, list) and not is_network(save_obj):
        raise TypeError(f"'save_obj' has to be a network, a list or a dict, not {type(save_obj)}")
    if not isinstance(name, str):
        raise TypeError(f"the file's name has to be a string, not {type(name)}")
    with writing():
        location = parse_url(name)
        if kind_of(location) == "directory":
            raise IsADirectoryError(errno.EISDIR, f"{location}: is a directory, name a file")
        if lacks_directory(location):
            raise FileNotFoundError(
                errno.ENOENT, f"{location.parent}: is not there, or is not a directory: make it first"
            )
    if name.endswith(f".{format}"):
        return location
    return Location(location.store, f"{location.path}.{format}")


def _checked_key(key: bytes | None, mode: str, crc_check: bool, format: str, others: Mapping[str, Any]) -> Key | None:
    """Check the key against the other options, and return it."""
    check_key("enc", key, mode)
    check_value("crc_check", crc_check, bool)
    unknown = [name for name in others if name not in _KEYWORDS]
    if unknown:
        raise TypeError(f"save_checkpoint() got an unexpected keyword argument {unknown[0]!r}")
    check_value("remove_redundancy", others.get("remove_redundancy"), (type(None), bool))
    ckpt_only = {name: value for name, value in others.items() if name != "remove_redundancy"}
    check_safetensors_has_none("save_checkpoint", format, key, mode, **ckpt_only)
    if key is not None and crc_check:
        raise ValueError("a file is either encrypted or carries a CRC: give 'enc_key' or 'crc_check', not both")
    return key_of("enc_key", key, mode)


def _checked_append_dict(append_dict: object) -> dict[str, Value]:
    if append_dict is None:
        return {}
    if not isinstance(append_dict, Mapping):
        raise TypeError(f"'append_dict' has to be a dict, not {type(append_dict)}")
    appended = {}
    for name, value in append_dict.items():
        if not isinstance(name, str):
            raise TypeError(f"'append_dict' has to have strings for keys, not {type(name)}")
        appended[name] = _appended_value(name, value)
    appended.pop(_EXCEPTION_MARK, None)
    return appended


def _appended_value(name: str, value: Any) -> Value:
    if isinstance(value, str):
        return str(value)
    if callable(getattr(value, "get_state", None)):
        value = value.get_state()
    if is_array_like(value):
        return _checked_array(name, value)
    # as MindSpore's tensors of Python's numbers
    if isinstance(value, bool):
        return np.array(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"'append_dict' has {value} as {name!r}: numbers are saved in 64 bits")
        return np.array(value, np.int64)
    if isinstance(value, float):
        return np.array(value, np.float32)
    raise TypeError(f"'append_dict' has numbers, texts and arrays for values, not {type(value)} as {name!r}")


def _chosen_values(save_obj: Any, choose: ChoiceFunction) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, given in _named(save_obj):
        if choose is not None and not choose(name):
            continue
        value = _checked_value(name, given)
        # the same one twice is fine, such as a network's parameters and its optimizer's
        if not is_same(values.setdefault(name, value), value):
            raise ValueError(f"two parameters that differ are named {name!r}: a file holds one of a name")
    return values


def _named(save_obj: Any) -> Iterable[tuple[str, Any]]:
    """(name, value) to save."""
    if isinstance(save_obj, list):
        return map(_named_item, save_obj)
    if isinstance(save_obj, Mapping):
        for name in save_obj:
            if not isinstance(name, str):
                raise TypeError(f"a dict that is saved has to have strings for keys, not {type(name)}")
        return save_obj.items()
    return _parameters(save_obj)


def _named_item(item: Any) -> tuple[str, Any]:
    if isinstance(item, Mapping):
        if not {"name", "data"} <= item.keys():
            raise TypeError(f"a list that is saved has dicts with 'name' and 'data', not with {sorted(map(str, item))}")
        name, data = item["name"], item["data"]
        if not is_array_like(data):
            raise TypeError(f"the 'data' of {name!r} has to be an array, not {type(data)}")
    else:
        name, data = getattr(item, "name", None), item
    if not isinstance(name, str):
        raise TypeError(f"a list that is saved has parameters with a name, or dicts with one, not {type(item)}")
    return name, data


def _parameters(network: Any) -> list[tuple[str, Any]]:
    """The parameters of an object that is used like a network."""
    if callable(getattr(network, "parameters_and_names", None)):
        pairs = network.parameters_and_names()
    elif callable(getattr(network, "parameters_dict", None)):
        pairs = network.parameters_dict().items()
    else:
        return list(network.state_dict().items())
    named = ((getattr(parameter, "name", None), name, parameter) for name, parameter in pairs)
    return [(own if isinstance(own, str) else name, parameter) for own, name, parameter in named]


def _checked_value(name: str, value: Any) -> Value:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list) and len(value) == 3 and all(map(is_array_like, value)):
        return [array_of(part) for part in value]
    return _checked_array(name, value)


def _checked_array(name: str, value: Any) -> np.ndarray:
    try:
        array = array_of(value)
        dtype_of(array)
    except TypeError as error:
        raise TypeError(f"parameter {name!r}: {error}") from None
    return array


def _readable_in_ckpt(location: Location, values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Leave out arrays of shape (0,): for dims [0] MindSpore reads a scalar of arbitrary value."""
    empty = {name for name, value in values.items() if isinstance(value, np.ndarray) and value.shape == (0,)}
    if not empty:
        return values
    warnings.warn(f"{location}: left out, since they have no elements: {listed(sorted(empty))}", stacklevel=5)
    return {name: value for name, value in values.items() if name not in empty}


def _entry(name: str, value: Value, message: bytes) -> OutputEntry:
    if isinstance(value, str):
        return OutputEntry(name, TEXT, text_entry(name, value).shape, value)
    if isinstance(value, list):
        return OutputEntry(name, MAP_TENSOR, (len(message),), piece_bytes=(len(message),))
    return OutputEntry(name, dtype_of(value), value.shape)

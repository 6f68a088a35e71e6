"""`load_checkpoint` and `load_segmented_checkpoints`: checkpoint files as dicts of arrays."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

import numpy as np

from reshard.core.errors import CheckpointError
from reshard.core.files.any_format import check_crc as check_file_crc
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.cipher_blocks import MAGICS
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.map_parameters import parse_map_parameter
from reshard.core.files.memory_file import MemoryFile
from reshard.core.files.model import CheckpointFormat, TensorEntry
from reshard.core.files.numpy_values import Value, is_same, numpy_dtype
from reshard.core.files.remote_reads import read_ahead
from reshard.core.layouts.foreign import check_not_foreign
from reshard.core.mindspore_api.arguments import (
    DEFAULT_MODE,
    TAKES_NO_KEY,
    ChoiceFunction,
    Prefixes,
    check_format,
    check_key,
    check_safetensors_has_none,
    check_value,
    checked_prefixes,
    chooser,
    key_of,
)
from reshard.core.mindspore_api.failures import reading
from reshard.core.mindspore_api.networks import Network, fill_network
from reshard.core.runtime.keys import Key
from reshard.core.storage.listing import kind_of, list_folder
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.dtypes import MAP_TENSOR

_MAGIC_BYTES = 4


def load_checkpoint(
    ckpt_file_name: str | BytesIO,
    net: Network | None = None,
    strict_load: bool = False,
    filter_prefix: Prefixes = None,
    dec_key: bytes | None = None,
    dec_mode: str = DEFAULT_MODE,
    specify_prefix: Prefixes = None,
    choice_func: ChoiceFunction = None,
    crc_check: bool = False,
    remove_redundancy: bool = False,
    format: str = "ckpt",
) -> dict[str, Value]:
    """Return the parameters of a checkpoint file, in the file's order; those of a .safetensors file by name.

    Args:
        ckpt_file_name: a file whose name ends in `format`; or a .safetensors file's bytes in memory.
        net: arrays by name, filled with the loaded values; see `load_param_into_net`.
        strict_load: match full names only, and refuse values of another dtype than their array.
        filter_prefix: prefix, or prefixes, of the parameters to leave out.
        dec_key: the key of an encrypted file.
        dec_mode: its encryption: AES-GCM, AES-CBC or SM4-CBC.
        specify_prefix: prefix, or prefixes, of the parameters to take.
        choice_func: whether to take a parameter, by its name; ignored beside prefixes.
        crc_check: check the file's CRC.
        remove_redundancy: the file may lack slices that other ranks have saved.
        format: `ckpt` or `safetensors`.

    Raises:
        TypeError: the file's name is not a string, or in memory though a .ckpt; prefixes are not strings.
        ValueError: the file is not there, of another format, damaged, encrypted with another key or not at all; or no
            parameter is left; or an argument is of a wrong type, or goes with the other format only.
        RuntimeError: a value does not fit its array of `net`.
    """
    choose = chooser(checked_prefixes(specify_prefix), checked_prefixes(filter_prefix), choice_func)
    check_key("dec", dec_key, dec_mode)
    check_value("crc_check", crc_check, bool)
    check_value("remove_redundancy", remove_redundancy, bool)
    check_safetensors_has_none("load_checkpoint", format, dec_key, dec_mode)
    _check_file_name(ckpt_file_name, format)
    key = key_of("dec_key", dec_key, dec_mode)
    with reading(), _opened(ckpt_file_name, key) as file:
        loaded = _read_chosen(file, choose, crc_check, remove_redundancy)
    if not loaded:
        raise ValueError(f"{file.location}: no parameter is left of it by the prefixes or by choice_func")
    if net is not None:
        _fill(net, loaded, strict_load)
    return loaded


def load_segmented_checkpoints(
    ckpt_file_dir: str,
    net: Network | None = None,
    strict_load: bool = False,
    filter_prefix: Prefixes = None,
    dec_key: bytes | None = None,
    dec_mode: str = DEFAULT_MODE,
    specify_prefix: Prefixes = None,
    choice_func: ChoiceFunction = None,
) -> dict[str, Value]:
    """Return the parameters of all .ckpt files of a directory as of one; the arguments are `load_checkpoint`'s.

    Raises:
        TypeError: the directory's name is not a string; prefixes are not strings.
        ValueError: it is not a directory, or has no such files; one cannot be read; two hold a parameter with different
            values; no parameter is left.
        RuntimeError: a value does not fit its array of `net`.
    """
    if not isinstance(ckpt_file_dir, str):
        raise TypeError(f"the directory's name has to be a string, not {type(ckpt_file_dir).__name__}")
    choose = chooser(checked_prefixes(specify_prefix), checked_prefixes(filter_prefix), choice_func)
    check_key("dec", dec_key, dec_mode)
    key = key_of("dec_key", dec_key, dec_mode)
    loaded: dict[str, Value] = {}
    first_file: dict[str, str] = {}
    with reading():
        for url in _ckpt_files(ckpt_file_dir):
            with _opened(url, key) as file:
                found = _read_chosen(file, choose, crc_check=False, remove_redundancy=False)
            for name, value in found.items():
                if not is_same(loaded.setdefault(name, value), value):
                    raise CheckpointError(
                        f"parameter {name!r} has different values in {first_file[name]} and {url}: which one is right? "
                        "Keep one of the files, or choose by choice_func"
                    )
                first_file.setdefault(name, url)
    if not loaded:
        raise ValueError(f"{ckpt_file_dir}: no parameter is left of its files by the prefixes or by choice_func")
    if net is not None:
        _fill(net, loaded, strict_load)
    return loaded


def _check_file_name(file: object, format: str) -> None:
    check_format("format", format)
    if isinstance(file, BytesIO):
        if format == "ckpt":
            raise TypeError("a .ckpt file cannot be given in memory, only a .safetensors one: give the file's name")
        return
    if not isinstance(file, str):
        raise TypeError(f"the file's name has to be a string, not {type(file).__name__}")
    if not file.endswith(format):
        raise ValueError(f"{file}: its name does not end in {format!r}, the 'format' that was given")


@contextmanager
def _opened(name: str | BytesIO, key: Key | None) -> Iterator[SourceFile]:
    if isinstance(name, BytesIO):
        yield MemoryFile(name.getvalue(), "BytesIO.safetensors")
        return
    file = open_readable(parse_url(name), key)
    try:
        yield file
    finally:
        file.close()


def open_readable(location: Location, key: Key | None, *, takes_key: bool = True) -> SourceFile:
    """Open a checkpoint file; in an encrypted one, all tags are checked. `takes_key`: the caller accepts a key."""
    file = open_checkpoint(location, key)
    try:
        if isinstance(file, DecryptedSource):
            file.check_tags()
        else:
            check_plain(file, takes_key=takes_key)
    except BaseException:
        file.close()
        raise
    return file


def check_plain(file: SourceFile, *, takes_key: bool) -> None:
    """Raise CheckpointError if a file is encrypted; `takes_key` as in `open_readable`."""
    start = read_bytes(file, 0, min(file.size_bytes, _MAGIC_BYTES))
    mode = next((mode for mode, magic in MAGICS.items() if magic == start), None)
    if mode is not None:
        advice = (
            f"is encrypted: give its key as 'dec_key', and 'dec_mode', {mode} perhaps" if takes_key else TAKES_NO_KEY
        )
        raise CheckpointError(f"{file.location}: {advice}")


def _read_chosen(
    file: SourceFile, choose: Callable[[str], bool], crc_check: bool, remove_redundancy: bool
) -> dict[str, Value]:
    index = read_index(file)
    if index.redundancy_removed and not remove_redundancy:
        _warn(f"{file.location}: was saved with remove_redundancy=True: slices may be missing that other ranks saved")
    if crc_check:
        if not index.has_crc:
            _warn(f"{file.location}: carries no CRC that crc_check could check")
        check_file_crc(file, index)
    try:
        entries = [entry for name, entry in index.entries.items() if choose(name)]
    except Exception as error:
        # MindSpore passes exceptions of choice_func through for .safetensors only
        if index.format is CheckpointFormat.SAFETENSORS:
            raise
        raise ValueError(f"{file.location}: choice_func: {error}") from error
    if index.format is CheckpointFormat.SAFETENSORS:
        entries.sort(key=lambda entry: entry.name)
    return _read_values(file, entries)


def _fill(network: Network, loaded: dict[str, Value], strict: bool) -> None:
    filling = fill_network(network, loaded, strict)
    filling.warn_of_suffixes(stacklevel=3)
    if filling.not_filled:
        missing = ", ".join(filling.not_filled)
        warnings.warn(f"not in the checkpoint, and left as they were: {missing}", stacklevel=3)


def _warn(message: str) -> None:
    # at the call of load_checkpoint, three levels up
    warnings.warn(message, stacklevel=4)


def _ckpt_files(directory: str) -> list[str]:
    location = parse_url(directory)
    if kind_of(location) != "directory":
        raise CheckpointError(f"{directory}: is not there, or is not a directory")
    entries = list_folder(location)
    names = sorted(entry.name for entry in entries if entry.kind != "directory")
    found = [str(location.child(name)) for name in names if name.endswith(".ckpt") and not name.startswith(".")]
    if not found:
        check_not_foreign(location, [entry.name for entry in entries])
        raise CheckpointError(f"{directory}: holds no .ckpt files")
    return found


def _read_values(file: SourceFile, entries: Sequence[TensorEntry]) -> dict[str, Value]:
    """Read the values of a file's entries, in their order, without copying them."""
    for entry in entries:
        if entry.dtype.is_foreign:
            raise CheckpointError(
                f"{file.location}: parameter {entry.name!r}: {entry.dtype} cannot be read as an array"
            )
    buffers = [np.empty(sum(extent.length for extent in entry.extents), np.uint8) for entry in entries]
    _read_into(file, entries, buffers)
    return {entry.name: _value(entry, buffer) for entry, buffer in zip(entries, buffers, strict=True)}


def _read_into(file: SourceFile, entries: Sequence[TensorEntry], buffers: Sequence[np.ndarray]) -> None:
    places = [
        (extent, place)
        for entry, buffer in zip(entries, buffers, strict=True)
        for extent, place in zip(entry.extents, _places(entry, buffer), strict=True)
    ]
    if file.location.store.is_near:
        for extent, place in places:
            file.read_into(extent.offset, place)
        return
    filled = [0] * len(places)
    for number, piece in read_ahead(file, [(extent.offset, extent.length) for extent, _ in places]):
        start = filled[number]
        filled[number] += len(piece)
        places[number][1][start : start + len(piece)] = piece


def _places(entry: TensorEntry, buffer: np.ndarray) -> Iterator[memoryview]:
    start = 0
    for extent in entry.extents:
        yield buffer.data[start : start + extent.length]
        start += extent.length


def _value(entry: TensorEntry, buffer: np.ndarray) -> Value:
    if entry.text is not None:
        return entry.text
    if entry.dtype is MAP_TENSOR:
        return parse_map_parameter([bytes(place) for place in _places(entry, buffer)], entry.name)
    return buffer.view(numpy_dtype(entry.dtype)).reshape(entry.shape)

"""Companions of a Hugging Face directory's weights: its configuration and tokenizer, copied from another directory.

All are copied as they are but `config.json`, which says of which dtype the weights are, `torch_dtype`, or `dtype` as
transformers 5 writes it; and how the written weights are quantized, whatever the reference's are.
"""

import json
from collections.abc import Mapping
from typing import Any

import xxhash
from msgspec import field
from msgspec.structs import replace

from reshard.core.changes.model_config import CONFIG_NAME, parse_config
from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.layouts.unified.names import COMPANION_NAMES, MAX_COMPANION_BYTES
from reshard.core.plan.planned_layout import CompanionFile
from reshard.core.runtime.records import Record
from reshard.core.storage.links import check_links
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.options import option

_QUANTIZATION = "quantization_config"
NOT_QUANTIZED: Mapping[str, Any] = {}


class Companions(Record):
    """The companions of a target.

    Attributes:
        url: the directory that they are copied from.
        dtype: the weights' dtype, in the words of `config.json`.
        files: the companions that are there.
        quantization: `quantization_config` of `config.json`; empty if weights are not quantized.
    """

    url: str
    dtype: str
    files: tuple[CompanionFile, ...]
    quantization: Mapping[str, Any] = field(default_factory=dict)


def companions_of(
    url: str, names: tuple[str, ...], dtype: str, quantization: Mapping[str, Any] = NOT_QUANTIZED
) -> Companions:
    """Return the companions of a directory with these `names`, for weights of `dtype`, perhaps quantized.

    Raises:
        InputError: one cannot be read or is a link that leads out of the directory, or `config.json` is not a JSON
            object.
        StorageError: a transient failure.
    """
    wanted = [name for name in COMPANION_NAMES if name in names]
    companions = Companions(url, dtype, (), quantization)
    return replace(companions, files=tuple(_file(name, _content(companions, name)) for name in wanted))


def companions_from_json(data: Mapping[str, Any]) -> Companions:
    """Return the companions in the JSON document of a plan.

    Raises:
        ValueError: a file in it is none that is copied beside weights.
    """
    files = tuple(CompanionFile(**file) for file in data["files"])
    unknown = [file.name for file in files if file.name not in COMPANION_NAMES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a file that is copied beside weights")
    # plans of earlier versions quantize nothing
    return Companions(data["url"], data["dtype"], files, data.get("quantization", {}))


def companion_content(companions: Companions, file: CompanionFile) -> bytes:
    """Return the bytes of a companion to write.

    Raises:
        InputError: the reference's file has changed since the conversion was planned, or cannot be read.
        StorageError: a transient failure.
    """
    data = _content(companions, file.name)
    if _file(file.name, data) != file:
        location = parse_url(companions.url).child(file.name)
        raise InputError(
            f"{location}: has changed since the conversion was planned; start again, with {option('overwrite', True)}"
        )
    return data


def with_dtype(data: bytes, dtype: str, location: Location, quantization: Mapping[str, Any] = NOT_QUANTIZED) -> bytes:
    """Return a `config.json` for weights of `dtype`, perhaps quantized; the same bytes if it says so already.

    Raises:
        InputError: it is not a JSON object.
    """
    config = parse_config(data, location)
    keys = [key for key in ("torch_dtype", "dtype") if key in config] or ["torch_dtype"]
    changed: Mapping[str, Any] = {name: value for name, value in config.items() if name != _QUANTIZATION}
    changed = {**changed, **dict.fromkeys(keys, dtype)}
    if quantization:
        changed = {**changed, _QUANTIZATION: quantization}
    if changed == config:
        return data
    return (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()


def _content(companions: Companions, name: str) -> bytes:
    location = parse_url(companions.url).child(name)
    data = _read(location)
    if name != CONFIG_NAME:
        return data
    return with_dtype(data, companions.dtype, location, companions.quantization)


def _file(name: str, data: bytes) -> CompanionFile:
    return CompanionFile(name, len(data), xxhash.xxh3_128_hexdigest(data))


def _read(location: Location) -> bytes:
    check_links(location.parent, [location])
    try:
        return read_small_file(location, MAX_COMPANION_BYTES)
    except StorageError as error:
        if is_transient(error):
            raise
        raise InputError(error.marked) from error

"""The index of several files of whole tensors: which of them each tensor is in.

Hugging Face's `*.safetensors.index.json` and `*.bin.index.json`, and MindSpore's `param_name_map.json`, are the same
JSON: `{"metadata": {"total_size": bytes}, "weight_map": {name: file}}`; MindSpore's may be the bare map.
"""

import json
from collections.abc import Mapping

from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.runtime.metadata import load_json
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

MAX_INDEX_BYTES = 64 << 20
OTHERS_NAME = "hyper_param.safetensors"
"""MindSpore's file of parameters that no strategy covers, which its map does not list."""


def dump_sorted_weight_map(weights: Mapping[str, str], total_bytes: int, element_count: int) -> bytes:
    """Return the bytes of an index file as transformers 5 writes it: sorted, with the number of all elements."""
    metadata = {"total_parameters": element_count, "total_size": total_bytes}
    return (json.dumps({"metadata": metadata, "weight_map": weights}, indent=2, sort_keys=True) + "\n").encode()


def dump_weight_map(weights: Mapping[str, str], total_bytes: int) -> bytes:
    """Return the bytes of an index file."""
    document = {"metadata": {"total_size": total_bytes}, "weight_map": weights}
    return json.dumps(document, indent=4).encode()


class WeightMap(Record):
    """What an index says.

    Attributes:
        files: the file of each tensor.
        total_bytes: `total_size` of its metadata; None if it has none that is a number.
    """

    files: Mapping[str, str]
    total_bytes: int | None


def read_weight_map(location: Location) -> dict[str, str]:
    """Read the file of each tensor from an index; the errors are those of `read_index`."""
    return dict(read_index(location).files)


def read_index(location: Location) -> WeightMap:
    """Read an index.

    Raises:
        CatalogError: the file is not an index.
        CheckpointError: the file is far too large for one.
        LimitError: parsing would exceed the memory limit.
        StorageError: the file cannot be read.
    """
    try:
        document = load_json(read_small_file(location, MAX_INDEX_BYTES), location)
        found = document.get("weight_map", document)
    except (AttributeError, RecursionError, ValueError) as error:
        raise CatalogError(f"{location}: is not a map of parameters to files: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(path, str) for path in found.values()):
        raise CatalogError(f"{location}: is not a map of parameters to files")
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return WeightMap(found, total if type(total) is int else None)


def check_file_names(
    weights: Mapping[str, str], location: Location, suffix: str = f".{CheckpointFormat.SAFETENSORS}"
) -> None:
    """Raise a CatalogError unless an index names only files with a suffix beside it."""
    for name, file in weights.items():
        if "/" in file or "\\" in file or "\0" in file or not file.endswith(suffix):
            raise CatalogError(
                f"{location}: places parameter {name!r} in {file!r}, which is not the name of a {suffix} file beside it"
            )

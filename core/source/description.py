"""Descriptions of checkpoint files, checkpoints and strategies: documents for JSON, each with its `kind`."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager

from reshard.core.checkpoint.manifest import Manifest, unseal_manifest
from reshard.core.errors import InputError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.file_names import parse_name
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.files.scalars import json_value, read_scalars
from reshard.core.layouts.any_layout import is_document, read_any_strategy
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.foreign import check_not_foreign, find_foreign
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.source_layout import CatalogOptions, Document
from reshard.core.layouts.survey import find_self_described, survey
from reshard.core.layouts.whole_tensors import describe_whole_tensors
from reshard.core.runtime.keys import Key, source_key
from reshard.core.source.adapter import CONFIG_NAME, WEIGHTS_NAME
from reshard.core.source.adapter_facts import adapter_text
from reshard.core.storage.input_errors import storage_errors_as_input
from reshard.core.storage.listing import exists, list_folder, stat
from reshard.core.storage.patterns import RANK_FIELD
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.file_kinds import START_BYTES, guess_other_kind
from reshard.core.tensor.layout import ParameterLayout

_RANK_FOLDER = re.compile(r"rank_[0-9]+")

_STRATEGY_START = b"\x08"
"""A strategy begins with its stage, field 1, a number; field 1 of a checkpoint is a message."""


def describe(url: str, root: str = "") -> Document:
    """Return the description of the file or the directory at a URL; with a `root`, of the tensors below it.

    Raises:
        InputError: nothing is there, or nothing that reshard knows.
        StorageError: a transient failure to read it.
    """
    if root:
        return _describe_below(url, root)
    location = parse_url(url)
    if RANK_FIELD in location.path:
        return survey(url).describe()
    with storage_errors_as_input(location):
        kind = stat(location, "read it").kind
    if kind not in ("file", "directory"):
        # opening a pipe would wait for a writer
        raise InputError(f"{location}: is neither a file nor a directory")
    if kind == "file":
        return _describe_single(location)
    manifest = read_manifest(location)
    if manifest is not None:
        return _describe_converted(location, manifest)
    found = find_self_described(url)
    if found is not None:
        return found.describe()
    if _holds_strategies(location):
        return _describe_strategy(url)
    return _with_adapter(survey(url).describe(), location)


def _with_adapter(described: Document, directory: Location) -> Document:
    """Add the facts about an adapter that PEFT wrote; return other descriptions unchanged."""
    weights = directory.child(WEIGHTS_NAME)
    with storage_errors_as_input():
        if not (exists(directory.child(CONFIG_NAME)) and exists(weights)):
            return described
    with _opened(weights) as file:
        text = adapter_text({name: entry.shape for name, entry in read_index(file).entries.items()}, [directory])
    if not text:
        return described
    others = [name for name in described.get("ignored", ()) if name != CONFIG_NAME]  # which was read
    return described | {"adapter": text, "ignored": others}


def _describe_below(url: str, root: str) -> Document:
    """Describe the tensors below a root of a file that holds more."""
    found = survey(url)
    catalog = catalog_of(found, CatalogOptions(check_crc=False, root=root))
    return describe_whole_tensors(found.title, catalog, None, found.ignored)


def _describe_single(location: Location) -> Document:
    """Describe a file: an index or metadata, in place of its checkpoint, a strategy, or a file of a checkpoint."""
    if is_document(location.name):
        return survey(str(location)).describe()
    if not _is_strategy(location):
        return _describe_file(location)
    _check_may_be_strategy(location)
    return _describe_strategy(str(location))


def _is_strategy(location: Location) -> bool:
    """True if a file is a strategy rather than a checkpoint; both may be named .ckpt."""
    extension = location.name.rpartition(".")[2]
    if extension != CheckpointFormat.CKPT:
        return extension != CheckpointFormat.SAFETENSORS
    with _opened(location) as file:
        return file.size_bytes > 0 and read_bytes(file, 0, 1) == _STRATEGY_START


def _check_may_be_strategy(location: Location) -> None:
    """Refuse a file whose name and beginning are those of no strategy."""
    if location.name.endswith((".ckpt", ".json")):
        return
    check_not_foreign(location, [location.name])
    with _opened(location) as file:
        start = read_bytes(file, 0, min(file.size_bytes, START_BYTES))
    # reading it as a strategy finds all other faults
    if start and not start.lstrip().startswith((_STRATEGY_START, b"{")) and guess_other_kind(start) is None:
        extensions = " or ".join(f".{each}" for each in SELF_CONTAINED)
        raise InputError(f"{location}: is neither a strategy nor a checkpoint file, whose name ends in {extensions}")


def _holds_strategies(directory: Location) -> bool:
    """True if a directory holds strategy files rather than a checkpoint; the first file named .ckpt decides."""
    with storage_errors_as_input():
        entries = list_folder(directory)
    # a listing does not follow links
    names = {entry.name: "link" if entry.is_link else entry.kind for entry in entries}
    if any(kind != "file" and _RANK_FOLDER.fullmatch(name) for name, kind in names.items()):
        return False
    files = sorted(name for name, kind in names.items() if kind in ("file", "link") and not name.startswith("."))
    of_checkpoints = [name for name in files if parse_name(name)]
    if not of_checkpoints and (find_foreign(names) is not None or any(map(is_document, files))):
        return False
    return _is_strategy(directory.child(of_checkpoints[0])) if of_checkpoints else bool(files)


@contextmanager
def _opened(location: Location, key: Key | None = None) -> Iterator[SourceFile]:
    with storage_errors_as_input(), closing(open_checkpoint(location, key)) as file:
        yield file


def _describe_file(location: Location) -> Document:
    with _opened(location, source_key()) as file:
        index = read_index(file)
        information = read_scalars(file, index)
        encryption = str(file.mode) if isinstance(file, DecryptedSource) else ""
    return {
        "kind": "checkpoint file",
        "url": str(location),
        "format": str(index.format),
        "size_bytes": index.size_bytes,
        "encryption": encryption,
        "has_crc": index.has_crc,
        "redundancy_removed": index.redundancy_removed,
        "parameters": [
            {
                "name": entry.name,
                "dtype": entry.dtype.name,
                "shape": list(entry.shape),
                "size_bytes": entry.size_bytes,
                **({} if entry.text is None else {"text": entry.text}),
            }
            for entry in index.entries.values()
        ],
        "information": {name: json_value(value) for name, value in information.items()},
    }


def _describe_converted(location: Location, manifest: Manifest) -> Document:
    if source_key() is not None:
        manifest = unseal_manifest(manifest, source_key(), str(location))
    return {"kind": "converted checkpoint", "url": str(location), "manifest": manifest.model_dump(mode="json")}


def _describe_strategy(url: str) -> Document:
    strategy = read_any_strategy(url)
    return {
        "kind": "strategy",
        "url": strategy.origin,
        "merged": strategy.merged,
        "world_size": len(strategy.ranks),
        "stages": [
            {
                "stage": stage.stage,
                "devices": strategy.devices_per_stage,
                "ranks": list(strategy.stage_ranks(stage)),
                "parameters": [{"name": name, **_describe_layout(layout)} for name, layout in stage.layouts.items()],
            }
            for stage in strategy.stages
        ],
    }


def _describe_layout(layout: ParameterLayout) -> Document:
    """Describe a layout in the terms of strategy files: device axes from the right, -1 for an axis that is not cut."""
    return {
        "device_matrix": list(layout.device_matrix),
        "tensor_map": [_axis_map(axes) for axes in layout.tensor_map],
        "optimizer_shard_size": layout.optimizer_shard_size,
        "optimizer_shard_step": layout.optimizer_shard_step,
        "uneven_lengths": list(layout.param_split_shape),
        "tensor_shape": None if layout.tensor_shape is None else list(layout.tensor_shape),
    }


def _axis_map(axes: tuple[int, ...]) -> int | list[int]:
    if len(axes) > 1:
        return list(axes)
    return axes[0] if axes else -1

"""common.json of MindFormers' Checkpoint 2.0: the state of the training when it was saved.

    {"epoch_num": 1, "step_num": 40, "global_step": 40, "loss_scale": null, "global_batch_size": 16, "ckpt_status": 0}

Values are numbers or null, and keys may be absent. MindFormers 2.0.0 refuses other keys; 2.1.0 adds consumed_samples.
"""

import json
import math
from collections.abc import Mapping

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.layouts.checkpoint2.names import COMMON_KEYS, COMMON_NAME, MAX_COMMON_BYTES, parse_tensor_file
from reshard.core.layouts.state_numbers import Number
from reshard.core.runtime.metadata import parse_json
from reshard.core.runtime.records import Record
from reshard.core.storage.joined import parts_of
from reshard.core.storage.listing import exists
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url

NEWER_KEYS = ("consumed_samples",)


class Common(Record):
    """The values of common.json; keys that MindFormers does not know are left out."""

    values: Mapping[str, Number]


def parse_common(data: bytes, origin: str) -> Common:
    """Parse common.json; `origin` names it in messages.

    Raises:
        CatalogError: it is not an object, or a known key has a value that is neither a number nor null.
    """
    document = parse_json(data, origin, CatalogError)
    if not isinstance(document, dict):
        raise CatalogError(f"{origin}: is not a JSON object")
    values: dict[str, Number] = {}
    for key in (*COMMON_KEYS, *NEWER_KEYS):
        if key not in document:
            continue
        value = document[key]
        if value is not None and not _is_number(value):
            raise CatalogError(f"{origin}: {key} is {str(value)[:40]!r}, neither a number nor null")
        values[key] = value
    return Common(values)


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def build_common(common: Common) -> bytes:
    """Return the bytes of common.json."""
    return json.dumps(dict(common.values)).encode()


def read_common(directory: Location) -> Common:
    """Read common.json of an iteration's directory.

    Raises:
        CatalogError: it is damaged, or far too large.
        StorageError: it cannot be read.
    """
    location = directory.child(COMMON_NAME)
    try:
        return parse_common(read_small_file(location, MAX_COMMON_BYTES), str(location))
    except CheckpointError as error:
        raise CatalogError(error.marked) from error


def common_beside(catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
    """Return the values of common.json beside the files of a Checkpoint 2.0; None for others, and without one.

    Raises:
        CatalogError: it is damaged, or far too large.
        StorageError: it cannot be read.
    """
    location = parse_url(next(iter(catalog.records.values())).location)
    files = parts_of(location) or (location,)
    if not all(parse_tensor_file(file.name) for file in files) or not exists(location.parent.child(COMMON_NAME)):
        return None
    return read_common(location.parent).values

"""The index of a unified target: made from the plan, written with the manifest, and checked like the files."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import xxhash

from reshard.core.checkpoint.formats.weight_maps import (
    MAX_INDEX_BYTES,
    dump_sorted_weight_map,
    dump_weight_map,
    read_weight_map,
)
from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.errors import CatalogError, CheckpointError, StorageError, is_transient
from reshard.core.plan.appended import AppendedParameter
from reshard.core.plan.model import ReshardedParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import printable
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.unified_names import INDEX_NAME, OTHERS_NAME, index_name
from reshard.core.storage.urls import Location
from reshard.core.tensor.dtypes import TEXT


@dataclass(frozen=True)
class IndexFile:
    """The index's file name, relative to the target, and its content."""

    name: str
    data: bytes

    @property
    def summary(self) -> IndexSummary:
        """The index's entry in the manifest."""
        return IndexSummary(file=self.name, size_bytes=len(self.data), digest=xxhash.xxh3_128_hexdigest(self.data))


def index_of(plan: ConversionPlan) -> IndexFile | None:
    """Return the index of a plan's target; None if it has none.

    It lists tensors only: texts are in the files' metadata, where no loader looks for them.
    """
    files = plan.match.files
    name = index_name(plan.inputs.unified.naming, len(files)) if plan.inputs.unified else ""
    if not name:
        return None
    weights: dict[str, str] = {}
    total_bytes = element_count = 0
    # without the ranks' plans, which would compute the boxes of all parameters
    resharded = ((each, files[number]) for each in plan.match.resharded for number in each.target_layouts)
    appended = ((each, files[-1]) for each in plan.match.appended)
    for each, file in chain[tuple[ReshardedParameter | AppendedParameter, str]](resharded, appended):
        if each.dtype is not TEXT and file != OTHERS_NAME:  # MindSpore finds that file by itself
            weights[each.name] = file
            element_count += math.prod(each.shape)
            total_bytes += math.prod(each.shape) * each.dtype.itemsize
    if name == INDEX_NAME:
        return IndexFile(name, dump_sorted_weight_map(weights, total_bytes, element_count))
    return IndexFile(name, dump_weight_map(weights, total_bytes))


def index_problem(directory: Location, index: IndexSummary) -> str | None:
    """Return the problem with the index in a directory, as a sentence; None if there is none."""
    location = directory.child(index.file)
    try:
        data = read_small_file(location, min(max(index.size_bytes, 1), MAX_INDEX_BYTES))
    except CheckpointError:
        return f"{location}: is larger than what was written, which has {index.size_bytes} bytes"
    except StorageError as error:
        if is_transient(error):
            raise
        return str(error)
    if len(data) != index.size_bytes or xxhash.xxh3_128_hexdigest(data) != index.digest:
        return f"{location}: is not the index that was written"
    return None


def places_problem(directory: Location, index: IndexSummary, records: Iterable[ShardRecord]) -> str | None:
    """Return the first wrong entry of the index in a directory, as a sentence; None if there is none.

    The index is compared with the `records` of all files, and not with the plan, which may be wrong as well.
    """
    location = directory.child(index.file)
    try:
        weights = read_weight_map(location)
    except CatalogError as error:
        return str(error)
    for record in records:
        for parameter in () if record.file == OTHERS_NAME else record.parameters:
            said = weights.pop(parameter.name, None) if parameter.dtype != TEXT.name else record.file
            if said != record.file:
                entry = f"is in {said}" if said else "is nowhere"
                return f"{location}: says that parameter {parameter.name!r} {entry}, it is in {printable(record.file)}"
    return f"{location}: names {next(iter(weights))!r}, which is in no file" if weights else None

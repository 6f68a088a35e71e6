"""The index of a unified target: built from its plan, and compared with the records of its files."""

import math
from collections.abc import Iterable
from itertools import chain

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.layouts.unified.names import INDEX_NAME
from reshard.core.layouts.weight_maps import OTHERS_NAME, dump_sorted_weight_map, dump_weight_map, read_weight_map
from reshard.core.plan.appended import AppendedParameter
from reshard.core.plan.model import ReshardedParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import Location
from reshard.core.tensor.dtypes import TEXT
from reshard.core.text.printing import printable


def build_index(plan: ConversionPlan, name: str) -> bytes:
    """Return the bytes of the index of this name.

    It lists tensors only: texts are in the files' metadata, where no loader looks for them.
    """
    files = plan.match.files.names
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
        return dump_sorted_weight_map(weights, total_bytes, element_count)
    return dump_weight_map(weights, total_bytes)


def index_problem(location: Location, records: Iterable[ShardRecord]) -> str | None:
    """Return the first difference between an index and the records of all files, as a sentence; None without one.

    Raises:
        CatalogError: the index cannot be parsed.
        StorageError: it cannot be read.
    """
    weights = read_weight_map(location)
    for record in records:
        for parameter in () if record.file == OTHERS_NAME else record.parameters:
            said = weights.pop(parameter.name, None) if parameter.dtype != TEXT.name else record.file
            if said != record.file:
                entry = f"is in {said}" if said else "is nowhere"
                return f"{location}: says that parameter {parameter.name!r} {entry}, it is in {printable(record.file)}"
    return f"{location}: names {next(iter(weights))!r}, which is in no file" if weights else None

"""Unified targets: whole tensors, each in one of a few files that are about equally large.

Such a target is one of as many "stages" as it has files, each of one device, and every parameter is in one of them. So
it is planned, written, verified and resumed as any other; its "ranks" are its files.

What no strategy knows stands in it once, so all source ranks have to hold the same of it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.errors import PlanError, raise_problems
from reshard.core.plan.model import (
    ParameterMatch,
    PassedThroughParameter,
    ReshardedParameter,
    SourceTensor,
    UnifiedLayout,
)
from reshard.core.plan.ownership import SourceCopy
from reshard.core.plan.stage_shards import names_in_order
from reshard.core.runtime.wording import rank_names
from reshard.core.storage.unified_names import UnifiedNaming, file_names
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout
from reshard.core.tensor.segments import whole_piece


def unified_match(
    catalog: CheckpointCatalog, match: ParameterMatch, layout: UnifiedLayout, *, has_strategy: bool
) -> ParameterMatch:
    """What becomes of every parameter if the target is unified: what was carried is moved, and all have their file.

    `match` is that of a target without a strategy. `has_strategy`: the source has one, so that what it does not know
    is outside of the model, as MindSpore sees it.

    Raises:
        PlanError: nothing is left, or what no strategy knows differs between source ranks; or such files cannot hold a
            parameter.
    """
    problems: list[str] = []
    moved = [*match.resharded, *(_moved_once(catalog, carried, problems) for carried in match.passed_through)]
    problems += [
        f"parameter {each.name!r} is a {each.dtype}, which .safetensors files cannot hold: leave it out, --exclude"
        for each in moved
        if each.dtype is MAP_TENSOR
    ]
    raise_problems(PlanError, f"{catalog.url}: cannot be unified", problems)
    if not moved:
        raise PlanError(f"{catalog.url}: cannot be unified: no parameter is left of it")
    place = {name: number for number, name in enumerate(names_in_order(catalog))}
    moved.sort(key=lambda each: min(place[source.name] for source in each.sources))
    outside = tuple(carried.name for carried in match.passed_through) if has_strategy else ()
    apart = frozenset(outside) if layout.naming == UnifiedNaming.MINDSPORE else frozenset[str]()
    sizes = [_size_bytes(each) for each in moved if each.name not in apart]
    parts = split_in_order(sizes, layout.max_shard_bytes)
    has_others = bool(apart or (match.appended and layout.naming == UnifiedNaming.MINDSPORE))
    numbers = iter([number for number, count in enumerate(parts) for _ in range(count)])
    return replace(
        match,
        resharded=tuple(_in_file(each, len(parts) if each.name in apart else next(numbers)) for each in moved),
        passed_through=(),
        outside=outside,
        files=file_names(layout.naming, len(parts), has_others=has_others),
    )


def split_in_order(sizes: Sequence[int], limit: int) -> list[int]:
    """How many of a row of sizes go into each of as few groups as there can be; the row is cut, and not reordered.

    No group is larger than `limit`, but for one of a single size; the groups are as even as that allows.
    """
    if not sizes:
        return []
    fewest = len(_filled(sizes, limit))
    # the smallest limit that does not take more groups; what is larger than the limit stands alone in any case
    low, high = max((size for size in sizes if size <= limit), default=0), limit
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(sizes, middle)) <= fewest else (middle + 1, high)
    sums = [0, *accumulate(sizes)]
    ends = [len(sizes), *(len(sizes) - end for end in accumulate(_filled(sizes[::-1], low)))]
    counts: list[int] = []
    start = 0
    for left in range(fewest - 1, -1, -1):
        # not so early that the rest would not fit into the groups that are left, nor so late that one has nothing
        first = max(start + 1, ends[left])
        last = max(first, min(bisect_right(sums, sums[start] + low) - 1, len(sizes) - left))
        even = sums[start] + (sums[-1] - sums[start]) / (left + 1)
        stop = min(max(bisect_left(sums, even), first), last)
        if stop > first and even - sums[stop - 1] < sums[stop] - even:
            stop -= 1
        counts.append(stop - start)
        start = stop
    return counts


def _filled(sizes: Sequence[int], limit: int) -> list[int]:
    """How many sizes fill each group, one group after another."""
    counts: list[int] = []
    total = 0
    for size in sizes:
        if counts and (total + size <= limit or not total or not size):
            counts[-1] += 1
            total += size
        else:
            counts.append(1)
            total = size
    return counts


def _moved_once(catalog: CheckpointCatalog, carried: PassedThroughParameter, problems: list[str]) -> ReshardedParameter:
    """What no strategy knows, whole from the first rank that has it; a problem if others have something else."""
    owners = sorted(carried.owners)
    first = catalog.records[owners[0]]
    entry = first.index.entries[carried.source_name]
    for rank in owners[1:]:
        record = catalog.records[rank]
        other = record.index.entries[carried.source_name]
        digests = [each.digests.get(carried.source_name) for each in (first, record)]
        alike = entry.text == other.text if entry.text is not None else digests[0] == digests[1] is not None
        if not alike or (entry.dtype, entry.shape) != (other.dtype, other.shape):
            problems.append(
                f"parameter {carried.name!r}, which no strategy knows, differs between {rank_names(owners[:1])} and "
                f"{rank_names([rank])}, and a unified checkpoint has it once: leave it out, --exclude "
                f"{carried.source_name}, if it is not part of the model; if it is, the source strategy lacks it"
            )
            break
    copy = SourceCopy(first.rank, whole_layout(len(entry.shape)))
    source = SourceTensor(carried.source_name, entry.dtype, entry.shape, (copy,))
    whole = (whole_piece(entry.shape),)
    return ReshardedParameter(carried.name, carried.dtype, entry.shape, (source,), whole, {}, carried.steps)


def _size_bytes(parameter: ReshardedParameter) -> int:
    """What counts of it as a file's size: of a text nothing, or it might get a file that no index tells of."""
    return 0 if parameter.dtype is TEXT else math.prod(parameter.shape) * parameter.dtype.itemsize


def _in_file(parameter: ReshardedParameter, number: int) -> ReshardedParameter:
    return replace(parameter, target_layouts={number: whole_layout(len(parameter.shape))})

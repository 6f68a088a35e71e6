"""Unified targets: whole tensors, each in one of a few files that are about equally large.

Each file of such a target counts as a stage with one device, and every parameter is in one of them. So it is planned,
written, verified and resumed as any other target; its "ranks" are its files.

Parameters that no strategy knows are written once, so all source ranks must hold the same values.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec.structs import replace

from reshard.core.errors import PlanError, raise_problems
from reshard.core.layouts.unified.names import UnifiedNaming, file_names
from reshard.core.plan.model import ParameterMatch, PlanInputs, ReshardedParameter, TargetFiles
from reshard.core.plan.target_files import in_source_order, written_once
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout
from reshard.core.text.options import option

_ONCE = "and a unified checkpoint has it once"


def unified_match(inputs: PlanInputs, match: ParameterMatch, naming: str, max_shard_bytes: int) -> ParameterMatch:
    """Turn the match of a target without a strategy into that of a unified one: every parameter is whole, in one file.

    If the source has a strategy, parameters that it does not know are outside of the model, as in MindSpore.

    Raises:
        PlanError: a parameter has no place in such a target, differs between source ranks, or none is left.
    """
    catalog = inputs.catalog
    problems: list[str] = []
    whole = [*match.resharded, *(written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through)]
    problems += [
        f"parameter {each.name!r} is a {each.dtype}, which .safetensors files cannot hold; if the model does without "
        f"it, leave it out: {option('exclude', [each.name])}"
        for each in whole
        if each.dtype is MAP_TENSOR
    ]
    raise_problems(PlanError, f"{catalog.url}: cannot be unified", problems)
    if not whole:
        raise PlanError(f"{catalog.url}: cannot be unified: no parameter is left of it")
    whole = in_source_order(catalog, whole)
    outside = tuple(passed.name for passed in match.passed_through) if inputs.source_strategy is not None else ()
    apart = frozenset(outside) if naming == UnifiedNaming.MINDSPORE else frozenset[str]()
    sizes = [_size_bytes(each) for each in whole if each.name not in apart]
    parts = split_in_order(sizes, max_shard_bytes)
    has_others = bool(apart or (match.appended and naming == UnifiedNaming.MINDSPORE))
    numbers = iter([number for number, count in enumerate(parts) for _ in range(count)])
    return replace(
        match,
        resharded=tuple(_in_file(each, len(parts) if each.name in apart else next(numbers)) for each in whole),
        passed_through=(),
        files=TargetFiles(file_names(naming, len(parts), has_others=has_others), outside=outside),
    )


def split_in_order(sizes: Sequence[int], limit: int) -> list[int]:
    """Split a sequence of sizes, in order, into as few groups as possible; return the number of sizes in each.

    Only groups of a single size are larger than `limit`; the groups are as even as that allows.
    """
    if not sizes:
        return []
    fewest = len(_filled(sizes, limit))
    # the smallest limit that needs no more groups; sizes above the limit are alone in any case
    low, high = max((size for size in sizes if size <= limit), default=0), limit
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(sizes, middle)) <= fewest else (middle + 1, high)
    sums = [0, *accumulate(sizes)]
    ends = [len(sizes), *(len(sizes) - end for end in accumulate(_filled(sizes[::-1], low)))]
    counts: list[int] = []
    start = 0
    for left in range(fewest - 1, -1, -1):
        # late enough that the rest fits into the remaining groups, early enough that none of them is empty
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
    """The number of sizes in each group, if one group is filled after another."""
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


def _size_bytes(parameter: ReshardedParameter) -> int:
    """Bytes that count for a file's size; none for a text, which might else get a file that is in no index."""
    return 0 if parameter.dtype is TEXT else math.prod(parameter.shape) * parameter.dtype.itemsize


def _in_file(parameter: ReshardedParameter, number: int) -> ReshardedParameter:
    return replace(parameter, target_layouts={number: whole_layout(len(parameter.shape))})

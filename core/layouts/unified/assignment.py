"""Unified targets: whole tensors, each in one of a few files that are about equally large.

Each file of such a target counts as a stage with one device, and every parameter is in one of them. So it is planned,
written, verified and resumed as any other target; its "ranks" are its files.

Parameters that no strategy knows are written once, so all source ranks must hold the same values.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import PlanError, raise_problems
from reshard.core.layouts.unified.names import UnifiedNaming, file_names
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
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout
from reshard.core.tensor.segments import whole_piece

_ONCE = "and a unified checkpoint has it once"


def unified_match(
    catalog: CheckpointCatalog, match: ParameterMatch, layout: UnifiedLayout, *, has_strategy: bool
) -> ParameterMatch:
    """Turn the match of a target without a strategy into that of a unified one: every parameter is whole, in one file.

    `has_strategy`: the source has one, so that parameters which it does not know are outside of the model, as in
    MindSpore.
    """
    problems: list[str] = []
    whole = [*match.resharded, *(written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through)]
    problems += [
        f"parameter {each.name!r} is a {each.dtype}, which .safetensors files cannot hold; if the model does without "
        f"it, leave it out: --exclude {each.name}"
        for each in whole
        if each.dtype is MAP_TENSOR
    ]
    raise_problems(PlanError, f"{catalog.url}: cannot be unified", problems)
    if not whole:
        raise PlanError(f"{catalog.url}: cannot be unified: no parameter is left of it")
    whole = in_source_order(catalog, whole)
    outside = tuple(passed.name for passed in match.passed_through) if has_strategy else ()
    apart = frozenset(outside) if layout.naming == UnifiedNaming.MINDSPORE else frozenset[str]()
    sizes = [_size_bytes(each) for each in whole if each.name not in apart]
    parts = split_in_order(sizes, layout.max_shard_bytes)
    has_others = bool(apart or (match.appended and layout.naming == UnifiedNaming.MINDSPORE))
    numbers = iter([number for number, count in enumerate(parts) for _ in range(count)])
    return replace(
        match,
        resharded=tuple(_in_file(each, len(parts) if each.name in apart else next(numbers)) for each in whole),
        passed_through=(),
        outside=outside,
        files=file_names(layout.naming, len(parts), has_others=has_others),
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


def in_source_order(catalog: CheckpointCatalog, parameters: Iterable[ReshardedParameter]) -> list[ReshardedParameter]:
    """Sort parameters by their first source's place in the source's files."""
    place = {name: number for number, name in enumerate(names_in_order(catalog))}
    return sorted(parameters, key=lambda each: min(place[source.name] for source in each.sources))


def refuse_single_stage(strategy: Strategy | None, match: ParameterMatch, form: str) -> None:
    """Refuse a target strategy of one pipeline stage, for a target that has the files of all.

    Raises:
        PlanError: the strategy is one stage's.
    """
    if strategy is not None and (strategy.ranks.start > 0 or match.part is not None):
        raise PlanError(
            f"{strategy.origin}: is the strategy of one pipeline stage, and a {form} has the files of all: "
            "name the directory of all ranks' strategies"
        )


def written_once(
    catalog: CheckpointCatalog, passed: PassedThroughParameter, why: str, problems: list[str]
) -> ReshardedParameter:
    """A parameter that no strategy knows, read from its lowest owner; a problem if other owners differ.

    `why` ends the problem's first clause: why the target cannot have several values.
    """
    owners = sorted(passed.owners)
    first = catalog.records[owners[0]]
    entry = first.index.entries[passed.source_name]
    for rank in owners[1:]:
        record = catalog.records[rank]
        other = record.index.entries[passed.source_name]
        digests = [each.digests.get(passed.source_name) for each in (first, record)]
        alike = entry.text == other.text if entry.text is not None else digests[0] == digests[1] is not None
        if not alike or (entry.dtype, entry.shape) != (other.dtype, other.shape):
            problems.append(
                f"parameter {passed.name!r}, which no strategy knows, differs between {rank_names(owners[:1])} and "
                f"{rank_names([rank])}, {why}: leave it out, --exclude "
                f"{passed.source_name}, if it is not part of the model; if it is, the source strategy lacks it"
            )
            break
    copy = SourceCopy(first.rank, whole_layout(len(entry.shape)))
    source = SourceTensor(passed.source_name, entry.dtype, entry.shape, (copy,))
    whole = (whole_piece(entry.shape),)
    return ReshardedParameter(passed.name, passed.dtype, entry.shape, (source,), whole, {}, passed.steps)


def _size_bytes(parameter: ReshardedParameter) -> int:
    """Bytes that count for a file's size; none for a text, which might else get a file that is in no index."""
    return 0 if parameter.dtype is TEXT else math.prod(parameter.shape) * parameter.dtype.itemsize


def _in_file(parameter: ReshardedParameter, number: int) -> ReshardedParameter:
    return parameter._replace(target_layouts={number: whole_layout(len(parameter.shape))})

"""Whether ranks hold the same where a strategy says so, and only there, by samples of their contents.

Parameters that are cut alike and are of one kind (`layers.0.wq`, `layers.1.wq`) stand for each other, so that a
parameter of which the strategy says something of its own is looked at, however small it is. Where ranks do not hold
what they should, other layouts are tried: what would explain it says what is wrong.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.checkpoint.content_samples import is_constant, read_samples
from reshard.core.errors import LayoutError
from reshard.core.plan.stage_shards import StageShards, joined_shape
from reshard.core.runtime.wording import rank_names
from reshard.core.source.strategy_checks import OWN_STRATEGY, SHARDS_OFF, WITH_SHARDS, WITHOUT_SHARDS, Misfit, listed
from reshard.core.strategy.optimizer_shards import has_optimizer_shard, with_optimizer_shard, without_optimizer_shard
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout, ShardGrid, whole_layout
from reshard.core.tensor.slices import Shape

_SAMPLED_OF_KIND = 2
_SAMPLED_CELLS = 8
_SAMPLED_COPIES = 3
_FIRST_LOOK_BYTES = 1 << 12
_SAMPLED_BYTES = 1 << 16
_FEWEST_VALUES = 4
_NUMBER = re.compile(r"[0-9]+")

_Item = TypeVar("_Item")
_Told = tuple[str, str, str]
_SOME_WHOLE: _Told = (
    "ranks hold the same, as if it were whole, although the strategy cuts it",
    "these parameters are not cut as the strategy says, or their slices happen to be the same (experts copied of one)",
    f"{OWN_STRATEGY}, unless the slices are meant to be the same: a conversion takes them as slices",
)


@dataclass(frozen=True)
class _Sample:
    """What ranks of a stage hold of a parameter at its beginning."""

    name: str
    layout: ParameterLayout
    axis_count: int
    cut: ShardGrid
    first_rank: int
    contents: Mapping[int, bytes]
    itemsize: int
    proven: bool
    """Whether shapes prove that these are slices."""

    @cached_property
    def telling(self) -> list[int]:
        """The ranks whose contents are alike only if they are the same: not those of a few values, such as zeros."""
        return [rank for rank, content in self.contents.items() if _is_varied(content, self.itemsize)]

    def unlike(self, cut: ShardGrid) -> tuple[int, int] | None:
        """Two ranks that differ, and should not if the parameter were cut so."""
        first_of: dict[Shape, int] = {}
        for rank, content in self.contents.items():
            first = first_of.setdefault(cut.cell_of(rank - self.first_rank), rank)
            if self.contents[first] != content:
                return first, rank
        return None

    def alike(self, cut: ShardGrid) -> tuple[int, int] | None:
        """Two ranks that hold the same, and should not if the parameter were cut so."""
        first_of: dict[bytes, int] = {}
        for rank in self.telling:
            first = first_of.setdefault(self.contents[rank], rank)
            if cut.cell_of(first - self.first_rank) != cut.cell_of(rank - self.first_rank):
                return first, rank
        return None

    def explains(self, layout: ParameterLayout) -> bool:
        """Whether ranks would hold what they do if this were the parameter's layout."""
        try:
            cut = layout.shard_grid(self.axis_count)
        except LayoutError:
            return False
        return bool(self.telling) and self.unlike(cut) is None and self.alike(cut) is None

    @property
    def slices(self) -> tuple[int, int] | None:
        """Two ranks that hold different slices; None if the parameter is not cut, or all ranks hold the same."""
        if self.cut.is_whole:
            return None
        first, *others = self.contents
        differing = [rank for rank in others if self.contents[rank] != self.contents[first]]
        return (first, differing[0]) if differing else None


@dataclass(frozen=True)
class ContentMisfits:
    """What samples of contents show.

    Attributes:
        found: where ranks do not hold what the strategy says, alike cases together.
        compared: stage -> how many parameters' samples tell something.
        contradicting: stage -> how many of them speak against the strategy.
        whole: cut parameters that are the same on all ranks, and where; empty if any cut parameter differs.
        sliced: cut parameters that differ between ranks, and where.
    """

    found: tuple[Misfit, ...]
    compared: Mapping[int, int]
    contradicting: Mapping[int, int]
    whole: tuple[str, ...]
    sliced: tuple[str, ...]


def content_misfits(
    catalog: CheckpointCatalog,
    held: Mapping[str, Sequence[StageShards]],
    *,
    most: int,
    most_stages: int | None = None,
    may_be_whole: bool = False,
) -> ContentMisfits:
    """Whether ranks that should hold the same do, and those that should not do not, by samples of some parameters.

    At `most` so many parameters of a stage are looked at, at least one of each kind while there are not more kinds; of
    all stages, or of `most_stages`, the first and the last among these. If tensors
    `may_be_whole`, equal slices contradict nothing.

    Raises:
        CatalogError: a file is not laid out as it was assumed to be.
        StorageError: one cannot be read.
    """
    by_kind: dict[_Told, list[tuple[int, str]]] = {}
    sliced: list[str] = []
    some_are_slices = False
    whole: list[tuple[int, str]] = []
    compared: Counter[int] = Counter()
    for copy, everywhere in _chosen(held, most, most_stages):
        sample = _sample(catalog, copy, everywhere)
        if sample is None:
            continue
        if sample.slices:
            sliced.append(f"{sample.name!r} differs on {rank_names(sample.slices)}")
            some_are_slices = some_are_slices or bool(sample.telling)
        unlike, alike = sample.unlike(sample.cut), None if sample.proven else sample.alike(sample.cut)
        if unlike is None and alike is None:
            compared[copy.stage.stage] += len(sample.telling) > 1
            continue
        compared[copy.stage.stage] += 1
        details = []
        if unlike:
            details.append(f"{sample.name!r} differs on {rank_names(unlike)}, which should hold the same")
        if alike:
            details.append(f"{sample.name!r} is the same on {rank_names(alike)}, which should hold different slices")
        detail = copy.stage.stage, "; ".join(details)
        if sample.explains(whole_layout(sample.axis_count, sample.layout.device_count)):
            shapes = f"{list(copy.entry.shape)} on each, {list(joined_shape(copy) or ())} if these are slices"
            whole.append((detail[0], f"{detail[1]} ({shapes})"))
        else:
            by_kind.setdefault(_explained(sample), []).append(detail)
    if whole and some_are_slices and not may_be_whole:
        by_kind[_SOME_WHOLE] = whole
    contradicting = Counter(stage for details in by_kind.values() for stage, _ in details)
    found = tuple(
        Misfit("contents", f"{found}: {listed([detail for _, detail in details], '; ')}", means, advice)
        for (found, means, advice), details in by_kind.items()
    )
    wholes = () if sliced else tuple(detail for _, detail in whole)
    return ContentMisfits(found, compared, contradicting, wholes, tuple(sliced))


def _sample(catalog: CheckpointCatalog, held: StageShards, everywhere: bool) -> _Sample | None:
    """None if there is nothing to compare."""
    name, layout, shape = held.entry.name, held.layout, held.entry.shape
    try:
        cut = layout.shard_grid(len(shape))
        proven = layout.tensor_shape not in (None, shape) and layout.tensor_shape == cut.whole_shape(
            held.shards[0][0], shape
        )
    except LayoutError:
        return None
    having = [
        rank
        for rank in range(held.first_rank, held.first_rank + cut.device_count)
        if rank in catalog.records and name in catalog.records[rank].index.entries
    ]
    ranks = having if everywhere else _some_ranks(having, cut, held.first_rank)
    if len(ranks) < 2 or any(catalog.records[rank].index.entries[name].shape != shape for rank in ranks):
        return None
    sample: _Sample | None = None
    for length in (_FIRST_LOOK_BYTES, _SAMPLED_BYTES):
        contents = dict(zip(ranks, read_samples(catalog, ranks, name, length), strict=True))
        sample = _Sample(
            name, layout, len(shape), cut, held.first_rank, contents, held.entry.dtype.itemsize or 1, proven
        )
        if sample.telling and sample.alike(cut) is None:
            break  # else what is the same may differ further on
    return sample


def _is_varied(content: bytes, itemsize: int) -> bool:
    if is_constant(content, itemsize):  # most of those that are not varied, and quickly seen
        return False
    values: set[bytes] = set()
    for start in range(0, len(content), itemsize):
        values.add(content[start : start + itemsize])
        if len(values) == _FEWEST_VALUES:
            return True
    return False


def _some_ranks(having: Sequence[int], cut: ShardGrid, first_rank: int) -> list[int]:
    """A few ranks of a few slices."""
    holders: dict[Shape, list[int]] = {}
    for rank in having:
        holders.setdefault(cut.cell_of(rank - first_rank), []).append(rank)
    cells = _spread(list(holders.values()), _SAMPLED_CELLS)
    return sorted(rank for ranks in cells for rank in _spread(ranks, _SAMPLED_COPIES))


def _spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most so many of them, the first and the last among these."""
    if len(items) <= most:
        return list(items)
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def _explained(sample: _Sample) -> _Told:
    """The misfit for a layout, other than a whole one, that would explain the ranks' contents."""
    layout = sample.layout
    bare = without_optimizer_shard(layout)
    if has_optimizer_shard(layout) and sample.explains(bare):
        return (
            "the optimizer shard does not cut what ranks hold",
            SHARDS_OFF,
            WITHOUT_SHARDS,
        )
    more = with_optimizer_shard(bare, None, ALL_REPEATED_AXES)
    if more is not None and sample.explains(more):
        return (
            "what should be copies differs as if optimizer parallel cut it",
            "optimizer parallel was on when the checkpoint was saved, or copies were saved at different moments",
            WITH_SHARDS,
        )
    return (
        "ranks do not hold what the strategy says they share",
        "another arrangement of devices, rank folders that were swapped, files of different steps, or a damaged copy",
        f"{OWN_STRATEGY}; 'reshard convert --check-replicas' compares all copies",
    )


def _chosen(
    held: Mapping[str, Sequence[StageShards]], most: int, most_stages: int | None
) -> Iterator[tuple[StageShards, bool]]:
    """Of each stage the largest parameters of each kind, and whether to look at all ranks: of the largest one."""
    by_stage: dict[int, list[StageShards]] = {}
    for copies in held.values():
        for copy in copies:
            if copy.entry.extents and copy.entry.dtype not in (TEXT, MAP_TENSOR):
                by_stage.setdefault(copy.stage.stage, []).append(copy)
    stages = sorted(by_stage)
    for stage in _spread(stages, most_stages or len(stages)):
        chosen = islice(_of_each_kind(by_stage[stage]), most)
        for number, copy in enumerate(chosen):
            yield copy, number == 0


def _of_each_kind(copies: Sequence[StageShards]) -> Iterator[StageShards]:
    """The first of each kind, then the last of each; those that are cut before those that are not, large ones first."""
    kinds: dict[tuple[str, ParameterLayout, str, Shape], list[StageShards]] = {}
    for copy in copies:
        entry = copy.entry
        kind = (_NUMBER.sub("", entry.name), copy.layout, entry.dtype.name, entry.shape)
        kinds.setdefault(kind, []).append(copy)
    found = [pair for alike in kinds.values() for pair in enumerate(_spread(alike, _SAMPLED_OF_KIND))]
    found.sort(key=lambda pair: (pair[0], not _is_cut(pair[1].layout), -pair[1].entry.size_bytes))
    return (copy for _, copy in found)


def _is_cut(layout: ParameterLayout) -> bool:
    return any(layout.tensor_map) or has_optimizer_shard(layout)

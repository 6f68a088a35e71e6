"""Compares samples of the ranks' contents: where a strategy says that ranks hold the same, and only there, they must.

Parameters of one kind that are cut alike (`layers.0.wq`, `layers.1.wq`) represent each other, so every layout of its
own is sampled, however small its parameter. A contradiction is explained by trying other layouts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, islice, starmap
from threading import Event
from typing import TypeVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.content_samples import are_read_at_once, is_constant, read_samples
from reshard.core.errors import LayoutError
from reshard.core.plan.stage_shards import StageShards, joined_shape
from reshard.core.runtime.records import Record
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import rank_names
from reshard.core.source.findings import (
    OPTIMIZER_PARALLEL_OFF,
    OWN_STRATEGY,
    WITH_OPTIMIZER_SHARDS,
    WITHOUT_OPTIMIZER_SHARDS,
    Cause,
    Finding,
    findings_by_cause,
    optimizer_shard_cause,
)
from reshard.core.source.shape_checks import NUMBER
from reshard.core.strategy.optimizer_shards import has_optimizer_shard
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ParameterLayout, ShardGrid, whole_layout
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_SAMPLES_PER_KIND = 2
_SAMPLED_SHARDS = 8
_SAMPLED_REPLICAS = 3
_FIRST_SAMPLE_BYTES = 1 << 12
_SAMPLE_BYTES = 1 << 16
_MIN_DISTINCT_VALUES = 4
_SAMPLES_AT_ONCE = 8
"""Samples of remote files: each waits for one or two answers of every rank."""

_Item = TypeVar("_Item")
_SOME_INTEGRATED = Cause(
    "ranks hold the same, as if it were whole, although the strategy cuts it",
    "these parameters are not cut as the strategy says, or their slices happen to be the same (experts copied of one)",
    f"{OWN_STRATEGY}, unless the slices are meant to be the same: a conversion takes them as slices",
)
_NOT_CUT_BY_OPTIMIZER = Cause(
    "the optimizer shard does not cut what ranks hold", OPTIMIZER_PARALLEL_OFF, WITHOUT_OPTIMIZER_SHARDS
)
_CUT_BY_OPTIMIZER = Cause(
    "replicas differ as if optimizer parallel cut them",
    "optimizer parallel was on when the checkpoint was saved, or replicas were saved at different moments",
    WITH_OPTIMIZER_SHARDS,
)
_UNEXPLAINED = Cause(
    "ranks do not hold what the strategy says they share",
    "another arrangement of devices, rank folders that were swapped, files of different steps, or a damaged replica",
    f"{OWN_STRATEGY}; 'reshard convert' with {option('check_replicas', True)} compares all replicas",
)


class _Sample(Record, dict=True):
    """The beginnings of a parameter on ranks of a stage."""

    shards: StageShards
    grid: ShardGrid
    contents: Mapping[int, bytes]
    proves_slices: bool
    """True if the shapes prove that ranks hold slices."""

    @property
    def name(self) -> str:
        return self.shards.entry.name

    @cached_property
    def varied(self) -> list[int]:
        """Ranks with contents of several values: equal ones, unlike zeros, are no coincidence."""
        itemsize = self.shards.entry.dtype.itemsize or 1
        return [rank for rank, content in self.contents.items() if _is_varied(content, itemsize)]

    def differing_replicas(self, grid: ShardGrid) -> tuple[int, int] | None:
        """Two ranks with different contents that share a shard of the grid."""
        first_of: dict[Shape, int] = {}
        for rank, content in self.contents.items():
            first = first_of.setdefault(grid.cell_of(rank - self.shards.first_rank), rank)
            if self.contents[first] != content:
                return first, rank
        return None

    def equal_shards(self, grid: ShardGrid) -> tuple[int, int] | None:
        """Two ranks with the same contents that hold different shards of the grid."""
        first_of: dict[bytes, int] = {}
        for rank in self.varied:
            first = first_of.setdefault(self.contents[rank], rank)
            if grid.cell_of(first - self.shards.first_rank) != grid.cell_of(rank - self.shards.first_rank):
                return first, rank
        return None

    def is_explained_by(self, layout: ParameterLayout) -> bool:
        """True if ranks would hold these contents under another layout."""
        try:
            grid = layout.shard_grid(len(self.shards.entry.shape))
        except LayoutError:
            return False
        return bool(self.varied) and self.differing_replicas(grid) is None and self.equal_shards(grid) is None

    @property
    def differing_ranks(self) -> tuple[int, int] | None:
        """Two ranks with different contents, if the parameter is cut."""
        if self.grid.is_whole:
            return None
        first, *others = self.contents
        return next(((first, rank) for rank in others if self.contents[rank] != self.contents[first]), None)


class SampleFindings(Record):
    """The results of sampling contents.

    Attributes:
        found: contradictions to the strategy, one finding per cause.
        compared: stage -> number of parameters with meaningful samples.
        contradicting: stage -> number of those that contradict the strategy.
        whole: cut parameters that are the same on all ranks, and where; empty if any cut parameter differs.
        sliced: cut parameters that differ between ranks, and where.
    """

    found: tuple[Finding, ...]
    compared: Mapping[int, int]
    contradicting: Mapping[int, int]
    whole: tuple[str, ...]
    sliced: tuple[str, ...]


def sample_findings(
    catalog: CheckpointCatalog,
    shards: Mapping[str, Sequence[StageShards]],
    *,
    limit: int,
    stage_limit: int | None = None,
    may_be_whole: bool = False,
) -> SampleFindings:
    """Compare samples of some parameters between ranks that should, and that should not, hold the same.

    `limit` parameters of a stage are sampled, one of each kind first; of all stages, or of `stage_limit` ones that
    include the first and the last. If tensors `may_be_whole`, equal slices contradict nothing.
    """
    details: dict[Cause, list[tuple[int, str]]] = {}
    sliced: list[str] = []
    some_are_slices = False
    whole: list[tuple[int, str]] = []
    compared: Counter[int] = Counter()
    chosen = list(_chosen(shards, limit, stage_limit))
    for (of_stage, _), sample in zip(chosen, _samples(catalog, chosen), strict=True):
        if sample is None:
            continue
        if sample.differing_ranks:
            sliced.append(f"{sample.name!r} differs on {rank_names(sample.differing_ranks)}")
            some_are_slices = some_are_slices or bool(sample.varied)
        stage, text = of_stage.stage.stage, _contradiction(sample)
        compared[stage] += bool(text) or len(sample.varied) > 1
        if not text:
            continue
        if sample.is_explained_by(whole_layout(len(of_stage.entry.shape), of_stage.layout.device_count)):
            shape, joined = list(of_stage.entry.shape), list(joined_shape(of_stage) or ())
            whole.append((stage, f"{text} ({shape} on each, {joined} if these are slices)"))
        else:
            details.setdefault(_cause(sample), []).append((stage, text))
    if whole and some_are_slices and not may_be_whole:
        details[_SOME_INTEGRATED] = whole
    found = findings_by_cause("contents", {cause: [text for _, text in each] for cause, each in details.items()})
    return SampleFindings(
        found=tuple(found),
        compared=compared,
        contradicting=Counter(stage for each in details.values() for stage, _ in each),
        whole=() if sliced else tuple(text for _, text in whole),
        sliced=tuple(sliced),
    )


def _contradiction(sample: _Sample) -> str:
    """The ranks that contradict the strategy; empty if none do."""
    texts = []
    if differing := sample.differing_replicas(sample.grid):
        texts.append(f"{sample.name!r} differs on {rank_names(differing)}, which should hold the same")
    if not sample.proves_slices and (equal := sample.equal_shards(sample.grid)):
        texts.append(f"{sample.name!r} is the same on {rank_names(equal)}, which should hold different slices")
    return "; ".join(texts)


def _cause(sample: _Sample) -> Cause:
    cause = optimizer_shard_cause(
        sample.shards.layout, sample.is_explained_by, was_off=_NOT_CUT_BY_OPTIMIZER, was_on=_CUT_BY_OPTIMIZER
    )
    return cause or _UNEXPLAINED


def _samples(catalog: CheckpointCatalog, chosen: Sequence[tuple[StageShards, bool]]) -> Iterable[_Sample | None]:
    """Read samples; of remote files concurrently, unless opening encrypted ones makes them wait for one another."""
    if not are_read_at_once(catalog):
        return starmap(partial(_sample, catalog), chosen)
    # a batch at a time: each sample may take megabytes
    batches = (chosen[first : first + _SAMPLES_AT_ONCE] for first in range(0, len(chosen), _SAMPLES_AT_ONCE))
    return chain.from_iterable(
        in_threads(lambda each: _sample(catalog, *each), batch, _SAMPLES_AT_ONCE, Event()) for batch in batches
    )


def _sample(catalog: CheckpointCatalog, shards: StageShards, on_all_ranks: bool) -> _Sample | None:
    """Read a sample; None if there is nothing to compare."""
    name, shape = shards.entry.name, shards.entry.shape
    try:
        grid = shards.layout.shard_grid(len(shape))
        expected = shards.layout.tensor_shape
        proves_slices = expected not in (None, shape) and expected == grid.whole_shape(shards.shards[0][0], shape)
    except LayoutError:
        return None
    owners = [
        rank
        for rank in range(shards.first_rank, shards.first_rank + grid.device_count)
        if rank in catalog.records and name in catalog.records[rank].index.entries
    ]
    ranks = owners if on_all_ranks else _some_ranks(owners, grid, shards.first_rank)
    if len(ranks) < 2 or any(catalog.records[rank].index.entries[name].shape != shape for rank in ranks):
        return None
    sample: _Sample | None = None
    for length in (_FIRST_SAMPLE_BYTES, _SAMPLE_BYTES):
        contents = dict(zip(ranks, read_samples(catalog, ranks, name, length), strict=True))
        sample = _Sample(shards, grid, contents, proves_slices)
        if sample.varied and sample.equal_shards(grid) is None:
            break  # else equal contents may differ further on
    return sample


def _is_varied(content: bytes, itemsize: int) -> bool:
    if is_constant(content, itemsize):  # the common case, and quickly seen
        return False
    values: set[bytes] = set()
    for start in range(0, len(content), itemsize):
        values.add(content[start : start + itemsize])
        if len(values) == _MIN_DISTINCT_VALUES:
            return True
    return False


def _some_ranks(owners: Sequence[int], grid: ShardGrid, first_rank: int) -> list[int]:
    """A few ranks of a few shards."""
    replicas: dict[Shape, list[int]] = {}
    for rank in owners:
        replicas.setdefault(grid.cell_of(rank - first_rank), []).append(rank)
    sampled = _spread(list(replicas.values()), _SAMPLED_SHARDS)
    return sorted(rank for ranks in sampled for rank in _spread(ranks, _SAMPLED_REPLICAS))


def _spread(items: Sequence[_Item], limit: int) -> list[_Item]:
    """At most `limit` items at equal distances, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[place * (len(items) - 1) // (limit - 1)] for place in range(limit)]


def _chosen(
    shards: Mapping[str, Sequence[StageShards]], limit: int, stage_limit: int | None
) -> Iterator[tuple[StageShards, bool]]:
    """The parameters of each stage to sample, and whether to sample all ranks: true for the largest."""
    by_stage: dict[int, list[StageShards]] = {}
    for stages in shards.values():
        for of_stage in stages:
            if of_stage.entry.extents and of_stage.entry.dtype not in (TEXT, MAP_TENSOR):
                by_stage.setdefault(of_stage.stage.stage, []).append(of_stage)
    numbers = sorted(by_stage)
    for number in _spread(numbers, stage_limit or len(numbers)):
        for place, of_stage in enumerate(islice(_of_each_kind(by_stage[number]), limit)):
            yield of_stage, place == 0


def _of_each_kind(candidates: Sequence[StageShards]) -> Iterator[StageShards]:
    """The first of each kind, then the last of each; cut parameters first, and large ones among them."""
    kinds: dict[tuple[str, ParameterLayout, str, Shape], list[StageShards]] = {}
    for each in candidates:
        entry = each.entry
        kind = NUMBER.sub("", entry.name), each.layout, entry.dtype.name, entry.shape
        kinds.setdefault(kind, []).append(each)
    found = [pair for alike in kinds.values() for pair in enumerate(_spread(alike, _SAMPLES_PER_KIND))]
    found.sort(key=lambda pair: (pair[0], not _is_cut(pair[1].layout), -pair[1].entry.size_bytes))
    return (each for _, each in found)


def _is_cut(layout: ParameterLayout) -> bool:
    return any(layout.tensor_map) or has_optimizer_shard(layout)

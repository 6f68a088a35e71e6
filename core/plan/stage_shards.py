"""Shards in the source's files: the stages and ranks that hold each parameter, sharded or saved whole.

A stage holds a parameter if its strategy has it and a file of one of its ranks has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog, by_index
from reshard.core.errors import LayoutError
from reshard.core.files.model import TensorEntry
from reshard.core.plan.ownership import SourceCopy
from reshard.core.runtime.records import Record
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option


class StageShards(Record):
    """A parameter in the files of one stage."""

    stage: StageStrategy
    first_rank: int
    layout: ParameterLayout
    shards: tuple[tuple[int, TensorEntry], ...]
    """(stage rank, entry): the first of each dtype and shape; every rank's if shards are uneven."""
    missing_ranks: frozenset[int]
    """Global ranks of the stage whose files lack it."""
    kind: tuple[object, ...]
    """Equal for parameters of a source whose shards have the same layout, shapes and ranks."""

    @property
    def entry(self) -> TensorEntry:
        """The first shard's entry."""
        return self.shards[0][1]


class SourceShards:
    """The shards of all parameters of a source, grouped on first use and shared by everything that asks."""

    def __init__(self, catalog: CheckpointCatalog, strategy: Strategy | None) -> None:
        self._catalog = catalog
        self._strategy = strategy

    @property
    def by_name(self) -> dict[str, list[StageShards]]:
        """Parameter name -> the stages whose strategy and files hold it, lowest first; empty without a strategy."""
        return self._grouped[0]

    @property
    def problems(self) -> list[str]:
        """Parameters that ranks of one stage hold with different shapes or dtypes."""
        return list(self._grouped[1])

    def are_whole(self, asked: IntegratedSave) -> bool:
        """True if every rank holds whole tensors: as is said, or by shapes, without a target's strategy."""
        if asked is not IntegratedSave.AUTO:
            return asked is IntegratedSave.YES
        return bool(integrated_by_shapes(self.by_name, None, {}))

    @cached_property
    def _grouped(self) -> tuple[dict[str, list[StageShards]], list[str]]:
        if self._strategy is None:
            return {}, []
        problems: list[str] = []
        return _group_by_stage(self._catalog, self._strategy, problems), problems


def names_in_order(catalog: CheckpointCatalog) -> list[str]:
    """Return all names in the source's files, in their order."""
    return list(dict.fromkeys(name for index in catalog.indexes() for name in index.entries))


def owners_of(catalog: CheckpointCatalog, name: str) -> list[CatalogRecord]:
    """Return the records of the ranks whose files hold a parameter."""
    return [record for record in catalog.records.values() if name in record.index.entries]


def _group_by_stage(catalog: CheckpointCatalog, source: Strategy, problems: list[str]) -> dict[str, list[StageShards]]:
    found: dict[str, list[StageShards]] = {}
    for stage in source.stages:
        files = _StageFiles(catalog, stage, source.stage_ranks(stage))
        for name in stage.layouts:
            shards = files.shards_of(name)
            if shards is None:
                continue
            problem = _disagreement(shards)
            if problem:
                problems.append(problem)
            else:
                found.setdefault(name, []).append(shards)
    return {name: found[name] for name in names_in_order(catalog) if name in found}


class _StageFiles:
    """The files of a stage's ranks, in groups that are alike: each group has one index, which is looked at once."""

    def __init__(self, catalog: CheckpointCatalog, stage: StageStrategy, ranks: range) -> None:
        self._catalog = catalog
        self._stage = stage
        self._ranks = ranks
        self._groups = by_index(catalog.records[rank] for rank in ranks if rank in catalog.records)
        # one pass over all entries: a source without redundancy has as many different files as ranks, each a few names
        self._groups_of: dict[str, list[int]] = {}
        for number, records in enumerate(self._groups):
            for name in records[0].index.entries:
                self._groups_of.setdefault(name, []).append(number)
        self._missing_ranks: dict[tuple[int, ...], frozenset[int]] = {}

    def shards_of(self, name: str) -> StageShards | None:
        """Return the shards of one of the stage's parameters; None if no file has it."""
        groups = tuple(self._groups_of.get(name, ()))
        if not groups:
            return None
        layout = self._stage.layouts[name]
        missing_ranks = self._ranks_outside(groups)
        owners: Iterable[int] = self._ranks
        if layout.boxes is not None:  # a rank without a box lacks nothing
            owners = [self._ranks.start + rank for rank, _ in layout.boxes.owned]
            missing_ranks = missing_ranks.intersection(owners)
        if layout.is_uneven:  # even files that are alike may be wrong for one of their ranks
            having = [self._catalog.records[rank] for rank in owners if rank not in missing_ranks]
            shards = tuple([(record.rank - self._ranks.start, record.index.entries[name]) for record in having])
        else:
            shards = _distinct_shards(name, [self._groups[number][0] for number in groups], self._ranks.start)
        shapes = tuple([(rank, entry.dtype, entry.shape) for rank, entry in shards])
        kind = (self._ranks.start, layout, layout.tensor_shape, missing_ranks, shapes)
        return StageShards(self._stage, self._ranks.start, layout, shards, missing_ranks, kind)

    def _ranks_outside(self, groups: tuple[int, ...]) -> frozenset[int]:
        """The stage's ranks whose files are in none of these groups."""
        outside = self._missing_ranks.get(groups)
        if outside is None:
            inside = {record.rank for number in groups for record in self._groups[number]}
            outside = self._missing_ranks[groups] = frozenset(self._ranks) - inside
        return outside


def _distinct_shards(
    name: str, having: Iterable[CatalogRecord], first_rank: int
) -> tuple[tuple[int, TensorEntry], ...]:
    """(stage rank, entry) of records that have a parameter: the first of each dtype and shape."""
    distinct: dict[tuple[str, Shape], tuple[int, TensorEntry]] = {}
    last: TensorEntry | None = None
    for record in having:
        entry = record.index.entries[name]
        if last is None or entry.shape != last.shape or entry.dtype is not last.dtype:
            distinct.setdefault((entry.dtype.name, entry.shape), (record.rank - first_rank, entry))
            last = entry
    return tuple(distinct.values())


def _disagreement(shards: StageShards) -> str | None:
    """The problem of shards that cannot be of one parameter; None if there is none."""
    rank, entry = shards.shards[0]
    for other_rank, other in shards.shards[1:]:
        if entry.dtype is not other.dtype or not _shapes_agree(entry.shape, other.shape, shards.layout):
            return (
                f"parameter {entry.name!r} is {entry_text(entry)} on rank_{shards.first_rank + rank}, "
                f"but {entry_text(other)} on rank_{shards.first_rank + other_rank}"
            )
    return None


def _shapes_agree(shape: Shape, other: Shape, layout: ParameterLayout) -> bool:
    if layout.boxes is not None:
        return True  # each has the shape of its box
    if layout.param_split_shape:
        return shape[1:] == other[1:]
    return shape == other


def entry_text(entry: TensorEntry) -> str:
    """Format dtype and shape for a message."""
    return f"{entry.dtype} {list(entry.shape)}"


def misplaced(catalog: CheckpointCatalog, name: str) -> str:
    """The problem of a parameter that only ranks of stages without it hold."""
    owners = owners_of(catalog, name)
    return (
        f"parameter {name!r} is on rank_{owners[0].rank} ({owners[0].location}), "
        "but on no rank of the stages that the source's strategy gives it to"
    )


def with_first(
    number: int, shards: Mapping[str, list[StageShards]], source: Strategy | None, problems: list[str]
) -> dict[str, list[StageShards]]:
    """Return the stages of each parameter with one stage before all others."""
    numbers = [stage.stage for stage in source.stages] if source else [0]
    if number not in numbers:
        problems.append(
            f"the copies of stage {number} are to be taken of shared parameters ({option('shared_parameters')}), but "
            f"the source has stages {numbers[0]} to {numbers[-1]}"
        )
    return {name: sorted(stages, key=lambda each: each.stage.stage != number) for name, stages in shards.items()}


def names_without_shards(
    catalog: CheckpointCatalog,
    source: Strategy,
    shards: Mapping[str, Sequence[StageShards]],
    needed: frozenset[str],
) -> dict[str, tuple[int, ...]]:
    """Return needed parameters that only lost files may have held -> the ranks that should hold them.

    A name in no file may also be that of a parameter that was never saved. That is so if a stage's files show that
    more replicas of a slice were saved than ranks are lost: one of that parameter would be left, too.
    """
    damaged: dict[str, tuple[int, ...]] = {}
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        lost = [rank for rank in ranks if rank in catalog.lost]
        names = [name for name in stage.layouts if name not in shards and name in needed]
        if not (lost and names):
            continue
        here = [each for stages in shards.values() for each in stages if each.first_rank == ranks.start]
        if not any(_replicas_left(each) > len(lost) for each in here):
            for name in names:
                damaged[name] = (*damaged.get(name, ()), *ranks)
    return damaged


def _replicas_left(shards: StageShards) -> int:
    """The largest number of ranks that hold the same slice."""
    try:
        owners = shards.layout.shard_grid(len(shards.entry.shape)).owners.values()
    except LayoutError:
        return 0
    there = [[rank for rank in ranks if shards.first_rank + rank not in shards.missing_ranks] for ranks in owners]
    return max(map(len, there))


def integrated_by_shapes(
    shards: Mapping[str, Sequence[StageShards]], target: Strategy | None, target_names: Mapping[str, str]
) -> bool | None:
    """True if every rank holds whole tensors (`integrated_save`), whatever its strategy says; None if unknown.

    Shapes decide if a whole shape is known: from a JSON strategy of either side, from uneven lengths, or from another
    stage with other shards of the same parameter. A checkpoint is saved one way or the other, so one parameter decides
    for all; a parameter that contradicts it is refused later, in planning. `target_names` maps parameters that keep
    their shapes to their names in the target.
    """
    # layers repeat: most parameters are of a few kinds
    kinds: dict[object, bool | None] = {}
    known_shapes = KnownShapes(target, target_names)
    for stages in shards.values():
        known = known_shapes.of(stages)
        kind = shards_kind(stages), known
        if kind not in kinds:
            kinds[kind] = _whole_by_shapes(stages, known)
    decided = frozenset(kinds.values())
    if True in decided:
        return True
    return False if False in decided else None


def shards_kind(stages: Sequence[StageShards]) -> object:
    """A key that parameters share whose shards have the same layouts, shapes and ranks."""
    return stages[0].kind if len(stages) == 1 else tuple([each.kind for each in stages])


def _whole_by_shapes(stages: Sequence[StageShards], known: Shape | None) -> bool | None:
    """True if ranks hold a sharded parameter whole; None if shapes do not decide."""
    shape, dtype = stages[0].entry.shape, stages[0].entry.dtype
    if any(each.layout.boxes for each in stages):
        return False
    if 0 in shape or dtype in (TEXT, MAP_TENSOR):  # the shards of an empty tensor are as large as the whole
        return None
    try:
        grids = [each.layout.shard_grid(len(shape)) for each in stages]
    except LayoutError:
        return None
    if all(grid.is_whole for grid in grids):
        return None
    if any(entry.shape != shape for each in stages for _, entry in each.shards):
        return False
    if known == shape:
        return True
    if known is not None:
        return False if joined_shape(stages[0]) == known else None
    uneven = [grid.uneven for grid in grids if len(grid.uneven) > 1]
    if uneven:
        return any(sum(lengths) == shape[0] for lengths in uneven)
    return True if len({grid.pieces for grid in grids}) > 1 else None


def joined_shape(shards: StageShards) -> Shape | None:
    """Return the whole shape that a stage's shards make by the strategy; None if they do not fit it."""
    try:
        return shards.layout.shard_grid(len(shards.entry.shape)).whole_shape(shards.shards[0][0], shards.entry.shape)
    except LayoutError:
        return None


class KnownShapes:
    """The shapes of whole tensors in JSON strategies of either side; `target_names` are those of source parameters."""

    def __init__(self, target: Strategy | None, target_names: Mapping[str, str]) -> None:
        self._target_names = target_names
        self._target_layouts = [
            stage.layouts
            for stage in (target.stages if target else ())
            if any(layout.tensor_shape is not None for layout in stage.layouts.values())
        ]

    def of(self, stages: Sequence[StageShards]) -> Shape | None:
        """Return the shape of the whole tensor, given its shards; None if no strategy has it."""
        # loops, because a generator for each of thousands of parameters takes longer than the answer
        for shards in stages:
            if shards.layout.tensor_shape is not None:
                return shards.layout.tensor_shape
        for layouts in self._target_layouts:
            layout = layouts.get(self._target_names.get(stages[0].entry.name, ""))
            if layout is not None and layout.tensor_shape is not None:
                return layout.tensor_shape
        return None


def source_copy(shards: StageShards, integrated: bool) -> SourceCopy:
    """Return a stage's copy of a parameter; `integrated`: its ranks hold whole tensors."""
    layout, entry = shards.layout, shards.entry
    if integrated or entry.dtype in (TEXT, MAP_TENSOR):
        check_opaque(entry.dtype, layout)
        layout = whole_layout(len(entry.shape), layout.device_count)
    return SourceCopy(shards.first_rank, layout, shards.missing_ranks)


def check_opaque(dtype: DType, layout: ParameterLayout) -> None:
    """Raise LayoutError if a layout shards a parameter without elements."""
    if dtype not in (TEXT, MAP_TENSOR):
        return
    if any(layout.tensor_map) or layout.optimizer_shard_size or layout.param_split_shape:
        raise LayoutError(f"a {dtype} cannot be cut, but the strategy does")


def check_same_whole(shards: StageShards, shape: Shape, other: StageShards, integrated: bool) -> None:
    """Raise LayoutError if another stage's shards do not make the same whole of `shape`."""
    entry = other.entry
    layout = whole_layout(len(entry.shape), other.layout.device_count) if integrated else other.layout
    if shards.entry.dtype in (TEXT, MAP_TENSOR):
        return
    whole = layout.shard_grid(len(entry.shape)).whole_shape(other.shards[0][0], entry.shape)
    if whole != shape or entry.dtype is not shards.entry.dtype:
        raise LayoutError(
            f"stages {shards.stage.stage} and {other.stage.stage} share it, but it is {shards.entry.dtype} "
            f"{list(shape)} in one and {entry.dtype} {list(whole)} in the other"
        )

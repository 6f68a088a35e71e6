"""Parameters as the source's files hold them: in which stages, by which ranks, cut or saved whole.

A stage holds a parameter if its strategy lays it out and a file of one of its ranks has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from reshard.core.checkpoint.catalog.records import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.model import TensorEntry
from reshard.core.errors import LayoutError
from reshard.core.plan.ownership import SourceCopy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.tensor.slices import Shape


@dataclass(frozen=True)
class StageShards:
    """A parameter as the files of one stage hold it."""

    stage: StageStrategy
    first_rank: int
    layout: ParameterLayout
    shards: tuple[tuple[int, TensorEntry], ...]
    """(stage rank, entry): the first of each dtype and shape; every rank's if they are cut unevenly."""
    missing_ranks: frozenset[int] = frozenset()
    """Global ranks of the stage whose files do not hold it."""

    @property
    def entry(self) -> TensorEntry:
        """The first of its shards."""
        return self.shards[0][1]


class SourceShards:
    """The shards of all parameters of a source, grouped on first use and shared by everything that asks."""

    def __init__(self, catalog: CheckpointCatalog, strategy: Strategy | None) -> None:
        self._catalog = catalog
        self._strategy = strategy

    @property
    def by_name(self) -> dict[str, list[StageShards]]:
        """See `shards_by_stage`; empty without a strategy."""
        return self._grouped[0]

    @property
    def problems(self) -> list[str]:
        """Parameters that ranks of one stage hold with different shapes or dtypes."""
        return list(self._grouped[1])

    @cached_property
    def _grouped(self) -> tuple[dict[str, list[StageShards]], list[str]]:
        if self._strategy is None:
            return {}, []
        problems: list[str] = []
        return shards_by_stage(self._catalog, self._strategy, names_in_order(self._catalog), problems), problems


def names_in_order(catalog: CheckpointCatalog) -> list[str]:
    """All names in the source's files, in their order."""
    names: dict[str, None] = {}
    seen: set[int] = set()
    for record in catalog.records.values():
        if id(record.index) not in seen:
            seen.add(id(record.index))
            names.update(dict.fromkeys(record.index.entries))
    return list(names)


def owners_of(catalog: CheckpointCatalog, name: str) -> list[CatalogRecord]:
    """Return the records of the ranks whose files hold a parameter."""
    return [record for record in catalog.records.values() if name in record.index.entries]


def shards_by_stage(
    catalog: CheckpointCatalog, source: Strategy, order: Iterable[str], problems: list[str]
) -> dict[str, list[StageShards]]:
    """Parameter name -> the stages whose strategy and files hold it, lowest first."""
    held: dict[str, list[StageShards]] = {}
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        distinct = _alike(catalog, ranks)
        # once through all entries: a redundancy-removed source has as many different files as ranks, each a few names
        keys_of: dict[str, list[int]] = {}
        for key, alike in distinct.items():
            for name in alike[0].index.entries:
                keys_of.setdefault(name, []).append(key)
        all_ranks = frozenset(ranks)
        ranks_of = {key: [record.rank for record in alike] for key, alike in distinct.items()}
        missing_of: dict[tuple[int, ...], frozenset[int]] = {}
        for name, layout in stage.layouts.items():
            keys = tuple(keys_of.get(name, ()))
            if not keys:
                continue
            missing_ranks = missing_of.get(keys)
            if missing_ranks is None:
                missing_ranks = missing_of[keys] = all_ranks.difference(*map(ranks_of.__getitem__, keys))
            if layout.param_split_shape:  # files that are alike may still be wrong for one of their ranks
                having = [catalog.records[rank] for rank in ranks if rank not in missing_ranks]
            else:
                having = [distinct[key][0] for key in keys]
            shards = _shards(name, having, ranks.start, of_each=bool(layout.param_split_shape))
            problem = _disagreement(ranks.start, shards, layout)
            if problem:
                problems.append(problem)
            else:
                held.setdefault(name, []).append(StageShards(stage, ranks.start, layout, shards, missing_ranks))
    return {name: held[name] for name in order if name in held}


def _shards(
    name: str, having: Iterable[CatalogRecord], first_rank: int, *, of_each: bool
) -> tuple[tuple[int, TensorEntry], ...]:
    """(stage rank, entry) of records that have a parameter: the first of each dtype and shape, or `of_each`."""
    if of_each:
        return tuple((record.rank - first_rank, record.index.entries[name]) for record in having)
    distinct: dict[tuple[str, Shape], tuple[int, TensorEntry]] = {}
    last: TensorEntry | None = None
    for record in having:
        entry = record.index.entries[name]
        if last is None or entry.shape != last.shape or entry.dtype is not last.dtype:
            distinct.setdefault((entry.dtype.name, entry.shape), (record.rank - first_rank, entry))
            last = entry
    return tuple(distinct.values())


def _alike(catalog: CheckpointCatalog, ranks: Iterable[int]) -> dict[int, list[CatalogRecord]]:
    """The records of a stage, those together whose files are laid out alike."""
    distinct: dict[int, list[CatalogRecord]] = {}
    for rank in ranks:
        record = catalog.records.get(rank)
        if record is not None:
            distinct.setdefault(id(record.index), []).append(record)
    return distinct


def _disagreement(first_rank: int, shards: Sequence[tuple[int, TensorEntry]], layout: ParameterLayout) -> str | None:
    rank, entry = shards[0]
    for other_rank, other in shards[1:]:
        same_shape = other.shape == entry.shape
        if layout.param_split_shape:
            same_shape = other.shape[1:] == entry.shape[1:]
        if entry.dtype is not other.dtype or not same_shape:
            return (
                f"parameter {entry.name!r} is {described(entry)} on rank_{first_rank + rank}, "
                f"but {described(other)} on rank_{first_rank + other_rank}"
            )
    return None


def described(entry: TensorEntry) -> str:
    """Element type and shape, for messages."""
    return f"{entry.dtype} {list(entry.shape)}"


def misplaced(catalog: CheckpointCatalog, name: str) -> str:
    """What is wrong with a parameter that only ranks of other stages than its strategy's hold."""
    owners = owners_of(catalog, name)
    return (
        f"parameter {name!r} is on rank_{owners[0].rank} ({owners[0].location}), "
        "but on no rank of the stages that the source's strategy gives it to"
    )


def with_first(
    number: int, held: Mapping[str, list[StageShards]], source: Strategy | None, problems: list[str]
) -> dict[str, list[StageShards]]:
    """The stages that hold each parameter, one of them before all others, where it is among them."""
    numbers = [stage.stage for stage in source.stages] if source else [0]
    if number not in numbers:
        problems.append(
            f"the copies of stage {number} are to be taken of shared parameters (--shared-parameters), but the source "
            f"has stages {numbers[0]} to {numbers[-1]}"
        )
    return {name: sorted(stages, key=lambda each: each.stage.stage != number) for name, stages in held.items()}


def names_without_shards(
    catalog: CheckpointCatalog,
    source: Strategy,
    held: Mapping[str, Sequence[StageShards]],
    needed: frozenset[str],
) -> dict[str, tuple[int, ...]]:
    """Of parameters that are needed, those that only lost files may have held, and the ranks that should hold them.

    A name without a holder may as well be of a parameter that was never saved. That is so if a stage's files show that
    more copies of a slice were saved than ranks are lost: then one of that parameter would be left, too.
    """
    unheld: dict[str, tuple[int, ...]] = {}
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        lost = [rank for rank in ranks if rank in catalog.lost]
        names = [name for name in stage.layouts if name not in held and name in needed]
        if not (lost and names):
            continue
        here = [each for stages in held.values() for each in stages if each.first_rank == ranks.start]
        if not any(_copies_left(each) > len(lost) for each in here):
            for name in names:
                unheld[name] = (*unheld.get(name, ()), *ranks)
    return unheld


def _copies_left(held: StageShards) -> int:
    """How many ranks hold the same slice, of the one that most hold."""
    try:
        cells = held.layout.shard_grid(len(held.entry.shape)).owners.values()
    except LayoutError:
        return 0
    return max(sum(held.first_rank + rank not in held.missing_ranks for rank in ranks) for ranks in cells)


def integrated_by_shapes(
    held: Mapping[str, Sequence[StageShards]], target: Strategy | None, called: Mapping[str, str]
) -> bool | None:
    """Whether every rank holds whole tensors (`integrated_save`) although the strategy cuts them; None if unknown.

    Shapes decide if a whole shape is known: from a JSON strategy of either side, from uneven lengths, or from another
    stage that cuts the same parameter differently. A checkpoint is saved one way or the other, so one parameter
    decides for all; a parameter that contradicts it is refused later, in planning. `called` maps
    parameters that keep their shapes to their target names.
    """
    decided = {_whole_by_shapes(stages, known_shape(stages, target, called)) for stages in held.values()}
    return True if True in decided else False if False in decided else None


def _whole_by_shapes(stages: Sequence[StageShards], known: Shape | None) -> bool | None:
    """Whether ranks hold a cut parameter whole; None if shapes do not decide."""
    shape, dtype = stages[0].entry.shape, stages[0].entry.dtype
    if 0 in shape or dtype in (TEXT, MAP_TENSOR):  # the shards of an empty tensor are as large as the whole
        return None
    try:
        cuts = [held.layout.shard_grid(len(shape)) for held in stages]
    except LayoutError:
        return None
    if all(cut.is_whole for cut in cuts):
        return None
    if any(entry.shape != shape for held in stages for _, entry in held.shards):
        return False
    if known is not None:
        return True if known == shape else False if joined_shape(stages[0]) == known else None
    uneven = [cut.uneven for cut in cuts if len(cut.uneven) > 1]
    if uneven:
        return any(sum(lengths) == shape[0] for lengths in uneven)
    return True if len({cut.pieces for cut in cuts}) > 1 else None


def joined_shape(held: StageShards) -> Shape | None:
    """The whole shape that the strategy makes of a stage's shards; None if the shards do not fit the strategy."""
    try:
        return held.layout.shard_grid(len(held.entry.shape)).whole_shape(held.shards[0][0], held.entry.shape)
    except LayoutError:
        return None


def known_shape(stages: Sequence[StageShards], target: Strategy | None, called: Mapping[str, str]) -> Shape | None:
    """The shape of the whole tensor, if a JSON strategy of either side tells it."""
    for held in stages:
        if held.layout.tensor_shape is not None:
            return held.layout.tensor_shape
    return _target_shape(called.get(stages[0].entry.name), target)


def _target_shape(name: str | None, target: Strategy | None) -> Shape | None:
    if target is not None and name is not None:
        for stage in target.stages_with(name):
            if stage.layouts[name].tensor_shape is not None:
                return stage.layouts[name].tensor_shape
    return None


def source_copy(held: StageShards, integrated: bool) -> SourceCopy:
    """A stage's copy of a parameter; `integrated`: its ranks were saved whole.

    Raises:
        LayoutError: it cannot be cut, but the strategy does.
    """
    layout = held.layout
    if integrated or held.entry.dtype in (TEXT, MAP_TENSOR):
        check_opaque(held.entry.dtype, layout)
        layout = whole_layout(len(held.entry.shape), layout.device_count)
    return SourceCopy(held.first_rank, layout, held.missing_ranks)


def check_opaque(dtype: DType, layout: ParameterLayout) -> None:
    """Makes sure that no layout cuts what has no elements to cut.

    Raises:
        LayoutError: it does.
    """
    if dtype not in (TEXT, MAP_TENSOR):
        return
    if any(layout.tensor_map) or layout.optimizer_shard_size or layout.param_split_shape:
        raise LayoutError(f"a {dtype} cannot be cut, but the strategy does")


def check_same_whole(held: StageShards, shape: Shape, other: StageShards, integrated: bool) -> None:
    """Makes sure that another stage's shards make the same whole of `shape`.

    Raises:
        LayoutError: they do not.
    """
    entry = other.entry
    layout = whole_layout(len(entry.shape), other.layout.device_count) if integrated else other.layout
    if held.entry.dtype in (TEXT, MAP_TENSOR):
        return
    whole = layout.shard_grid(len(entry.shape)).whole_shape(other.shards[0][0], entry.shape)
    if whole != shape or entry.dtype is not held.entry.dtype:
        raise LayoutError(
            f"stages {held.stage.stage} and {other.stage.stage} share it, but it is {held.entry.dtype} {list(shape)} "
            f"in one and {entry.dtype} {list(whole)} in the other"
        )

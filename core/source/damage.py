"""Recovery of lost ranks: whether other ranks hold their slices, and which of them substitute for which."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import DamagePolicy
from reshard.core.errors import InputError, StorageError
from reshard.core.plan.matching import distinct_sources, lost_text, match_parameters
from reshard.core.plan.model import ParameterMatch, PlanInputs, SourceTensor
from reshard.core.plan.ownership import NO_RANK, CopyShards, SourceCopies, SourceCopy, common_units
from reshard.core.plan.recipes import excluded_names
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout
from reshard.core.text.options import option

_MAX_BOXES = 3
_MAX_RANKS = 8


class Substitute(Summary):
    """A rank whose slices replace those of a lost rank.

    Attributes:
        rank: the lost source rank.
        why: what is wrong with its file.
        stand_in: the source rank that substitutes for it.
        slices: number of slices taken from there, whole or in part.
    """

    rank: int
    why: str
    stand_in: int
    slices: int


def damage_policy(
    source: Strategy | None,
    target: Strategy | None,
    *,
    recovers: bool = False,
    faulty: tuple[int, ...] = (),
    allow_missing: Sequence[str] = (),
    integrated_save: IntegratedSave = IntegratedSave.AUTO,
    changes: Changes = NO_CHANGES,
) -> DamagePolicy:
    """The policy for a source's ranks without a usable file; refusals end with `recovery_advice`.

    `allow_missing` and `integrated_save` only shape the advice; `changes` say which files are needed, too.
    """

    def excluded(names: Sequence[str]) -> Collection[str]:
        return excluded_names(names, changes, set())

    if source is None:
        return DamagePolicy(recovers, faulty, excluded=excluded)  # of one rank, for which no other can substitute

    def advice(catalog: CheckpointCatalog) -> str:
        try:
            match = match_parameters(
                PlanInputs(
                    catalog,
                    source,
                    target,
                    catalog.format,
                    allow_missing=tuple(allow_missing),
                    integrated_save=integrated_save,
                    changes=changes,
                )
            )
        except (InputError, StorageError):
            return ""
        return recovery_advice(catalog, match)

    return DamagePolicy(recovers, faulty, source, advice, excluded)


def recovery_advice(catalog: CheckpointCatalog, match: ParameterMatch) -> str:
    """A sentence: whether recovering would succeed for a catalog with lost ranks."""
    lost = rank_names(catalog.lost, _MAX_RANKS)
    if not match.lost:
        return f"{option('recover', True)} would succeed: what {lost} should hold is on other ranks as well"
    return (
        f"{option('recover', True)} would not be enough: not all of what {lost} should hold is on other ranks as well "
        f"({listed([*map(lost_text, match.lost)], _MAX_BOXES, '; ')}). "
        "'reshard recover' lists it, and names older steps"
    )


def substitutes(catalog: CheckpointCatalog, source: Strategy | None, match: ParameterMatch) -> tuple[Substitute, ...]:
    """The substitutes for lost ranks, by rank."""
    if source is None or not catalog.lost:
        return ()
    counts: Counter[tuple[int, int]] = Counter()
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        lost = [rank for rank in ranks if rank in catalog.lost]
        if not lost:
            continue
        for alike in _alike_parameters(catalog, stage, ranks, match):
            own = _own_copy(alike[0], stage, ranks, match.integrated)
            for pair in _substitutions(alike[0], own, lost):
                counts[pair] += len(alike)
    return tuple(
        Substitute(rank=rank, why=catalog.lost[rank], stand_in=stand_in, slices=slices)
        for (rank, stand_in), slices in sorted(counts.items())
    )


def _alike_parameters(
    catalog: CheckpointCatalog, stage: StageStrategy, ranks: range, match: ParameterMatch
) -> Iterable[list[SourceTensor]]:
    """Parameters whose slices a conversion would read from a stage if no rank were lost, grouped by their geometry."""
    left = catalog.indexes(ranks)
    alike: dict[object, list[SourceTensor]] = {}
    for parameter in distinct_sources(match.resharded):
        layout = stage.layouts.get(parameter.name)
        if layout is None:
            continue
        is_read = any(copy.first_rank == ranks.start for copy in parameter.copies)
        # a stage after the one that is read is not missed; one before it is, if none of its files has the parameter
        is_missed = ranks.start < parameter.copies[0].first_rank and not any(
            parameter.name in index.entries for index in left
        )
        if is_read or is_missed:
            is_uneven = any(copy.layout.is_uneven for copy in parameter.copies)
            known = parameter.shape if is_uneven else len(parameter.shape)
            alike.setdefault((layout, parameter.copies, known), []).append(parameter)
    return alike.values()


def _own_copy(parameter: SourceTensor, stage: StageStrategy, ranks: range, integrated: bool) -> SourceCopy:
    """A stage's own copy of a parameter, even if it is not read."""
    for copy in parameter.copies:
        if copy.first_rank == ranks.start:
            return copy
    if integrated or parameter.dtype in (TEXT, MAP_TENSOR):
        return SourceCopy(ranks.start, whole_layout(len(parameter.shape), len(ranks)))
    return SourceCopy(ranks.start, stage.layouts[parameter.name])


def _substitutions(parameter: SourceTensor, own: SourceCopy, lost: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(lost rank, rank that its slice or a part of it is taken from), each pair once."""
    grids = [copy.layout.shard_grid(len(parameter.shape)) for copy in (own, *parameter.copies)]
    units = common_units(parameter.shape, grids)
    shards, copies = CopyShards(own, units), SourceCopies(parameter.copies, units)
    for rank in lost:
        box = shards.boxes.box(shards.grid.cell_of(rank - own.first_rank))
        for stand_in in {part.rank for part in copies.parts(box) if part.rank != NO_RANK and part.box.size}:
            yield rank, stand_in

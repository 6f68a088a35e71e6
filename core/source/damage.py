"""Sources that lack something, told from their strategy: redundancy that was removed, files cut off, what stands in.

Removing redundancy leaves n copies of every slice, n being the same for all: of a slice that only k < n ranks share, k.
A `.ckpt` says nothing of it. A file that was cut off exactly between two entries can be read to its end, too; but then
the slices that it lost have fewer copies than others have, and what it holds is the beginning of what another file of
its stage holds. A file of which both is true is taken for damaged. So is one that holds the beginning of another, and
lacks the CRC that the other has.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reshard.core.checkpoint.catalog.damage_policy import DamagePolicy
from reshard.core.checkpoint.catalog.records import CatalogRecord, CheckpointCatalog
from reshard.core.errors import InputError, LayoutError, StorageError
from reshard.core.plan.matching import (
    ParameterMatch,
    SourceTensor,
    distinct_sources,
    lost_text,
    match_parameters,
)
from reshard.core.plan.ownership import NO_RANK, CopyGrid, SourceCopies, SourceCopy, common_units
from reshard.core.request.changes import NO_CHANGES, Changes
from reshard.core.request.conversion import IntegratedSave
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed, rank_names
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout
from reshard.core.tensor.slices import Shape

_MOST_TOLD = 3
TELLING_STEPS = ("global_step", "epoch_num", "step_num")
"""Parameters that MindSpore's training saves on every rank, the same on all."""


@dataclass(frozen=True)
class Substitution:
    """That one rank's file was not used, and another's was in its place.

    Attributes:
        rank: the rank whose file was not used.
        why: what is wrong with it.
        stand_in: the rank that stood in for it.
        slices: how many of the former's slices, whole or in part, were taken from the latter.
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
    """What is to happen to a source of a strategy where ranks have no usable file.

    `allow_missing`, `integrated_save` and `changes` only shape the advice.
    """
    if source is None:
        return DamagePolicy(recovers, faulty)  # one rank, in whose place no other can stand

    def given_to(rank: int) -> Collection[str]:
        return source.stage_of(rank).layouts.keys()

    def torn(records: Mapping[int, CatalogRecord]) -> Mapping[int, str]:
        return torn_ranks(records, source)

    def advice(catalog: CheckpointCatalog) -> str:
        try:
            match = match_parameters(
                catalog, source, target, allow_missing=allow_missing, integrated_save=integrated_save, changes=changes
            )
        except (InputError, StorageError):
            return ""  # it cannot be told
        return recovery_advice(catalog, match)

    return DamagePolicy(recovers, faulty, given_to, torn, advice)


def recovery_advice(catalog: CheckpointCatalog, match: ParameterMatch) -> str:
    """Whether `--recover` would do for a catalog with lost ranks, in a sentence."""
    lost = rank_names(catalog.lost, 8)
    if not match.lost:
        return f"--recover would do: what {lost} should hold is on other ranks as well"
    told = "; ".join(map(lost_text, match.lost[:_MOST_TOLD]))
    more = f"; and {len(match.lost) - _MOST_TOLD} more" if len(match.lost) > _MOST_TOLD else ""
    return (
        f"--recover would not do: not all of what {lost} should hold is on other ranks as well ({told}{more}). "
        "'reshard recover' lists it, and names older steps"
    )


def torn_ranks(records: Mapping[int, CatalogRecord], source: Strategy) -> dict[int, str]:
    """The ranks whose files seem to have been cut off between two entries, and why it seems so."""
    suspects: dict[int, CatalogRecord] = {}
    for stage in source.stages:
        here = [records[rank] for rank in source.stage_ranks(stage) if rank in records]
        suspects |= _beginnings_of_others(here)
    if not suspects:
        return {}
    uniform = _copies_are_uniform(records, source)
    return {
        rank: (
            f"seems to have been cut off after {counted(len(records[rank].index.entries), 'parameter')}, with which "
            f"rank_{other.rank}'s file ({other.location}) begins as well, which has {len(other.index.entries)}"
        )
        for rank, other in suspects.items()
        if not uniform or (other.index.has_crc and not records[rank].index.has_crc)
    }


def substitutions(catalog: CheckpointCatalog, source: Strategy | None, match: ParameterMatch) -> list[Substitution]:
    """Which rank stands in for which lost one, by how many slices; by rank."""
    if source is None or not catalog.lost:
        return []
    struck = [stage for stage in source.stages if any(rank in catalog.lost for rank in source.stage_ranks(stage))]
    counts: Counter[tuple[int, int]] = Counter()
    for stage in struck:
        ranks = source.stage_ranks(stage)
        lost = [rank for rank in ranks if rank in catalog.lost]
        left = {id(catalog.records[rank].index): catalog.records[rank].index for rank in ranks if rank not in lost}
        alike: dict[object, list[SourceTensor]] = {}
        for parameter in distinct_sources(match.resharded):
            layout = stage.layouts.get(parameter.name)
            is_read = any(copy.first_rank == ranks.start for copy in parameter.copies)
            # a stage behind the one that is read is not missed; one before it is, if it has nothing any more
            missed = ranks.start < parameter.copies[0].first_rank and not any(
                parameter.name in index.entries for index in left.values()
            )
            if layout is not None and (is_read or missed):
                alike.setdefault((layout, _geometry(parameter)), []).append(parameter)
        for parameters in alike.values():
            own = _own_copy(parameters[0], stage, ranks, match.integrated)
            for rank, stand_in in _stand_ins(parameters[0], own, lost):
                counts[rank, stand_in] += len(parameters)
    return [
        Substitution(rank, catalog.lost[rank], stand_in, slices) for (rank, stand_in), slices in sorted(counts.items())
    ]


def scattered(catalog: CheckpointCatalog, match: ParameterMatch) -> list[SourceTensor]:
    """Parameters that ranks with a usable file lack all the same, and that are taken from ranks that have them."""
    lost = frozenset(catalog.lost)
    return [source for source in distinct_sources(match.resharded) if source.copies[0].missing_ranks - lost]


def unsaved(source: Strategy | None, target: Strategy | None, match: ParameterMatch) -> list[str]:
    """Of what is joined to whole tensors, names in the source's strategy that no file holds, nor lost ones held."""
    if source is None or target is not None:
        return []
    found = {moved.name for moved in distinct_sources(match.resharded)} | {lost.name for lost in match.lost}
    return sorted(source.parameters - found - match.excluded.keys())


def not_carried_everywhere(catalog: CheckpointCatalog, source: Strategy, match: ParameterMatch) -> dict[str, list[int]]:
    """What no strategy knows and not all ranks of a stage have -> its ranks with a usable file that lacks it.

    Redundancy is not removed of such parameters: the files may have been cut off.
    """
    lacking: dict[str, list[int]] = {}
    for stage in source.stages:
        here = catalog.records.keys() & set(source.stage_ranks(stage))
        for carried in match.passed_through:
            if carried.owners & here and here - carried.owners:
                lacking.setdefault(carried.source_name, []).extend(sorted(here - carried.owners))
    return lacking


def mixed_steps(catalog: CheckpointCatalog, match: ParameterMatch) -> Iterator[str]:
    """Sentences that say that ranks were saved at different steps, whatever the names of their files are."""
    # what is left out tells all the same
    unknown = {carried.source_name for carried in match.passed_through} | match.excluded.keys()
    for name in TELLING_STEPS:
        if name not in unknown:
            continue
        ranks_of: dict[str | None, list[int]] = {}
        for rank, record in catalog.records.items():
            if name in record.index.entries:
                ranks_of.setdefault(carried_content(catalog, rank, name), []).append(rank)
        if len(ranks_of) > 1:
            told = [rank_names(ranks, 4) for ranks in ranks_of.values()]
            where = ", another on ".join(told[:4])
            yield f"the source's files are of DIFFERENT STEPS, says their {name!r}: one on {where}"


def carried_content(catalog: CheckpointCatalog, rank: int, name: str) -> str | None:
    """What tells a rank's content of a carried parameter from others': a digest, or its text; None if nothing does."""
    record = catalog.records[rank]
    return record.digests.get(name) or record.index.entries[name].text


def _geometry(parameter: SourceTensor) -> object:
    uneven = any(copy.layout.param_split_shape for copy in parameter.copies)
    return parameter.copies, len(parameter.shape), parameter.shape[0] if uneven else None


def _own_copy(parameter: SourceTensor, stage: StageStrategy, ranks: range, integrated: bool) -> SourceCopy:
    """A stage's own copy of a parameter, whether it is read or not."""
    for copy in parameter.copies:
        if copy.first_rank == ranks.start:
            return copy
    if integrated or parameter.dtype in (TEXT, MAP_TENSOR):
        return SourceCopy(ranks.start, whole_layout(len(parameter.shape), len(ranks)))
    return SourceCopy(ranks.start, stage.layouts[parameter.name])


def _stand_ins(parameter: SourceTensor, own: SourceCopy, lost: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(lost rank, rank that its slice or a part of it is taken from), each pair once."""
    cuts = [copy.layout.shard_grid(len(parameter.shape)) for copy in (own, *parameter.copies)]
    units = common_units(parameter.shape, cuts)
    grid, copies = CopyGrid(own, units), SourceCopies(parameter.copies, units)
    for rank in lost:
        box = grid.box(grid.cut.cell_of(rank - own.first_rank))
        for stand_in in {part.rank for part in copies.parts(box) if part.rank != NO_RANK and part.box.size}:
            yield rank, stand_in


def _beginnings_of_others(records: list[CatalogRecord]) -> dict[int, CatalogRecord]:
    """Ranks whose files hold the first entries of another's, and no others -> that other."""
    by_names: dict[tuple[str, ...], list[CatalogRecord]] = {}
    known: dict[int, tuple[str, ...]] = {}
    for record in records:
        if not record.index.redundancy_removed:  # which says itself why it lacks something
            names = known.setdefault(id(record.index), tuple(record.index.entries))
            by_names.setdefault(names, []).append(record)
    # in this order what begins with a name list comes right behind it
    ordered = sorted(by_names)
    found = {}
    for names, following in pairwise(ordered):
        if following[: len(names)] == names:
            found.update({record.rank: by_names[following][0] for record in by_names[names]})
    return found


def _copies_are_uniform(records: Mapping[int, CatalogRecord], source: Strategy) -> bool:
    """Whether all slices have n copies, or as many as there are ranks to share them, for one n."""
    most, fewest = 1, math.inf
    for stage in source.stages:
        ranks = source.stage_ranks(stage)
        here = {rank: records[rank].index for rank in ranks if rank in records}
        for name, layout in stage.layouts.items():
            holding = {rank for rank, index in here.items() if name in index.entries}
            if not holding:
                continue
            shape: Shape = here[min(holding)].entries[name].shape
            try:
                cells = layout.shard_grid(len(shape)).owners.values()
            except LayoutError:
                continue  # told by the plan, with the parameter's name
            for cell in cells:
                count = sum(ranks.start + rank in holding for rank in cell)
                without_file = sum(ranks.start + rank not in here for rank in cell)
                most = max(most, count)
                if count + without_file < len(cell):
                    fewest = min(fewest, count + without_file)
    return most <= fewest


class Substitute(Summary):
    """That a rank's file was not used, and another's was in its place.

    Attributes:
        rank: source rank whose file was not used.
        why: what is wrong with it.
        stand_in: source rank that stood in for it.
        slices: how many of its slices, whole or in part, were taken from there.
    """

    rank: int
    why: str
    stand_in: int
    slices: int


def unsaved_text(names: Sequence[str]) -> str:
    """Which parameters of the source's strategy no file holds, in a sentence."""
    return f"in the source's strategy, but in NO file, and so not in the result: {listed(names)}"

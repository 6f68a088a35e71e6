"""What to read and where it goes: the plan of a conversion.

Parameters that are cut alike (the same cut on the source's side and the same on the target's) form a *layout class*.
A class has one geometry, worked out once in *units*: along each axis the tensor is divided into as many units as both
cuts need, so that every border of either cut lies between two units. A parameter's boxes are the class's boxes times
its elements per unit. That keeps a plan small: thousands of ranks and parameters have a handful of classes, and the
reads of one rank are derived from them when the rank is worked on.

Both cuts are grids, so along each axis the source's cells that overlap a target cell are neighbors which share it
without gap or overlap; their products fill the target cell exactly once. `reshard.core.plan.ownership` ensures the
former, and that every part has a holder, which is all that is needed.

Parameters that are split, joined or transposed have classes of their own, in elements: `reshard.core.plan.geometry`.

Nothing here reads or writes; the catalog tells what is where.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.checkpoint.model import CheckpointFormat, TensorEntry
from reshard.core.errors import PlanError
from reshard.core.plan.appended import AppendedParameter, redundancy_mark
from reshard.core.plan.deduplication import SharedSlices, choose_keepers
from reshard.core.plan.geometry import ComposedPair, PlacedPart
from reshard.core.plan.matching import (
    ParameterMatch,
    PassedThroughParameter,
    ReshardedParameter,
    SourceTensor,
    check_nothing_lost,
    match_parameters,
)
from reshard.core.plan.ownership import NO_RANK, ShardPart, SourceCopies, SourceCopy, common_units, grid_of
from reshard.core.plan.unified import UnifiedLayout, unified_match
from reshard.core.request.changes import NO_CHANGES, Changes
from reshard.core.request.conversion import IntegratedSave
from reshard.core.request.info_texts import InfoValue
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.layout import ParameterLayout, ShardGrid
from reshard.core.tensor.slices import Shape, TensorSlice


@dataclass(frozen=True)
class PlanInputs:
    """Everything that decides what the target will contain.

    Attributes:
        catalog: the source checkpoint.
        source_strategy: how it is cut; None: not at all, one rank.
        target_strategy: how the target is to be cut; None: not at all, one rank.
        format: kind of the target's files.
        prefix: name of the target's files before the rank's number.
        fail_on_unmatched: whether a parameter without a place in the target's strategy is an error; else it is dropped.
        allow_missing: shell-style patterns of parameters that the target may lack.
        integrated_save: whether every source rank holds whole tensors, whatever its strategy cuts.
        shared_parameters: whose copy is taken of a parameter that several source stages hold: `first`, the lowest's, or
            a stage's number.
        replicas: how many copies of each slice the target's ranks keep; 0: every rank has all of its slices.
        append_info: names and values that every target file gets, in place of the source's.
        write_crc: whether the target's files carry a CRC.
        encryption: how the target's files are encrypted, MindSpore's `enc_mode`; empty: not at all.
        changes: which parameters are taken, and what becomes of them besides being cut anew.
        unified: the target is whole tensors in a few files, not a file for each rank; None: it is ranks' files.
    """

    catalog: CheckpointCatalog
    source_strategy: Strategy | None
    target_strategy: Strategy | None
    format: CheckpointFormat
    prefix: str = "checkpoint_"
    fail_on_unmatched: bool = False
    allow_missing: tuple[str, ...] = ()
    integrated_save: IntegratedSave = IntegratedSave.AUTO
    shared_parameters: str = "first"
    replicas: int = 0
    append_info: tuple[tuple[str, InfoValue], ...] = ()
    write_crc: bool = False
    encryption: str = ""
    changes: Changes = NO_CHANGES
    unified: UnifiedLayout | None = None


@dataclass(frozen=True)
class ReadItem:
    """A box that a target shard takes from a source shard.

    Attributes:
        source_rank: global rank of the source file.
        source_box: the box in the source shard's coordinates.
        target_box: the same elements in the target shard's coordinates.
        source: number of the source parameter, among the parameter plan's.
        axes: target axis i is source axis `axes[i]`; None: the order is the same.
    """

    source_rank: int
    source_box: TensorSlice
    target_box: TensorSlice
    source: int = 0
    axes: Shape | None = None


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter of one target rank.

    Attributes:
        name: the parameter's name.
        dtype: element type.
        box: the target shard as a box of the whole tensor.
        reads: boxes that fill the target shard exactly once.
        sources: the source parameters that the reads are of, by number.
        appended: what it is instead, if it does not come from the source.
    """

    name: str
    dtype: DType
    box: TensorSlice
    reads: tuple[ReadItem, ...]
    sources: tuple[SourceTensor, ...] = ()
    appended: AppendedParameter | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the target shard."""
        return self.box.size * self.dtype.itemsize


@dataclass(frozen=True)
class RankPlan:
    """One target rank: its parameters in the order of its file, and the rank it has the same content as.

    `copy_of` is the lowest rank with the same content, None if that is the rank itself.
    """

    rank: int
    parameters: tuple[ParameterPlan, ...]
    copy_of: int | None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its shards."""
        return sum(parameter.size_bytes for parameter in self.parameters)

    @cached_property
    def source_ranks(self) -> tuple[int, ...]:
        """Source ranks whose files are read, in ascending order."""
        return tuple(sorted({read.source_rank for parameter in self.parameters for read in parameter.reads}))


class CutPair:
    """The geometry of a layout class: a source cut against a target cut, in units.

    `copies` are the source's; all but the first are there for the cells that the first has no holder of.
    """

    def __init__(self, copies: Sequence[SourceCopy], target: ShardGrid, shape: Shape) -> None:
        self.target = target
        self.unit_counts = common_units(shape, [*(copy.layout.shard_grid(len(shape)) for copy in copies), target])
        self._copies = SourceCopies(copies, self.unit_counts)
        self._target_grid = grid_of(target, self.unit_counts)
        self._parts_of: dict[Shape, tuple[ShardPart, ...]] = {}

    def units_of(self, shape: Shape) -> Shape:
        """Elements per unit along each axis of a tensor of the class."""
        return tuple(length // count if count else 0 for length, count in zip(shape, self.unit_counts, strict=True))

    def target_box(self, cell: Shape) -> TensorSlice:
        """A cell of the target's grid, in units."""
        return self._target_grid.box(cell)

    @cached_property
    def target_sizes(self) -> dict[Shape, int]:
        """How many units each cell of the target's grid has."""
        return {cell: self.target_box(cell).size for cell in self.target.owners}

    def parts(self, target_cell: Shape) -> Sequence[ShardPart]:
        """What fills a target cell, each part with the source rank that it is read from, in units."""
        known = self._parts_of.get(target_cell)
        if known is None:
            known = self._parts_of[target_cell] = tuple(self._copies.parts(self.target_box(target_cell)))
        return known


@dataclass(frozen=True)
class LayoutClass:
    """Parameters of one target stage that are cut alike, and where their source is."""

    pair: CutPair | ComposedPair
    source_first_rank: int
    parameters: tuple[ReshardedParameter, ...]
    kept: np.ndarray | None = field(default=None, compare=False)
    """Bool array of shape (parameters, stage ranks): which ranks keep their shards; None: all do."""

    @cached_property
    def bytes_per_unit(self) -> np.ndarray:
        """Int64 array of shape (stage ranks,): bytes of one unit of every parameter of the class that a rank keeps."""
        return self._sum_of_kept(self._bytes_per_unit(lambda parameter: parameter.dtype))

    @cached_property
    def needed_bytes(self) -> np.ndarray:
        """Int64 array of shape (stage ranks,): bytes of the source that what a rank keeps of the class is made from."""
        cells = self.pair.target.cell_numbers
        if isinstance(self.pair, ComposedPair):
            itemsizes = [source.dtype.itemsize for source in self.parameters[0].sources]
            per_cell = np.array(self.pair.needed_bytes(itemsizes), dtype=np.int64)
            counts = self._sum_of_kept(np.ones(len(self.parameters), dtype=np.int64))
            return np.asarray(per_cell[cells] * counts)
        sizes = np.array(list(self.pair.target_sizes.values()), dtype=np.int64)
        unit_bytes = self._sum_of_kept(self._bytes_per_unit(lambda parameter: parameter.sources[0].dtype))
        return np.asarray(sizes[cells] * unit_bytes)

    def _sum_of_kept(self, each: np.ndarray) -> np.ndarray:
        """Int64 array of shape (stage ranks,): the sum over the parameters that a rank keeps, of one number of each."""
        return np.full(self.pair.target.device_count, each.sum()) if self.kept is None else each @ self.kept

    def keeps_any(self, stage_rank: int) -> bool:
        """Whether a target rank keeps its shard of any parameter of the class."""
        return self.kept is None or bool(self.kept[:, stage_rank].any())

    def slices(self) -> Iterator[SharedSlices]:
        """The target's slices of each parameter, and who shares them."""
        target = self.pair.target
        owners = np.array(list(target.owners.values()))
        units = np.array([self.pair.target_box(cell).size for cell in target.owners])
        for unit_bytes in self._bytes_per_unit(lambda parameter: parameter.dtype):
            yield SharedSlices(owners, units * unit_bytes)

    def _bytes_per_unit(self, dtype_of: Callable[[ReshardedParameter], DType]) -> np.ndarray:
        """Int64 array of shape (parameters,): bytes of one unit of each, in a dtype of it."""
        sizes = [
            dtype_of(parameter).itemsize * math.prod(self.pair.units_of(parameter.shape))
            for parameter in self.parameters
        ]
        return np.array(sizes, dtype=np.int64)

    def plans(self, stage_rank: int, *, with_redundancy: bool = False) -> Iterator[ParameterPlan]:
        """What one target rank keeps of every parameter of the class; parameters of one shape share their boxes.

        `with_redundancy`: what it shares with others counts, whether it keeps that or not.
        """
        kept = None if with_redundancy else self.kept
        by_shape: dict[Shape, tuple[TensorSlice, tuple[ReadItem, ...]]] = {}
        for number, parameter in enumerate(self.parameters):
            if kept is not None and not kept[number, stage_rank]:
                continue
            boxes = by_shape.get(parameter.shape)
            if boxes is None:
                boxes = by_shape[parameter.shape] = _boxes(self, parameter.shape, stage_rank)
            yield ParameterPlan(parameter.name, parameter.dtype, *boxes, parameter.sources)

    @cached_property
    def source_ranks_by_cell(self) -> dict[Shape, int]:
        """Target cell -> the source ranks it needs, as a bit mask."""
        masks = {}
        for cell in self.pair.target.owners:
            mask = 0
            for part in self.pair.parts(cell):
                if part.rank == NO_RANK:
                    raise PlanError(f"source box {part.box} (in units) of {self.parameters[0].name!r} is on no rank")
                mask |= 1 << part.rank
            masks[cell] = mask
        return masks

    def source_masks(self, mask_bytes: int) -> np.ndarray:
        """Uint8 array of shape (target cells, `mask_bytes`): the same masks, as little-endian bits."""
        joined = b"".join(mask.to_bytes(mask_bytes, "little") for mask in self.source_ranks_by_cell.values())
        return np.frombuffer(joined, np.uint8).reshape(-1, mask_bytes)


@dataclass(frozen=True)
class TargetStage:
    """One pipeline stage of the target: its ranks and its layout classes."""

    number: int
    ranks: range
    classes: tuple[LayoutClass, ...]
    order: Mapping[str, int]
    """Position of each parameter in the target's files."""


@dataclass(frozen=True)
class RankTotals:
    """The size of one target rank's work.

    Attributes:
        rank: global rank.
        shard_bytes: bytes of all its shards.
        needed_bytes: bytes of the source that they are made from, which are read unless it is a copy.
        source_ranks: source ranks whose files it needs.
        copy_of: the lower rank with the same content, if there is one.
    """

    rank: int
    shard_bytes: int
    needed_bytes: int
    source_ranks: tuple[int, ...]
    copy_of: int | None


class ConversionPlan:
    """How every target rank is made. Immutable; what is expensive is worked out once, when first asked for."""

    def __init__(self, inputs: PlanInputs, match: ParameterMatch) -> None:
        self.inputs = inputs
        self.match = match
        self.stages = tuple(
            _target_stages(_stage_ranks(inputs.target_strategy, match), match.resharded, inputs.replicas)
        )

    @property
    def target_ranks(self) -> range:
        """All ranks of the target."""
        return range(self.stages[0].ranks.start, self.stages[-1].ranks.stop)

    @property
    def first_ranks(self) -> tuple[int, ...]:
        """The first rank of each of the target's stages."""
        return tuple(stage.ranks.start for stage in self.stages)

    @property
    def part(self) -> int | None:
        """The stage whose part of the target this is; None if it is all of it."""
        return self.match.part

    def with_notes(self, *notes: str) -> "ConversionPlan":
        """The plan with more notes, in front of its own."""
        if not notes:
            return self
        catalog = replace(self.inputs.catalog, notes=(*notes, *self.inputs.catalog.notes))
        return ConversionPlan(replace(self.inputs, catalog=catalog), self.match)

    def file_name(self, rank: int) -> str:
        """The path of a target rank's file below the target."""
        if self.match.files:
            return self.match.files[rank]
        part = "" if self.part is None else f"_part{self.part}"
        return f"rank_{rank}/{self.inputs.prefix}{rank}{part}.{self.inputs.format}"

    def rank_plan(self, rank: int, *, with_redundancy: bool = False) -> RankPlan:
        """The plan of one target rank: what it keeps if redundancy is removed, or all `with_redundancy`.

        Raises:
            PlanError: the target has no such rank.
        """
        stage = self._stage_of(rank)
        parameters = [
            parameter_plan
            for layout_class in stage.classes
            for parameter_plan in layout_class.plans(rank - stage.ranks.start, with_redundancy=with_redundancy)
        ]
        parameters.sort(key=lambda parameter: stage.order[parameter.name])
        parameters.extend(self._carried_plan(stage, carried, rank) for carried in self.match.passed_through)
        parameters.extend(
            ParameterPlan(each.name, each.dtype, TensorSlice.whole(each.shape), (), appended=each)
            for each in self._appended(rank)
        )
        return RankPlan(rank, tuple(parameters), self.copies.get(rank))

    def source_entry(self, rank: int, name: str) -> TensorEntry:
        """A source parameter in a source rank's file."""
        return self.inputs.catalog.records[rank].index.entries[name]

    @cached_property
    def transposes(self) -> bool:
        """Whether parameters are read with their axes in another order."""
        return any(piece.is_transposed for parameter in self.match.resharded for piece in parameter.pieces)

    @cached_property
    def copies(self) -> dict[int, int]:
        """Target ranks with the same content as a lower one -> the lowest such rank."""
        copies = {}
        for stage in self.stages:
            primaries: dict[bytes, int] = {}
            keys = self._content_keys(stage)
            for rank, key in zip(stage.ranks, keys, strict=True):
                primary = primaries.setdefault(key.tobytes(), rank)
                if primary != rank:
                    copies[rank] = primary
        return copies

    @cached_property
    def totals(self) -> tuple[RankTotals, ...]:
        """The size of every target rank's work, in the order of the ranks."""
        return tuple(totals for stage in self.stages for totals in self._totals_of(stage))

    @property
    def read_bytes(self) -> int:
        """Bytes of source shards that are needed, each as often as it is needed; copies need none."""
        return sum(totals.needed_bytes for totals in self.totals if totals.copy_of is None)

    @property
    def written_bytes(self) -> int:
        """Bytes of all target shards, headers apart."""
        return sum(totals.shard_bytes for totals in self.totals)

    @property
    def layout_class_count(self) -> int:
        """Distinct pairs of cuts, summed over the target's stages."""
        return sum(len(stage.classes) for stage in self.stages)

    def check_coverage(self) -> None:
        """Proves that every element of every target shard is filled exactly once, class by class.

        Raises:
            PlanError: it is not.
        """
        for stage in self.stages:
            for layout_class in stage.classes:
                _ = layout_class.source_ranks_by_cell  # looks up a holder for every overlap
                for cell in layout_class.pair.target.owners:
                    filled = sum(part.box.size for part in layout_class.pair.parts(cell))
                    if filled != layout_class.pair.target_box(cell).size:
                        raise PlanError(f"the boxes for {layout_class.parameters[0].name!r} do not fill its shard")

    def leaves_nothing(self) -> bool:
        """Whether some target ranks keep nothing: there are fewer slices than ranks, and redundancy is removed."""
        if not self.inputs.replicas or self.match.passed_through or self.match.appended:
            return False
        return any(
            not any(layout_class.keeps_any(stage_rank) for layout_class in stage.classes)
            for stage in self.stages
            for stage_rank in range(len(stage.ranks))
        )

    def _stage_of(self, rank: int) -> TargetStage:
        for stage in self.stages:
            if rank in stage.ranks:
                return stage
        raise PlanError(f"the target has ranks {self.target_ranks.start} to {self.target_ranks.stop - 1}, not {rank}")

    def carried_source(self, carried: PassedThroughParameter, rank: int) -> int:
        """The source rank from which a target rank gets a parameter that no strategy knows."""
        return self._carried_source(self._stage_of(rank), carried, rank)

    def _appended(self, rank: int) -> tuple[AppendedParameter, ...]:
        """What a target rank's file gets besides: each rank's, but only one file of a unified target."""
        return self.match.appended if not self.match.files or rank == self.target_ranks[-1] else ()

    def _carried_source(self, stage: TargetStage, carried: PassedThroughParameter, rank: int) -> int:
        """The source rank from which a target rank gets a parameter that no strategy knows."""
        strategy = self.inputs.source_strategy
        source_ranks = strategy.ranks if strategy else range(1)
        devices = strategy.devices_per_stage if strategy else 1
        feeding = [layout_class.source_first_rank for layout_class in stage.classes]
        first_rank = min(feeding, default=source_ranks.start)
        # a parameter that only the target's strategy knows may be read from any rank: count from its stage's first
        first_rank -= (first_rank - source_ranks.start) % devices
        wanted = first_rank + (rank - stage.ranks.start) % devices
        return wanted if wanted in carried.owners else min(carried.owners)

    def _carried_plan(self, stage: TargetStage, carried: PassedThroughParameter, rank: int) -> ParameterPlan:
        source_rank = self._carried_source(stage, carried, rank)
        entry = self.source_entry(source_rank, carried.source_name)
        whole = TensorSlice.whole(entry.shape)
        source = SourceTensor(carried.source_name, entry.dtype, entry.shape, ())
        return ParameterPlan(carried.name, carried.dtype, whole, (ReadItem(source_rank, whole, whole),), (source,))

    def _content_keys(self, stage: TargetStage) -> np.ndarray:
        """An int array of shape (ranks, …): rows are equal where the ranks' contents are known to be."""
        columns = [layout_class.pair.target.cells for layout_class in stage.classes]
        kept = [layout_class.kept for layout_class in stage.classes if layout_class.kept is not None]
        columns.extend(map(_kept_column, kept))
        columns.extend(self._carried_column(stage, carried) for carried in self.match.passed_through)
        if not columns:
            return np.zeros((len(stage.ranks), 1), dtype=np.int64)
        return np.ascontiguousarray(np.concatenate(columns, axis=1))

    def _carried_column(self, stage: TargetStage, carried: PassedThroughParameter) -> np.ndarray:
        numbers: dict[object, int] = {}
        column = []
        for rank in stage.ranks:
            source_rank = self._carried_source(stage, carried, rank)
            record = self.inputs.catalog.records[source_rank]
            entry = record.index.entries[carried.source_name]
            # a digest tells equal contents; without one only the same file is known to be equal
            content = record.digests.get(carried.source_name) or (entry.text if entry.text is not None else source_rank)
            column.append(numbers.setdefault((content, entry.shape, entry.dtype.name), len(numbers)))
        return np.array(column, dtype=np.int64)[:, np.newaxis]

    def _totals_of(self, stage: TargetStage) -> Iterator[RankTotals]:
        # all ranks of a class at once: a redundancy-removed source has thousands of classes
        mask_bytes = max(self.inputs.catalog.records) // 8 + 1
        appended_bytes = [sum(len(each.content) for each in self._appended(rank)) for rank in stage.ranks]
        shard_bytes = np.array(appended_bytes, dtype=np.int64)
        needed_bytes = np.zeros(len(stage.ranks), dtype=np.int64)
        masks = np.zeros((len(stage.ranks), mask_bytes), dtype=np.uint8)
        for layout_class in stage.classes:
            cells = layout_class.pair.target.cell_numbers
            sizes = np.array(list(layout_class.pair.target_sizes.values()), dtype=np.int64)
            shard_bytes += sizes[cells] * layout_class.bytes_per_unit
            needed_bytes += layout_class.needed_bytes
            needed = layout_class.source_masks(mask_bytes)[cells]
            if layout_class.kept is not None:
                needed[~layout_class.kept.any(axis=0)] = 0
            masks |= needed
        for position, rank in enumerate(stage.ranks):
            source_ranks = set(np.flatnonzero(np.unpackbits(masks[position], bitorder="little")).tolist())
            size, needed = int(shard_bytes[position]), int(needed_bytes[position])
            for carried in self.match.passed_through:
                source_rank = self._carried_source(stage, carried, rank)
                entry = self.source_entry(source_rank, carried.source_name)
                size += math.prod(entry.shape) * carried.dtype.itemsize
                needed += entry.size_bytes
                source_ranks.add(source_rank)
            yield RankTotals(rank, size, needed, tuple(sorted(source_ranks)), self.copies.get(rank))


def build_plan(inputs: PlanInputs) -> ConversionPlan:
    """The plan of a conversion, its coverage proven.

    Raises:
        CatalogError: the source's ranks disagree about a parameter.
        PlanError: source, target and options do not fit together.
    """
    match = match_parameters(
        inputs.catalog,
        inputs.source_strategy,
        inputs.target_strategy,
        fail_on_unmatched=inputs.fail_on_unmatched,
        allow_missing=inputs.allow_missing,
        integrated_save=inputs.integrated_save,
        append_info=inputs.append_info,
        shared_parameters=inputs.shared_parameters,
        changes=inputs.changes,
    )
    check_nothing_lost(inputs.catalog, match)
    if inputs.unified is not None:
        has_strategy = inputs.source_strategy is not None
        match = unified_match(inputs.catalog, match, inputs.unified, has_strategy=has_strategy)
    plan = ConversionPlan(inputs, match)
    plan.check_coverage()
    if inputs.replicas and len(plan.target_ranks) == 1:
        raise PlanError(
            "redundancy cannot be removed: the target has one rank, which shares no slice with others, and MindSpore "
            "loads such files on several ranks only. Leave out --remove-redundancy"
        )
    if plan.leaves_nothing():
        return ConversionPlan(inputs, replace(match, appended=(redundancy_mark(),)))
    return plan


def _stage_ranks(target: Strategy | None, match: ParameterMatch) -> list[tuple[int, range]]:
    """The target's stages and their ranks; each file of a unified target is a stage."""
    if target is not None:
        return [(stage.stage, target.stage_ranks(stage)) for stage in target.stages]
    return [(number, range(number, number + 1)) for number in range(len(match.files) or 1)]


def _target_stages(
    stage_ranks: Sequence[tuple[int, range]], moved: Sequence[ReshardedParameter], replicas: int
) -> Iterator[TargetStage]:
    for number, ranks in stage_ranks:
        here = [parameter for parameter in moved if number in parameter.target_layouts]
        order = {parameter.name: position for position, parameter in enumerate(here)}
        classes = (
            *_layout_classes([parameter for parameter in here if parameter.is_whole], number),
            *_composed_classes([parameter for parameter in here if not parameter.is_whole], number),
        )
        yield TargetStage(number, ranks, _without_redundancy(classes, order, replicas) if replicas else classes, order)


def _layout_classes(moved: Sequence[ReshardedParameter], stage: int) -> Iterator[LayoutClass]:
    grouped: dict[object, list[ReshardedParameter]] = {}
    for parameter in moved:
        axis_count = len(parameter.shape)
        cuts = [layout.shard_grid(axis_count) for layout in _layouts(parameter, stage)]
        uneven_length = parameter.shape[0] if any(cut.uneven for cut in cuts) else None
        key = (parameter.copies, parameter.target_layouts[stage])
        grouped.setdefault((key, axis_count, uneven_length), []).append(parameter)
    for alike in grouped.values():
        first = alike[0]
        target = first.target_layouts[stage].shard_grid(len(first.shape))
        yield LayoutClass(CutPair(first.copies, target, first.shape), first.source_first_rank, tuple(alike))


def _composed_classes(moved: Sequence[ReshardedParameter], stage: int) -> Iterator[LayoutClass]:
    """The classes of what is made of pieces: alike are those that are made alike, of sources that are cut alike."""
    grouped: dict[object, list[ReshardedParameter]] = {}
    for parameter in moved:
        sources = tuple((source.copies, source.shape, source.dtype) for source in parameter.sources)
        # there may be a piece for each row, and those that are made alike have the very same
        key = (sources, id(parameter.pieces), parameter.dtype, parameter.target_layouts[stage])
        grouped.setdefault(key, []).append(parameter)
    for alike in grouped.values():
        first = alike[0]
        target = first.target_layouts[stage].shard_grid(len(first.shape))
        made_of = [(source.copies, source.shape) for source in first.sources]
        pair = ComposedPair(made_of, first.pieces, target, first.shape)
        yield LayoutClass(pair, first.source_first_rank, tuple(alike))


def _without_redundancy(
    classes: Sequence[LayoutClass], order: Mapping[str, int], replicas: int
) -> tuple[LayoutClass, ...]:
    """The classes of a stage, each slice kept by `replicas` of the ranks that share it."""
    if not classes:
        return ()
    slices = {
        parameter.name: shared
        for layout_class in classes
        for parameter, shared in zip(layout_class.parameters, layout_class.slices(), strict=True)
    }
    kept = choose_keepers([slices[name] for name in order], classes[0].pair.target.device_count, replicas)
    return tuple(
        replace(layout_class, kept=kept[[order[parameter.name] for parameter in layout_class.parameters]])
        for layout_class in classes
    )


def _kept_column(kept: np.ndarray) -> np.ndarray:
    """An int array of shape (ranks, 1): equal where ranks keep the same of a class's parameters."""
    numbers: dict[bytes, int] = {}
    rows = np.packbits(kept, axis=0).T
    return np.array([[numbers.setdefault(row.tobytes(), len(numbers))] for row in rows], dtype=np.int64)


def _layouts(parameter: ReshardedParameter, stage: int) -> Iterator[ParameterLayout]:
    """All layouts that its boxes follow from."""
    yield from (copy.layout for copy in parameter.copies)
    yield parameter.target_layouts[stage]


def _boxes(layout_class: LayoutClass, shape: Shape, stage_rank: int) -> tuple[TensorSlice, tuple[ReadItem, ...]]:
    """A rank's box of a whole tensor of `shape`, and the reads that fill it."""
    pair = layout_class.pair
    units = pair.units_of(shape)
    cell = pair.target.cell_of(stage_rank)
    box = pair.target_box(cell).scaled(units)
    reads = []
    for part in pair.parts(cell):
        shared_box = part.box.scaled(units)
        if shared_box.size:
            source_box = shared_box.relative_to(part.shard.scaled(units))
            if isinstance(part, PlacedPart):
                reads.append(ReadItem(part.rank, source_box, part.place.relative_to(box), part.source, part.axes))
            else:
                reads.append(ReadItem(part.rank, source_box, shared_box.relative_to(box)))
    return box, tuple(reads)

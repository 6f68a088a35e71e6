"""The plan of a conversion: the reads that make every target rank, derived rank by rank.

Parameters with the same grids in the source and in the target form a *layout class*, whose geometry is worked out once;
the reads of a rank are derived from the classes when they are needed (see `layout_classes` and `geometry`).

Both sides are grids, so along each axis the source shards that overlap a target shard are neighbors that share it
without gap or overlap; their products fill the target shard exactly once. `reshard.core.plan.ownership` ensures that
every part has an owner.

Planning reads and writes nothing: the catalog knows what the files hold.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from reshard.core.errors import PlanError
from reshard.core.files.model import TensorEntry
from reshard.core.plan.appended import AppendedParameter, redundancy_mark
from reshard.core.plan.layout_classes import TargetStage, build_stage
from reshard.core.plan.matching import check_nothing_lost, match_parameters
from reshard.core.plan.model import (
    ParameterMatch,
    ParameterPlan,
    PassedThroughParameter,
    PlanInputs,
    RankPlan,
    RankTotals,
    ReadItem,
    ReshardedParameter,
    SourceTensor,
)
from reshard.core.plan.planned_layout import PlannedLayout
from reshard.core.plan.stage_shards import SourceShards
from reshard.core.plan.whole_shapes import Whole, wholes_of_match
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.slices import TensorSlice
from reshard.core.text.options import option


class ConversionPlan:
    """The plans of all target ranks. Immutable; expensive results are computed once, on first use."""

    def __init__(self, inputs: PlanInputs, match: ParameterMatch) -> None:
        self.inputs = inputs
        self.match = match
        self.compared_shapes: Mapping[str, str] = {}
        self.file_names: Mapping[int, str] = {}
        held: dict[int, list[ReshardedParameter]] = {}
        for parameter in match.resharded:
            for number in parameter.target_layouts:
                held.setdefault(number, []).append(parameter)
        self.stages = tuple(
            build_stage(
                number,
                ranks,
                held.get(number, ()),
                inputs.kept_replicas,
                drops_empty=inputs.layout.drops_empty_shards,
            )
            for number, ranks in _stage_ranks(inputs.target_strategy, match)
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
        """Return the plan with notes added in front of its own."""
        if not notes:
            return self
        catalog = replace(self.inputs.catalog, notes=(*notes, *self.inputs.catalog.notes))
        return self._with_inputs(replace(self.inputs, catalog=catalog))

    def with_compared_shapes(self, names: Iterable[str], what: str) -> "ConversionPlan":
        """Return the plan with whole shapes of these source or target parameters noted as confirmed, and by what."""
        plan = copy(self)
        plan.compared_shapes = {**self.compared_shapes, **dict.fromkeys(names, what)}
        return plan

    def with_file_names(self, names: Mapping[int, str]) -> "ConversionPlan":
        """Return the plan with other names for the files of some target ranks."""
        plan = copy(self)
        plan.file_names = {**self.file_names, **names}
        return plan

    @property
    def wholes(self) -> dict[str, Whole]:
        """The whole tensors of the source that the target needs, and what confirms their shapes."""
        return wholes_of_match(self.match, self.compared_shapes)

    def with_layout(self, layout: PlannedLayout) -> "ConversionPlan":
        """Return the plan with another record of its target's layout, which assigns parameters as the former did."""
        return self._with_inputs(replace(self.inputs, layout=layout))

    def _with_inputs(self, inputs: PlanInputs) -> "ConversionPlan":
        """Return the plan with inputs that nothing computed depends on, so that all of it is kept."""
        plan = copy(self)
        plan.inputs = inputs
        return plan

    def file_name(self, rank: int) -> str:
        """The path of a target rank's file below the target."""
        if rank in self.file_names:
            return self.file_names[rank]
        return self.inputs.layout.file_name(rank, self.inputs, self.match)

    def rank_plan(self, rank: int, *, with_redundancy: bool = False) -> RankPlan:
        """Return the plan of one target rank: the shards that it keeps, or all of them `with_redundancy`.

        Raises:
            PlanError: the target has no such rank.
        """
        stage = self._stage_of(rank)
        parameters = [
            parameter_plan
            for layout_class in stage.classes
            for parameter_plan in layout_class.plans(rank - stage.ranks.start, with_redundancy=with_redundancy)
        ]
        if len(stage.classes) > 1:  # each class is in order
            parameters.sort(key=lambda parameter: stage.order[parameter.name])
        parameters.extend(self._passed_through_plan(passed, rank) for passed in self.match.passed_through)
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
        """True if parameters are read with their axes in another order."""
        return any(piece.is_transposed for parameter in self.match.resharded for piece in parameter.pieces)

    @cached_property
    def quantizes(self) -> bool:
        """True if parameters are quantized."""
        return any(parameter.quantized is not None for parameter in self.match.resharded)

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
    def readings(self) -> int:
        """How often contents are read to write a rank's file: twice if their CRC is in its header."""
        return 2 if self.inputs.write_crc and self.inputs.format.has_crc_in_header else 1

    @property
    def read_bytes(self) -> int:
        """Bytes of source shards to read, each as often as ranks need it; copies read none."""
        return self.readings * sum(totals.needed_bytes for totals in self.totals if totals.copy_of is None)

    @property
    def written_bytes(self) -> int:
        """Bytes of all target shards, headers apart."""
        return sum(totals.shard_bytes for totals in self.totals)

    @property
    def layout_class_count(self) -> int:
        """Number of layout classes, summed over the target's stages."""
        return sum(len(stage.classes) for stage in self.stages)

    def check_coverage(self) -> None:
        """Prove that every element of every target shard is filled exactly once."""
        for stage in self.stages:
            for layout_class in stage.classes:
                layout_class.check_coverage()

    def has_empty_ranks(self) -> bool:
        """True if deduplication leaves some target ranks without any shard: there are fewer slices than ranks."""
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

    def _appended(self, rank: int) -> tuple[AppendedParameter, ...]:
        """The appended entries of a rank's file: every rank's, but only the last one's if the ranks are files."""
        return self.match.appended if not self.match.files.names or rank == self.target_ranks[-1] else ()

    def passed_through_source(self, passed: PassedThroughParameter, rank: int) -> int:
        """Return the source rank that a target rank reads a passed-through parameter from."""
        stage = self._stage_of(rank)
        strategy = self.inputs.source_strategy
        source_ranks = strategy.ranks if strategy else range(1)
        devices = strategy.devices_per_stage if strategy else 1
        feeding = [layout_class.source_first_rank for layout_class in stage.classes]
        first_rank = min(feeding, default=source_ranks.start)
        # a parameter that only the target's strategy knows may be read from any rank: count from its stage's first
        first_rank -= (first_rank - source_ranks.start) % devices
        wanted = first_rank + (rank - stage.ranks.start) % devices
        return wanted if wanted in passed.owners else min(passed.owners)

    def _passed_through_plan(self, passed: PassedThroughParameter, rank: int) -> ParameterPlan:
        source_rank = self.passed_through_source(passed, rank)
        entry = self.source_entry(source_rank, passed.source_name)
        whole = TensorSlice.whole(entry.shape)
        source = SourceTensor(passed.source_name, entry.dtype, entry.shape, ())
        return ParameterPlan(passed.name, passed.dtype, whole, (ReadItem(source_rank, whole, whole),), (source,))

    def _content_keys(self, stage: TargetStage) -> np.ndarray:
        """An int array of shape (ranks, …): rows are equal where the ranks' contents are known to be."""
        columns = [layout_class.geometry.target.cells for layout_class in stage.classes]
        kept = [layout_class.kept for layout_class in stage.classes if layout_class.kept is not None]
        columns.extend(map(_kept_column, kept))
        columns.extend(self._content_column(stage, passed) for passed in self.match.passed_through)
        if not columns:
            return np.zeros((len(stage.ranks), 1), dtype=np.int64)
        return np.ascontiguousarray(np.concatenate(columns, axis=1))

    def _content_column(self, stage: TargetStage, passed: PassedThroughParameter) -> np.ndarray:
        numbers: dict[object, int] = {}
        column = []
        for rank in stage.ranks:
            source_rank = self.passed_through_source(passed, rank)
            record = self.inputs.catalog.records[source_rank]
            entry = record.index.entries[passed.source_name]
            # digests show equal contents; without one only the same file is known to be equal
            content = record.digests.get(passed.source_name) or (entry.text if entry.text is not None else source_rank)
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
            shard_bytes += layout_class.shard_bytes
            needed_bytes += layout_class.needed_bytes
            masks |= layout_class.source_masks(mask_bytes)
        ranks_of: dict[bytes, tuple[int, ...]] = {}  # thousands of ranks may need thousands, and the same ones
        for position, rank in enumerate(stage.ranks):
            mask = masks[position]
            size, needed = int(shard_bytes[position]), int(needed_bytes[position])
            for passed in self.match.passed_through:
                source_rank = self.passed_through_source(passed, rank)
                entry = self.source_entry(source_rank, passed.source_name)
                size += math.prod(entry.shape) * passed.dtype.itemsize
                needed += entry.size_bytes
                mask[source_rank // 8] |= 1 << source_rank % 8
            key = mask.tobytes()
            if key not in ranks_of:
                ranks_of[key] = tuple(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())
            yield RankTotals(rank, size, needed, ranks_of[key], self.copies.get(rank))


def build_plan(inputs: PlanInputs, source_shards: SourceShards | None = None) -> ConversionPlan:
    """Build the plan of a conversion, and prove its coverage; `source_shards` as for `match_parameters`.

    Raises:
        CatalogError: the source's ranks disagree about a parameter.
        PlanError: source, target and options do not fit together.
    """
    match = match_parameters(inputs, source_shards)
    check_nothing_lost(inputs.catalog, match)
    match = inputs.layout.assign(inputs, match)
    plan = ConversionPlan(inputs, match)
    plan.check_coverage()
    if inputs.replicas and (inputs.target_strategy is None or len(inputs.target_strategy.ranks) == 1):
        raise PlanError(
            "redundancy cannot be removed: the target has one rank, which shares no slice with others, and MindSpore "
            f"loads such files on several ranks only. Leave out {option('remove_redundancy', True)}"
        )
    if plan.has_empty_ranks():
        if not inputs.layout.marks_redundancy:
            raise PlanError(
                "redundancy cannot be removed: there are fewer slices than target ranks, so that some files would be "
                f"empty. Leave out {option('remove_redundancy', True)}, or keep more {option('replicas')}"
            )
        return ConversionPlan(inputs, replace(match, appended=(redundancy_mark(),)))
    return plan


def _stage_ranks(target: Strategy | None, match: ParameterMatch) -> Sequence[tuple[int, range]]:
    """The target's stages and their ranks; if files are ranks and no strategy shards them, each file is a stage."""
    if match.files.stages:
        return [(stage.number, stage.files) for stage in match.files.stages]
    if target is not None:
        return [(stage.stage, target.stage_ranks(stage)) for stage in target.stages]
    return [(number, range(number, number + 1)) for number in range(len(match.files.names) or 1)]


def _kept_column(kept: np.ndarray) -> np.ndarray:
    """An int array of shape (ranks, 1): equal where ranks keep the same of a class's parameters."""
    numbers: dict[bytes, int] = {}
    rows = np.packbits(kept, axis=0).T
    return np.array([[numbers.setdefault(row.tobytes(), len(numbers))] for row in rows], dtype=np.int64)

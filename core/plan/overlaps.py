"""How the source's cells and the target's cells of one parameter lie over each other.

A *cell* is the box of a whole tensor that a rank holds; ranks with the same box share a cell. An *overlap* is what a
target cell takes from one source cell. All boxes here are in the coordinates of whole tensors, those of the source's
parameters or of the target's.
"""

from dataclasses import dataclass, replace

from reshard.core.plan.model import ParameterPlan, ReadItem, ReshardedParameter, SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import TensorSlice


@dataclass(frozen=True)
class SourceCell:
    """A cell of a source parameter.

    Attributes:
        source: number of the source parameter, among those that the target's is made from.
        box: in the coordinates of the whole source parameter.
        ranks: global source ranks that hold it, ascending.
    """

    source: int
    box: TensorSlice
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Overlap:
    """What a target cell takes from a source cell.

    Attributes:
        source: number of the source parameter.
        source_rank: global rank that it is read from.
        source_box: in the coordinates of the whole source parameter.
        target_box: the same elements in the coordinates of the whole target parameter.
    """

    source: int
    source_rank: int
    source_box: TensorSlice
    target_box: TensorSlice


@dataclass(frozen=True)
class TargetCell:
    """A cell of the target's parameter: its box, the global target ranks that keep it, and what fills it."""

    box: TensorSlice
    ranks: tuple[int, ...]
    overlaps: tuple[Overlap, ...]


@dataclass(frozen=True)
class ParameterOverlaps:
    """One parameter's cells on both sides.

    Attributes:
        parameter: the parameter, with its sources.
        source_cells: cells of its sources.
        target_cells: target stage -> its cells there, in the order of their lowest ranks.
        files: of a unified target, the names of its files, each of which counts as a stage and a rank.
    """

    parameter: ReshardedParameter
    source_cells: tuple[SourceCell, ...]
    target_cells: dict[int, tuple[TargetCell, ...]]
    files: tuple[str, ...] = ()

    def place(self, stage: int) -> str:
        """What a target stage is called."""
        return self.files[stage] if self.files else f"stage {stage}"

    @property
    def dtype(self) -> DType:
        """Element type in the target."""
        return self.parameter.dtype

    def size_bytes(self, overlap: Overlap) -> int:
        """Bytes of an overlap in the target."""
        return overlap.target_box.size * self.dtype.itemsize


def overlaps_of(plan: ConversionPlan, parameter: ReshardedParameter) -> ParameterOverlaps:
    """The cells of a parameter of the plan; thousands of ranks take a part of a second."""
    # a plan of nothing else: the reads of other parameters are not worked out
    alone = ConversionPlan(
        replace(plan.inputs, replicas=0), replace(plan.match, resharded=(parameter,), passed_through=(), appended=())
    )
    stages = {}
    for stage in alone.stages:
        if not stage.classes:
            continue
        found: dict[TensorSlice, tuple[ParameterPlan, list[int]]] = {}
        left_out = _not_keeping(plan, parameter.name, stage.number)
        for rank in stage.ranks:
            [planned] = alone.rank_plan(rank).parameters
            _, ranks = found.setdefault(planned.box, (planned, []))
            if rank not in left_out:
                ranks.append(rank)
        stages[stage.number] = tuple(_target_cell(planned, tuple(ranks)) for planned, ranks in found.values())
    cells = tuple(cell for number, source in enumerate(parameter.sources) for cell in _source_cells(number, source))
    return ParameterOverlaps(parameter, cells, stages, plan.match.files)


def _not_keeping(plan: ConversionPlan, name: str, number: int) -> frozenset[int]:
    """The ranks of a stage that leave their shards of a parameter to others, as redundancy is removed."""
    [stage] = [stage for stage in plan.stages if stage.number == number]
    for layout_class in stage.classes:
        if layout_class.kept is None:
            continue
        for parameter, kept in zip(layout_class.parameters, layout_class.kept, strict=True):
            if parameter.name == name:
                return frozenset(rank for rank, keeps in zip(stage.ranks, kept, strict=True) if not keeps)
    return frozenset()


def _target_cell(planned: ParameterPlan, ranks: tuple[int, ...]) -> TargetCell:
    return TargetCell(planned.box, ranks, tuple(_overlap(planned, read) for read in planned.reads))


def _overlap(planned: ParameterPlan, read: ReadItem) -> Overlap:
    held = _box_on(planned.sources[read.source], read.source_rank)
    return Overlap(
        read.source,
        read.source_rank,
        read.source_box.shifted(held.start),
        read.target_box.shifted(planned.box.start),
    )


def _box_on(source: SourceTensor, rank: int) -> TensorSlice:
    """The box of a source parameter that a source rank holds."""
    for copy in source.copies:
        stage_rank = rank - copy.first_rank
        if 0 <= stage_rank < copy.layout.device_count:
            return copy.layout.shard_grid(len(source.shape)).box_of(stage_rank, source.shape)
    raise ValueError(f"source rank {rank} is in no stage that {source.name!r} is read from")


def _source_cells(number: int, source: SourceTensor) -> list[SourceCell]:
    copy = source.copies[0]
    cut = copy.layout.shard_grid(len(source.shape))
    cells = []
    for held_by in cut.owners.values():
        ranks = tuple(copy.first_rank + rank for rank in held_by if copy.first_rank + rank not in copy.missing_ranks)
        cells.append(SourceCell(number, cut.box_of(held_by[0], source.shape), ranks))
    return cells

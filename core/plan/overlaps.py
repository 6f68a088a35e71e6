"""Overlaps between the source's and the target's shards of one parameter.

A *cell* here is a shard with the ranks that own it. An *overlap* is the box that a target cell takes from one source
cell; of rows in turn it is a stepped box. All boxes are in the coordinates of whole tensors, the source's or the
target's.
"""

from msgspec.structs import replace

from reshard.core.plan.model import ParameterMatch, ParameterPlan, ReadItem, ReshardedParameter, SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import TensorSlice


class SourceCell(Record):
    """A cell of a source parameter.

    Attributes:
        source: index of the source parameter.
        box: in the coordinates of the whole source parameter.
        ranks: global source ranks that own it, ascending.
    """

    source: int
    box: TensorSlice
    ranks: tuple[int, ...]


class Overlap(Record):
    """The box that a target cell takes from a source cell.

    Attributes:
        source: index of the source parameter.
        source_rank: global rank to read it from.
        source_box: in the coordinates of the whole source parameter.
        target_box: the same elements in the coordinates of the whole target parameter.
    """

    source: int
    source_rank: int
    source_box: TensorSlice
    target_box: TensorSlice


class TargetCell(Record):
    """A cell of the target: its box, the global target ranks that keep it, and the overlaps that fill it."""

    box: TensorSlice
    ranks: tuple[int, ...]
    overlaps: tuple[Overlap, ...]


class ParameterOverlaps(Record):
    """One parameter's cells on both sides.

    Attributes:
        parameter: the parameter, with its sources.
        source_cells: cells of its sources.
        target_cells: target stage -> its cells there, in the order of their lowest ranks.
        match: what becomes of all parameters; names the target's stages.
    """

    parameter: ReshardedParameter
    source_cells: tuple[SourceCell, ...]
    target_cells: dict[int, tuple[TargetCell, ...]]
    match: ParameterMatch

    def place(self, stage: int) -> str:
        """Format the name of a target stage."""
        return self.match.stage_text(stage)

    @property
    def dtype(self) -> DType:
        """Element type in the target."""
        return self.parameter.dtype

    def size_bytes(self, overlap: Overlap) -> int:
        """Return the bytes of an overlap in the target."""
        return overlap.target_box.size * self.dtype.itemsize


def overlaps_of(plan: ConversionPlan, parameter: ReshardedParameter) -> ParameterOverlaps:
    """Return the overlaps of a parameter of the plan; thousands of ranks take less than a second."""
    # a plan of this parameter alone: the reads of others are not needed
    alone = ConversionPlan(plan.inputs, replace(plan.match, resharded=(parameter,), passed_through=(), appended=()))
    stages = {}
    for stage in alone.stages:
        if not stage.classes:
            continue
        found: dict[TensorSlice, tuple[ParameterPlan, list[int]]] = {}
        left_out = _not_keeping(plan, parameter.name, stage.number)
        for rank in stage.ranks:
            [planned] = alone.rank_plan(rank, with_redundancy=True).parameters
            _, ranks = found.setdefault(planned.box, (planned, []))
            if rank not in left_out:
                ranks.append(rank)
        stages[stage.number] = tuple(
            TargetCell(planned.box, tuple(ranks), tuple(_overlap(planned, read) for read in planned.reads))
            for planned, ranks in found.values()
            if ranks  # a shard without elements may be in no file
        )
    cells = tuple(cell for number, source in enumerate(parameter.sources) for cell in _source_cells(number, source))
    return ParameterOverlaps(parameter, cells, stages, plan.match)


def _not_keeping(plan: ConversionPlan, name: str, number: int) -> frozenset[int]:
    """The ranks of a stage that do not keep their shards of a parameter, as redundancy is removed."""
    [stage] = [stage for stage in plan.stages if stage.number == number]
    for layout_class in stage.classes:
        if layout_class.kept is None:
            continue
        for parameter, kept in zip(layout_class.parameters, layout_class.kept, strict=True):
            if parameter.name == name:
                return frozenset(rank for rank, keeps in zip(stage.ranks, kept, strict=True) if not keeps)
    return frozenset()


def _overlap(planned: ParameterPlan, read: ReadItem) -> Overlap:
    shard = _box_on(planned.sources[read.source], read.source_rank)
    return Overlap(
        read.source,
        read.source_rank,
        read.source_box.shifted(shard.start),
        read.target_box.shifted(planned.box.start),
    )


def _box_on(source: SourceTensor, rank: int) -> TensorSlice:
    """The box of a source parameter that a source rank owns."""
    for copy in source.copies:
        stage_rank = rank - copy.first_rank
        if 0 <= stage_rank < copy.layout.device_count:
            return copy.layout.shard_grid(len(source.shape)).box_of(stage_rank, source.shape)
    raise ValueError(f"source rank {rank} is in no stage that {source.name!r} is read from")


def _source_cells(number: int, source: SourceTensor) -> list[SourceCell]:
    copy = source.copies[0]
    grid = copy.layout.shard_grid(len(source.shape))
    cells = []
    for owners in grid.owners.values():
        ranks = tuple(copy.first_rank + rank for rank in owners if copy.first_rank + rank not in copy.missing_ranks)
        cells.append(SourceCell(number, grid.box_of(owners[0], source.shape), ranks))
    return cells

"""Layout classes: parameters of a target stage with the same grids in the source and in the target.

That keeps a plan small: thousands of ranks and parameters have a handful of classes, each with one geometry.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress

import numpy as np
from msgspec.structs import replace

from reshard.core.errors import PlanError
from reshard.core.plan.deduplication import SharedSlices, choose_keepers, without_empty
from reshard.core.plan.geometry import ClassGeometry
from reshard.core.plan.model import ParameterPlan, ReadItem, ReshardedParameter
from reshard.core.plan.ownership import NO_RANK
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape, TensorSlice


class LayoutClass(Record, dict=True, eq=False):
    """Parameters of one target stage that are sharded alike, and their source."""

    geometry: ClassGeometry
    source_first_rank: int
    parameters: tuple[ReshardedParameter, ...]
    kept: np.ndarray | None = None
    """Bool array of shape (parameters, stage ranks): which ranks keep their shards; None: all do."""

    @cached_property
    def bytes_per_unit(self) -> np.ndarray:
        """Int64 array of shape (stage ranks,): bytes of one unit of all parameters that a rank keeps."""
        return self._sum_of_kept(self._bytes_per_unit(self._dtypes))

    @cached_property
    def shard_bytes(self) -> np.ndarray:
        """Int64 array of shape (stage ranks,): bytes of the shards that a rank keeps."""
        if self._is_quantized:
            written = sum(math.prod(each.shape) * each.dtype.itemsize for each in self.parameters)
            return np.full(self.geometry.target.device_count, written)
        return np.asarray(self.geometry.target_sizes[self.geometry.target.cell_numbers] * self.bytes_per_unit)

    @cached_property
    def needed_bytes(self) -> np.ndarray:
        """Int64 array of shape (stage ranks,): bytes of the source that the shards a rank keeps are made from."""
        total = np.zeros(self.geometry.target.device_count, dtype=np.int64)
        for source, sizes in enumerate(self.geometry.source_sizes):
            unit_bytes = self._bytes_per_unit([parameter.sources[source].dtype for parameter in self.parameters])
            total += sizes[self.geometry.target.cell_numbers] * self._sum_of_kept(unit_bytes)
        return total

    def keeps_any(self, stage_rank: int) -> bool:
        """True if a target rank keeps its shard of any parameter of the class."""
        return self.kept is None or bool(self.kept[:, stage_rank].any())

    def slices(self) -> Iterator[SharedSlices]:
        """The target's slices of each parameter, with the ranks that share them."""
        owners = np.array(list(self.geometry.target.owners.values()))
        for unit_bytes in self._bytes_per_unit(self._dtypes):
            yield SharedSlices(owners, self.geometry.target_sizes * unit_bytes)

    def plans(self, stage_rank: int, *, with_redundancy: bool = False) -> Iterator[ParameterPlan]:
        """The plans of the parameters that one target rank keeps, or of all of them `with_redundancy`."""
        if self._is_quantized:
            yield from self._quantized_plans(stage_rank)
            return
        parameters: Sequence[ReshardedParameter] = self.parameters
        owns = self.geometry.target.are_owners[stage_rank]
        if self.kept is not None and not (with_redundancy and owns):
            parameters = list(compress(parameters, self.kept[:, stage_rank]))
        shapes = {parameter.shape for parameter in parameters}
        boxes = {shape: _boxes(self.geometry, shape, stage_rank) for shape in shapes}
        for each in parameters:
            box, reads = boxes[each.shape]
            yield ParameterPlan(each.name, each.dtype, box, reads, each.sources)

    @property
    def _is_quantized(self) -> bool:
        return self.parameters[0].quantized is not None

    def _quantized_plans(self, stage_rank: int) -> Iterator[ParameterPlan]:
        """The plans of whole parameters that are quantized."""
        shapes = {each.read_shape for each in self.parameters}
        reads = {shape: _boxes(self.geometry, shape, stage_rank)[1] for shape in shapes}
        for each in self.parameters:
            box = TensorSlice.whole(each.shape)
            yield ParameterPlan(
                each.name, each.dtype, box, reads[each.read_shape], each.sources, quantized=each.quantized
            )

    def check_coverage(self) -> None:
        """Prove that every element of every target shard is filled exactly once."""
        _ = self._source_masks  # looks up an owner for every overlap
        for cell in self.geometry.target.owners:
            filled = sum(part.box.size for part in self.geometry.parts(cell))
            if filled != self.geometry.target_box(cell).size:
                raise PlanError(f"the boxes for {self.parameters[0].name!r} do not fill its shard")

    def source_masks(self, mask_bytes: int) -> np.ndarray:
        """Uint8 array of shape (stage ranks, `mask_bytes`): the source ranks needed, as little-endian bits."""
        joined = b"".join(mask.to_bytes(mask_bytes, "little") for mask in self._source_masks)
        by_shard = np.frombuffer(joined, np.uint8).reshape(-1, mask_bytes)
        masks: np.ndarray = by_shard[self.geometry.target.cell_numbers]
        if self.kept is not None:
            masks[~self.kept.any(axis=0)] = 0
        return masks

    @cached_property
    def _source_masks(self) -> list[int]:
        """The source ranks that each target shard needs, as a bit mask, in the order of the grid's `owners`."""
        filled = next((parameter for parameter in self.parameters if math.prod(parameter.shape)), None)
        masks = []
        for cell in self.geometry.target.owners:
            mask = 0
            for part in self.geometry.parts(cell):
                if part.rank != NO_RANK:
                    mask |= 1 << part.rank
                elif filled is not None:  # else the box has units, but no elements
                    raise PlanError(f"source box {part.box} (in units) of {filled.name!r} is on no rank")
            for rank in self.geometry.factor_ranks(cell):
                mask |= 1 << rank
            masks.append(mask)
        return masks

    @property
    def _dtypes(self) -> list[DType]:
        return [parameter.dtype for parameter in self.parameters]

    def _bytes_per_unit(self, dtypes: Sequence[DType]) -> np.ndarray:
        """Int64 array of shape (parameters,): bytes of one unit of each, as elements of `dtypes`."""
        shapes = [each.read_shape for each in self.parameters]
        units = {shape: math.prod(self.geometry.units_of(shape)) for shape in set(shapes)}
        sizes = [dtype.itemsize * units[shape] for dtype, shape in zip(dtypes, shapes, strict=True)]
        return np.array(sizes, dtype=np.int64)

    def _sum_of_kept(self, each: np.ndarray) -> np.ndarray:
        """Int64 array of shape (stage ranks,): the sum of a number of each parameter over those that a rank keeps."""
        return np.full(self.geometry.target.device_count, each.sum()) if self.kept is None else each @ self.kept


class TargetStage(Record):
    """One pipeline stage of the target: its ranks and its layout classes."""

    number: int
    ranks: range
    classes: tuple[LayoutClass, ...]
    order: Mapping[str, int]
    """Position of each parameter in the target's files."""


def build_stage(
    number: int, ranks: range, here: Sequence[ReshardedParameter], replicas: int, *, drops_empty: bool = False
) -> TargetStage:
    """Build a stage of the target from its parameters; `replicas` are the copies of each slice to keep, 0: all.

    With `drops_empty` slices without elements are kept only if their tensor has none, and then one of them.
    """
    order = {parameter.name: position for position, parameter in enumerate(here)}
    classes = tuple(_classes(here, number))
    if replicas:
        classes = _deduplicated(classes, order, replicas, drops_empty=drops_empty)
    return TargetStage(number, ranks, classes, order)


def _classes(parameters: Sequence[ReshardedParameter], stage: int) -> Iterator[LayoutClass]:
    grouped: dict[object, list[ReshardedParameter]] = {}
    for parameter in parameters:
        grouped.setdefault(_class_key(parameter, stage), []).append(parameter)
    for alike in grouped.values():
        first = alike[0]
        target = first.target_layouts[stage].shard_grid(len(first.shape))
        if first.is_whole:
            geometry = ClassGeometry.of_whole(first.copies, target, first.read_shape)
        else:
            made_of = [(source.copies, source.shape) for source in first.sources]
            geometry = ClassGeometry(made_of, first.pieces, target, first.read_shape)
        owning = None if target.are_owners.all() else np.tile(target.are_owners, (len(alike), 1))
        yield LayoutClass(geometry, first.source_first_rank, tuple(alike), owning)


def _class_key(parameter: ReshardedParameter, stage: int) -> object:
    """A key that parameters of one class share."""
    layout = parameter.target_layouts[stage]
    if parameter.quantized is not None:
        sources = tuple((source.copies, source.shape, source.dtype) for source in parameter.sources)
        return sources, id(parameter.pieces), parameter.dtype, layout
    if not parameter.is_whole:
        sources = tuple((source.copies, source.shape, source.dtype) for source in parameter.sources)
        # there may be thousands of pieces, and parameters that are made alike have the very same
        return sources, id(parameter.pieces), parameter.dtype, layout
    axis_count = len(parameter.shape)
    layouts = (*(copy.layout for copy in parameter.copies), layout)
    if any(each.boxes for each in layouts):
        return parameter.copies, layout, parameter.shape
    is_uneven = any(each.shard_grid(axis_count).uneven for each in layouts)
    return parameter.copies, layout, axis_count, parameter.shape[0] if is_uneven else None


def _deduplicated(
    classes: Sequence[LayoutClass], order: Mapping[str, int], replicas: int, *, drops_empty: bool
) -> tuple[LayoutClass, ...]:
    """The classes of a stage, each slice kept by `replicas` of the ranks that share it."""
    if not classes:
        return ()
    slices = {
        parameter.name: shared
        for layout_class in classes
        for parameter, shared in zip(layout_class.parameters, layout_class.slices(), strict=True)
    }
    in_order = [slices[name] for name in order]
    kept = choose_keepers(in_order, classes[0].geometry.target.device_count, replicas)
    if drops_empty:
        kept = without_empty(kept, in_order)
    return tuple(
        replace(layout_class, kept=kept[[order[parameter.name] for parameter in layout_class.parameters]])
        for layout_class in classes
    )


def _boxes(geometry: ClassGeometry, shape: Shape, stage_rank: int) -> tuple[TensorSlice, tuple[ReadItem, ...]]:
    """A rank's box of a whole tensor of `shape`, and the reads that fill it."""
    units = geometry.units_of(shape)
    cell = geometry.target.cell_of(stage_rank)
    box = geometry.target_box(cell).scaled(units)
    one_each = all(unit == 1 for unit in units)
    reads = []
    for part in geometry.parts(cell):
        source_box = geometry.source_elements(part.box, units)
        if source_box.size:
            shard = geometry.source_elements(part.shard, units)
            place = (part.place if one_each else part.place.scaled(units)).relative_to(box)
            in_shard = source_box.relative_to(shard)
            start = () if part.changes.by_place is None else shard.start
            reads.append(ReadItem(part.rank, in_shard, place, part.source, part.axes, part.changes, start))
    return box, tuple(reads)

"""The tensors of an adapter, and the values that it makes of its base's."""

import glob
import math
import threading
from collections import OrderedDict
from contextlib import closing
from functools import cached_property, partial
from operator import add

import numpy as np
from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES
from reshard.core.changes.lora.deltas import Delta, Product
from reshard.core.errors import CheckpointError
from reshard.core.plan.adapter import AdaptedSource, Adapter
from reshard.core.plan.model import PlanInputs, SourceTensor
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.plan.wholes import whole_plan
from reshard.core.tensor.casting import cast_bits, typed
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.float_bits import find_non_finite, float_bits
from reshard.core.tensor.low_rank import LowRank, with_low_rank
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes
from reshard.core.transfer.read_ranges import ValueChange
from reshard.core.transfer.whole_reader import BLOCK_BYTES, WholeReader

_EXPONENTS = {"BFloat16": 0x7F80, "Float16": 0x7C00, "Float32": 0x7F800000}
_ROWS_AT_ONCE = 128


def adapter_plan(adapter: Adapter) -> ConversionPlan:
    """Return a plan of the adapter's own tensors, whole."""
    names = sorted({name for delta in adapter.deltas.values() for name in delta.names})
    only = NO_CHANGES.model_copy(update={"include": tuple(map(glob.escape, names))})
    return build_plan(PlanInputs(adapter.catalog, adapter.strategy, None, adapter.catalog.format, changes=only))


class AdapterReader:
    """Reads an adapter's matrices, and keeps the latest; thread-safe."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._known: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, plan: ConversionPlan) -> "AdapterReader | None":
        """Return a reader of a plan's adapter; None if it has none."""
        return cls(plan.inputs.adapter) if plan.inputs.adapter else None

    def change_of(self, name: str) -> ValueChange:
        """Return what becomes of the values of a source parameter.

        Calling it raises the errors of reading: see `ScaleReader.factors`.
        """
        if self._adapter.placed:
            return partial(self._changed_in_parts, name, self._adapter.placed[name])
        return partial(self._changed, name, self._adapter.deltas[name])

    def _changed_in_parts(
        self,
        name: str,
        source: AdaptedSource,
        values: np.ndarray,
        dtype: DType,
        start: Shape,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        found = np.empty(values.shape, values.dtype) if out is None else out
        found[...] = values
        box = _box(start, values.shape)
        for each in source.parts:
            part = each.piece.in_source(box)
            if part is None:
                continue
            # a view, with the axes of the tensor that the adapter is for
            those = part.arranged(found[part.box.relative_to(box).as_index()])
            those[...] = self._changed_box(name, each.delta, those, dtype, part.target_box)
        return found

    def _changed_box(self, name: str, delta: Delta, values: np.ndarray, dtype: DType, box: TensorSlice) -> np.ndarray:
        """What becomes of the values of a box, perhaps stepped, of the tensor that the adapter is for."""
        if delta.replaced_by:
            bounds = box.bounds
            replacing = self._replacing(name, delta.replaced_by, bounds.shape, dtype, bounds.start)
            values = replacing[box.relative_to(bounds).as_index()]
        if delta.product is None:
            return values
        rows, columns = box.as_index()
        added = self._low_rank(delta.product)
        sums = with_low_rank(values, dtype, (0, 0), replace(added, b=added.b[rows], a=added.a[:, columns]))
        _check_finite(name, values, dtype, sums, dtype, box)
        return sums

    def _changed(
        self,
        name: str,
        delta: Delta,
        values: np.ndarray,
        dtype: DType,
        start: Shape,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        if delta.replaced_by:
            values = self._replacing(name, delta.replaced_by, values.shape, dtype, start)
        if delta.product is None:
            if out is None:
                return values
            out[...] = values
            return out
        sums = with_low_rank(values, dtype, start, self._low_rank(delta.product), out)
        _check_finite(name, values, dtype, sums, dtype, _box(start, values.shape))
        return sums

    def _low_rank(self, product: Product) -> LowRank:
        with self._lock:
            a, b = self._matrix(product.a), self._matrix(product.b)
        if product.experts:
            a = a.reshape(product.experts, -1, a.shape[1])[product.expert]
            b = b[:, product.expert :: product.experts]
        if product.rows:
            b = b[slice(*product.rows)]
        if product.transposed:
            a, b = b.T, a.T
        return LowRank(b, a, product.scale, product.rounds_twice)

    def _matrix(self, name: str) -> np.ndarray:
        """A matrix of the adapter as float32; a vector has one column."""
        known = self._known.pop(name, None)
        if known is None:
            source = self._sources[name]
            size_bytes = 4 * math.prod(source.shape)
            while self._known and size_bytes + self._known_bytes > self._adapter.matrix_bytes:
                self._known.popitem(last=False)
            known = self._read(source)
        self._known[name] = known
        return known

    @property
    def _known_bytes(self) -> int:
        return sum(each.nbytes for each in self._known.values())

    def _read(self, source: SourceTensor) -> np.ndarray:
        values = np.empty(math.prod(source.shape), np.float32)
        position = 0
        with closing(WholeReader(self._plan, whole_plan(source, source.copies))) as reader:
            for box in reader.boxes():
                block = typed(reader.read(box).view(f"u{source.dtype.itemsize}"), source.dtype)
                values[position : position + box.size] = block
                position += box.size
        return values.reshape(source.shape if len(source.shape) > 1 else (-1, 1))

    def _replacing(self, base_name: str, name: str, shape: Shape, dtype: DType, start: Shape) -> np.ndarray:
        """The bits of a box of a tensor of the adapter."""
        source = self._sources[name]
        wanted = _box(start, shape)
        found = np.empty(shape, f"u{dtype.itemsize}")
        row = math.prod(source.shape[1:])
        first, last = (wanted.start[0] * row, wanted.stop[0] * row) if shape else (0, 1)
        with closing(WholeReader(self._plan, whole_plan(source, source.copies))) as reader:
            for box in contiguous_boxes(source.shape, first, last, BLOCK_BYTES // source.dtype.itemsize):
                part = box.intersect(wanted)
                if part is None:
                    continue
                values = reader.read(box).view(f"u{source.dtype.itemsize}").reshape(box.shape)
                there = part.relative_to(wanted).as_index()
                own = values[part.relative_to(box).as_index()]
                found[there] = cast_bits(own, source.dtype, dtype)
                _check_finite(base_name, own, source.dtype, found[there], dtype, part)
        return found

    @cached_property
    def _plan(self) -> ConversionPlan:
        return adapter_plan(self._adapter)

    @cached_property
    def _sources(self) -> dict[str, SourceTensor]:
        return {source.name: source for parameter in self._plan.match.resharded for source in parameter.sources}


def _box(start: Shape, shape: Shape) -> TensorSlice:
    return TensorSlice(start, tuple(map(add, start, shape)))


def _check_finite(
    name: str, before: np.ndarray, dtype: DType, after: np.ndarray, after_dtype: DType, box: TensorSlice
) -> None:
    """Refuse finite values that became infinite or NaN; both are the bits of a box's values."""
    bits = float_bits(after_dtype)
    if bits is None or find_non_finite(after, bits) is None:
        return
    for row in range(0, len(after) if after.ndim else 1, _ROWS_AT_ONCE):
        rows = slice(row, row + _ROWS_AT_ONCE) if after.ndim else ()
        lost = ~_are_finite(after[rows], after_dtype)
        if lost.any():
            lost &= _are_finite(before[rows], dtype)
        if lost.any():
            first = [int(at[0]) for at in np.nonzero(lost)] if after.ndim else []
            if first:
                first[0] += row
            place = [low + at * step for low, at, step in zip(box.start, first, box.distances, strict=True)]
            raise CheckpointError(
                f"parameter {name!r}: the adapter makes values infinite or NaN as {after_dtype}, the first at {place}. "
                "If the adapter's own are finite, convert the base to BFloat16 or Float32 first"
            )


def _are_finite(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Of floating-point values, whose exponents are ones only if they are infinite or NaN."""
    exponent = bits.dtype.type(_EXPONENTS[dtype.name])
    finite: np.ndarray = (bits & exponent) != exponent
    return finite

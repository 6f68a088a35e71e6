"""Fingerprints of quantized matrices by their source: it is read and quantized once more, apart from what was written.

The fingerprint of a matrix before it is quantized is found on the way: it can be compared with that of the source's
files, which do not depend on the plan's reads.
"""

import math
from collections.abc import Iterable, Mapping
from threading import Event, Lock

import numpy as np

from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.tensor.fingerprint import box_fingerprint, combined
from reshard.core.tensor.quantized import Quantized
from reshard.core.tensor.quantizing import stored_scales
from reshard.core.tensor.slices import contiguous_boxes
from reshard.core.transfer.fetches import ChangeOf, change_of
from reshard.core.transfer.parameter_reader import block_reader, open_sources
from reshard.core.transfer.quantizing_reader import KeptFactors, QuantizedMatrix
from reshard.core.transfer.scales import ScaleReader

_BLOCK_BYTES = 8 * 2**20


class QuantizedSums(Record):
    """Fingerprints of a matrix: before it was quantized, of its values in 8 bits, and of the scales of its blocks."""

    before: int
    values: int
    scales: int

    def of(self, quantized: Quantized) -> int:
        """Return the fingerprint of what is made of the matrix."""
        return self.scales if quantized.makes_scales else self.values


def quantize_again(plan: ConversionPlan, workers: int) -> Mapping[str, QuantizedSums]:
    """Quantize all matrices of a plan that are to be quantized; return their fingerprints by the target's names.

    Raises:
        CatalogError: a source file changed since the plan was made.
        CheckpointError: one ends too early, or has values that cannot be quantized.
        StorageError: one cannot be read.
    """
    found: dict[str, QuantizedSums] = {}
    lock, note = Lock(), current_progress().note
    changes = change_of(plan)

    def quantize(parameter: ParameterPlan) -> None:
        assert parameter.quantized is not None
        sums = with_retries(lambda: _sums(plan, parameter, changes), note)
        with lock:
            found[parameter.quantized.weight] = sums

    in_threads(quantize, list(_weights(plan)), workers, Event())
    return found


def _weights(plan: ConversionPlan) -> Iterable[ParameterPlan]:
    """The matrices, each once."""
    if plan.quantizes:
        for rank in plan.target_ranks:
            for parameter in plan.rank_plan(rank).parameters:
                if parameter.quantized is not None and not parameter.quantized.makes_scales:
                    yield parameter


def _sums(plan: ConversionPlan, parameter: ParameterPlan, changes: ChangeOf | None) -> QuantizedSums:
    quantized = parameter.quantized
    assert quantized is not None
    sources = open_sources(plan, {read.source_rank for read in parameter.reads})
    try:
        known = {parameter.name: parameter.before_quantizing}
        reader = block_reader(plan, known, sources, _BLOCK_BYTES, ScaleReader(plan).factors, changes)
        matrix = QuantizedMatrix(parameter, quantized, reader, KeptFactors(), _BLOCK_BYTES)
        before, made, scales = [], [], []
        most = _BLOCK_BYTES // quantized.dtype.itemsize
        for box in contiguous_boxes(quantized.shape, 0, math.prod(quantized.shape), most):
            values, out = matrix.read(box), np.empty(box.shape, np.uint8)
            matrix.quantize(box, values, out)
            before.append(box_fingerprint(values, box.start))
            made.append(box_fingerprint(out, box.start))
        for number in range(quantized.scale_shape[0]):
            row = stored_scales(matrix.factors(number)).view(np.uint32)
            scales.append(box_fingerprint(row[np.newaxis], (number, 0)))
        sources.check_unchanged({read.source_rank for read in parameter.reads})
    finally:
        sources.close()
    return QuantizedSums(combined(before), combined(made), combined(scales))

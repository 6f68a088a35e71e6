"""The factors of block-scaled parameters: whole matrices, a few thousandths of their parameters' sizes.

Those of MXFP4 are a sixteenth, so they are read of a few experts at a time.
"""

import math
import threading
from collections import OrderedDict
from contextlib import closing

import numpy as np

from reshard.core.plan.model import SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.wholes import other_replicas, whole_plan
from reshard.core.tensor.slices import contiguous_boxes
from reshard.core.transfer.whole_reader import BLOCK_BYTES, WholeReader

_MAX_KEPT_BYTES = 2**20
"""Factors of a few matrices: blocks follow one another within a parameter."""


class ScaleReader:
    """Reads factors, and keeps the latest; thread-safe.

    With `others`, of the replicas of a slice the highest rank's is read, not the lowest rank's.
    """

    def __init__(self, plan: ConversionPlan, *, others: bool = False) -> None:
        self._plan = plan
        self._others = others
        self._known: OrderedDict[tuple[str, range], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def factors(self, source: SourceTensor, experts: range) -> np.ndarray:
        """Return the factors of a source parameter, float32 in its shape; if they are bytes, those of some experts.

        Raises:
            CatalogError: a source file is not the one that was planned with.
            CheckpointError: a source file ends too early.
            StorageError: a source file cannot be read.
        """
        if source.dtype.itemsize > 1:
            experts = range(source.shape[0])
        key = source.name, experts
        with self._lock:
            known = self._known.pop(key, None)
            if known is None:
                while self._known and sum(each.nbytes for each in self._known.values()) > _MAX_KEPT_BYTES:
                    self._known.popitem(last=False)
                known = self._read(source, experts)
            self._known[key] = known
            return known

    def _read(self, source: SourceTensor, experts: range) -> np.ndarray:
        shape = len(experts), *source.shape[1:]
        values = np.empty(shape, np.uint8 if source.dtype.itemsize == 1 else np.float32)
        written = values.reshape(-1).view(np.uint8)
        position = 0
        parameter = whole_plan(source, source.copies)
        if self._others:
            parameter = other_replicas(parameter, source)
        with closing(WholeReader(self._plan, parameter)) as reader:
            each = math.prod(shape[1:])
            most = BLOCK_BYTES // source.dtype.itemsize
            for box in contiguous_boxes(source.shape, experts.start * each, experts.stop * each, most):
                block = reader.read(box)
                written[position : position + len(block)] = block
                position += len(block)
        return values

"""The factors of block-scaled parameters: whole matrices, a few thousandths of their parameters' sizes."""

import threading
from collections import OrderedDict
from contextlib import closing

import numpy as np

from reshard.core.plan.model import SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.wholes import other_replicas, whole_plan
from reshard.core.transfer.whole_reader import WholeReader

_MAX_KEPT_BYTES = 2**20
"""Factors of a few matrices: blocks follow one another within a parameter."""


class ScaleReader:
    """Reads factors, and keeps the latest; thread-safe.

    With `others`, of the replicas of a slice the highest rank's is read, not the lowest rank's.
    """

    def __init__(self, plan: ConversionPlan, *, others: bool = False) -> None:
        self._plan = plan
        self._others = others
        self._known: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def factors(self, source: SourceTensor) -> np.ndarray:
        """Return the factors of a source parameter, in its shape.

        Raises:
            CatalogError: a source file is not the one that was planned with.
            CheckpointError: a source file ends too early.
            StorageError: a source file cannot be read.
        """
        with self._lock:
            known = self._known.pop(source.name, None)
            if known is None:
                while self._known and sum(each.nbytes for each in self._known.values()) > _MAX_KEPT_BYTES:
                    self._known.popitem(last=False)
                known = self._read(source)
            self._known[source.name] = known
            return known

    def _read(self, source: SourceTensor) -> np.ndarray:
        values = np.empty(source.shape, np.float32)
        written = values.reshape(-1).view(np.uint8)
        position = 0
        parameter = whole_plan(source, source.copies)
        if self._others:
            parameter = other_replicas(parameter, source)
        with closing(WholeReader(self._plan, parameter)) as reader:
            for box in reader.boxes():
                block = reader.read(box)
                written[position : position + len(block)] = block
                position += len(block)
        return values

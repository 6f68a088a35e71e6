"""The factors of block-scaled parameters: whole matrices, a few thousandths of their parameters' sizes."""

import threading
from collections import OrderedDict
from contextlib import closing

import numpy as np

from reshard.core.plan.model import SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.wholes import whole_plan
from reshard.core.transfer.whole_reader import WholeReader

_MAX_KEPT_BYTES = 2**20
"""Factors of a few matrices: blocks follow one another within a parameter."""


class ScaleReader:
    """Reads factors, and keeps the latest; thread-safe."""

    def __init__(self, plan: ConversionPlan) -> None:
        self._plan = plan
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
        with closing(WholeReader(self._plan, whole_plan(source, source.copies))) as reader:
            for box in reader.boxes():
                block = reader.read(box)
                written[position : position + len(block)] = block
                position += len(block)
        return values

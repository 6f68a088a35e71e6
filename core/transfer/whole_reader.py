"""Reading whole parameters of a source in the order of their elements, whatever their sharding."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.slices import TensorSlice, contiguous_boxes
from reshard.core.transfer.fetches import RankBlock
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.reader import BlockReader, LocalBlockReader, RemoteBlockReader
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles, are_remote

BLOCK_BYTES = 4 * 2**20
"""The largest box that is read at a time."""
_MAX_OPEN_FILES = 32


class WholeReader:
    """Reads boxes of a whole parameter; its plan is for a target without sharding."""

    def __init__(self, plan: ConversionPlan, parameter: ParameterPlan) -> None:
        self._parameters: Mapping[str, ParameterPlan] = {parameter.name: parameter}
        self._parameter = parameter
        self._buffer = np.empty(BLOCK_BYTES, dtype=np.uint8)
        self._block_reader: BlockReader
        self._sources: LocalFiles | RemoteFiles
        if are_remote(plan):
            self._sources = RemoteFiles(plan, (read.source_rank for read in parameter.reads))
            self._block_reader = RemoteBlockReader(plan, [self._parameters], self._sources, 2 * BLOCK_BYTES)
        else:
            self._sources = LocalFiles(plan, _MAX_OPEN_FILES)
            self._block_reader = LocalBlockReader(plan, [self._parameters], self._sources, BLOCK_BYTES)

    def boxes(self) -> Iterator[TensorSlice]:
        """The boxes to read one after the other for the whole tensor."""
        shape = self._parameter.box.shape
        return contiguous_boxes(shape, 0, math.prod(shape), BLOCK_BYTES // self._parameter.dtype.itemsize)

    def read(self, box: TensorSlice) -> np.ndarray:
        """Read the bytes of a box that is contiguous in the whole tensor; they are valid until the next call."""
        size_bytes = box.size * self._parameter.dtype.itemsize
        block = self._buffer[:size_bytes]
        self._block_reader.fill([RankBlock(self._parameters, block, [Chunk(self._parameter.name, box, 0, size_bytes)])])
        return block

    def close(self) -> None:
        """Close the files."""
        self._sources.close()

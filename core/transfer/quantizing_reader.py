"""Fills blocks of target files whose values are quantized: reads each matrix as it was before, then quantizes it.

A value depends on all values of its block, so rows of blocks are read as a whole to find their factors. These are kept:
a file has its scales before its values, and so the matrix is read once for each.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from reshard.core.errors import CheckpointError
from reshard.core.plan.model import ParameterPlan
from reshard.core.tensor.quantized import Quantized
from reshard.core.tensor.quantizing import block_factors, largest_magnitudes, quantize_into, stored_scales
from reshard.core.tensor.slices import TensorSlice, contiguous_boxes
from reshard.core.transfer.fetches import RankBlock
from reshard.core.transfer.file_blocks import Chunk
from reshard.core.transfer.reader import BlockReader

_MAX_KEPT_BYTES = 4 * 2**20
"""The factors of a file of 5 GB take 1.2 MB."""


class KeptFactors:
    """The latest factors of rows of blocks, by weight and number; thread-safe.

    `finding` is held by the only thread that reads a matrix for its factors, which takes much memory.
    """

    def __init__(self) -> None:
        self.finding = threading.Lock()
        self._rows: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, weight: str, number: int) -> np.ndarray | None:
        """Return the factors of a row of blocks; None if they are not known any more."""
        with self._lock:
            return self._rows.get((weight, number))

    def put(self, weight: str, number: int, factors: np.ndarray) -> None:
        """Keep the factors of a row of blocks."""
        with self._lock:
            if (weight, number) in self._rows:
                return
            self._rows[weight, number] = factors
            self._size_bytes += factors.nbytes
            while self._size_bytes > _MAX_KEPT_BYTES and len(self._rows) > 1:
                self._size_bytes -= self._rows.popitem(last=False)[1].nbytes


class QuantizingReader:
    """Fills blocks by another reader, which knows parameters as they are before they are quantized; for one thread.

    While a block is filled it takes a buffer as large as a chunk was before, and one of all threads takes
    `scratch_bytes` to find factors.
    """

    def __init__(self, reader: BlockReader, kept: KeptFactors, scratch_bytes: int) -> None:
        self._reader = reader
        self._kept = kept
        self._scratch_bytes = scratch_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes read from the source."""
        return self._reader.read_bytes

    def fill(self, blocks: Sequence[RankBlock]) -> None:
        """Read the contents of all chunks of the blocks, and quantize some.

        Raises:
            CatalogError: a source file is not the one that was planned with.
            CheckpointError: a source file ends too early, or a value to quantize is infinite or NaN.
            StorageError: a source file cannot be read.
        """
        as_they_are = []
        for block in blocks:
            chunks = [chunk for chunk in block.chunks if block.parameters[chunk.name].quantized is None]
            as_they_are.append(RankBlock(block.parameters, block.buffer, chunks, block.overflows))
        self._reader.fill(as_they_are)
        for block in blocks:
            for chunk in block.chunks:
                parameter = block.parameters[chunk.name]
                if parameter.quantized is not None and chunk.size_bytes:
                    matrix = QuantizedMatrix(
                        parameter, parameter.quantized, self._reader, self._kept, self._scratch_bytes
                    )
                    self._fill_chunk(matrix, chunk, block.buffer)

    def _fill_chunk(self, matrix: "QuantizedMatrix", chunk: Chunk, buffer: np.ndarray) -> None:
        quantized = matrix.quantized
        if not quantized.makes_scales:
            matrix.quantize(
                chunk.box, matrix.read(chunk.box), np.ndarray(chunk.box.shape, np.uint8, buffer, chunk.position)
            )
            return
        scales = np.ndarray(chunk.box.shape, np.float32, buffer, chunk.position)
        [first, low], [stop, high] = chunk.box.start, chunk.box.stop
        for number in range(first, stop):
            scales[number - first] = stored_scales(matrix.factors(number))[low:high]


class QuantizedMatrix:
    """A matrix that is quantized, read by a reader that knows it as it is before."""

    def __init__(
        self, parameter: ParameterPlan, quantized: Quantized, reader: BlockReader, kept: KeptFactors, scratch_bytes: int
    ) -> None:
        self.quantized = quantized
        self._name = parameter.name
        self._parameters = {parameter.name: parameter.before_quantizing}
        self._reader = reader
        self._kept = kept
        self._most_elements = max(1, scratch_bytes // quantized.dtype.itemsize)

    def factors(self, number: int) -> np.ndarray:
        """Return the factors of a row of blocks, float32; they are found for as many rows as can be read at once."""
        known = self._kept.get(self.quantized.weight, number)
        if known is None:
            with self._kept.finding:
                known = self._kept.get(self.quantized.weight, number)
                if known is None:
                    known = self._found(number)
        return known

    def _found(self, number: int) -> np.ndarray:
        height = self.quantized.block[0]
        rows, columns = self.quantized.shape
        count = max(1, self._most_elements // (height * columns))
        stop = min(rows, (number + count) * height)
        largest = np.zeros((-(-stop // height) - number, self.quantized.scale_shape[1]), np.float32)
        start = number * height
        for box in contiguous_boxes(self.quantized.shape, start * columns, stop * columns, self._most_elements):
            values = self.read(box)
            for part in self._block_rows(box):
                there = largest[part.start[0] // height - number]
                self._add_largest(there, part, values[part.relative_to(box).as_index()])
        rows_of_blocks: list[np.ndarray] = list(block_factors(largest))
        for place, row in enumerate(rows_of_blocks, number):
            self._kept.put(self.quantized.weight, place, row)
        return rows_of_blocks[0]

    def quantize(self, box: TensorSlice, values: np.ndarray, out: np.ndarray) -> None:
        """Quantize the values of a box, which is contiguous in the matrix."""
        height, width = self.quantized.block
        factors = {part.start[0]: self.factors(part.start[0] // height) for part in self._block_rows(box)}
        for part in self._block_rows(box):
            there = part.relative_to(box).as_index()
            quantize_into(values[there], self.quantized.dtype, part.start[1], factors[part.start[0]], width, out[there])

    def _block_rows(self, box: TensorSlice) -> Iterator[TensorSlice]:
        """The parts of a box in each row of blocks."""
        height = self.quantized.block[0]
        for number in range(box.start[0] // height, -(-box.stop[0] // height)):
            part = box.intersect(self.quantized.block_row(number))
            if part is not None:
                yield part

    def _add_largest(self, largest: np.ndarray, box: TensorSlice, values: np.ndarray) -> None:
        """Let the largest magnitudes of a box count; refuse values that are not finite."""
        width = self.quantized.block[1]
        found = largest_magnitudes(values, self.quantized.dtype, box.start[1], width)
        if not np.isfinite(found).all():
            column = (box.start[1] // width + int(np.argmin(np.isfinite(found)))) * width
            raise CheckpointError(
                f"parameter {self.quantized.weight!r}: cannot be quantized: it has NaN, infinite or, as float32, too "
                f"large values in the block of {list(self.quantized.block)} near {[box.start[0], column]}"
            )
        there = largest[box.start[1] // width : box.start[1] // width + len(found)]
        np.maximum(there, found, out=there)

    def read(self, box: TensorSlice) -> np.ndarray:
        """Read a box, as unsigned integers."""
        itemsize = self.quantized.dtype.itemsize
        size_bytes = box.size * itemsize
        buffer = np.empty(size_bytes, np.uint8)
        self._reader.fill([RankBlock(self._parameters, buffer, [Chunk(self._name, box, 0, size_bytes)])])
        return np.ndarray(box.shape, f"<u{itemsize}", buffer)

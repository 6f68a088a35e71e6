"""What is made of a matrix that is quantized: arithmetic of blocks, without values."""

from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape, TensorSlice

FP8_BLOCK = (128, 128)
MXFP4_GROUP = 32
"""Values of MXFP4 that share a scale."""


class Quantized(Record):
    """What is made of a matrix that is quantized: its values in 8 bits, or the scales of its blocks.

    Attributes:
        weight: name of the matrix in the target.
        makes_scales: the scales are made, not the values.
        dtype: element type of the matrix before.
        shape: shape of the matrix.
        block: lengths of a block; those at the ends of axes may be shorter.
    """

    weight: str
    makes_scales: bool
    dtype: DType
    shape: Shape
    block: Shape = FP8_BLOCK

    @property
    def scale_shape(self) -> Shape:
        """One element for each block."""
        return tuple(-(-length // side) for length, side in zip(self.shape, self.block, strict=True))

    def block_row(self, number: int) -> TensorSlice:
        """A row of blocks, as a box of the matrix."""
        rows, columns = self.shape
        start = number * self.block[0]
        return TensorSlice((start, 0), (min(rows, start + self.block[0]), columns))

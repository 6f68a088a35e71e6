"""Low-rank additions to matrices: W + s * (B @ A), element by element the bits that peft's merge gives.

PyTorch's float32 product adds one term after the other, in the order of the rank: a chain of fused multiply-adds, each
rounded once. Neither numpy nor its BLAS has that operation, and another order of the terms gives other bits. But W has
16 bits mostly, and nearly always every value near the product leads to the same sum. So the product is computed fast,
with a bound of its error; where both ends of the bound lead to the same value, that is the value. The others, and all
of a float32 W, are computed as chains: products of float32 are exact in float64, in which each sum is rounded to
float32.

What an element becomes does not depend on the box that it is computed in.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import typed
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape

_MAX_CHAIN = 192
"""Terms that MKL adds in one chain; more are divided into equal chains, whose sums are added."""
_TILE_ROWS, _TILE_ELEMENTS = 128, 2**15
"""Sides of a tile are alike: each tile prepares its rows of B and its columns of A."""
_MAX_TILE_TERMS = 2**19
"""Elements of a tile's rows of B, and of its columns of A: a rank may be larger than any side of W."""
_MAX_PRODUCT = 2**18
"""Multiply-adds of a BLAS call: OpenBLAS divides larger ones among threads of its own, which wait for each other."""
_MAX_GATHERED = 2**18
"""Terms of the elements that are computed as chains at once."""
_UNIT = 2.0**-24
"""Relative error of one float32 rounding."""
_SLACK = 1.01
"""For errors of errors."""
_SMALLEST = 2.0**-149
_LARGE = 1e37
"""Beyond this a product might become infinite on the way."""


class LowRank(Record, eq=False):
    """What is added to a matrix of shape (rows, columns).

    Attributes:
        b: float32 array of shape (rows, rank).
        a: float32 array of shape (rank, columns).
        scale: s.
        rounds_twice: the addition is rounded to W's dtype before it is added.
    """

    b: np.ndarray
    a: np.ndarray
    scale: float
    rounds_twice: bool = False


def with_low_rank(values: np.ndarray, dtype: DType, start: Shape, added: LowRank) -> np.ndarray:
    """Add the elements of a box to its values.

    Args:
        values: bits of the box's values, of any strides; a matrix of 16 or 32 bits an element.
        dtype: their floating-point type.
        start: the box's first index in the whole matrix.
        added: what is added to the whole matrix.

    Returns:
        The bits of the sums, a C-ordered array.
    """
    box = _Box(values, dtype, start, added)
    with np.errstate(all="ignore"):
        for tile in box.tiles():
            box.add(tile)
        box.settle()
    return box.sums


class _Box:
    """The values of a box; `sums` are the bits of what is known so far."""

    def __init__(self, values: np.ndarray, dtype: DType, start: Shape, added: LowRank) -> None:
        self.sums = np.empty(values.shape, values.dtype)
        self._values = values
        self._dtype = dtype
        self._b = added.b[start[0] : start[0] + values.shape[0]]
        self._a = added.a[:, start[1] : start[1] + values.shape[1]]
        self._scale = np.float32(added.scale)
        self._rounds_twice = added.rounds_twice
        self._unsure: list[tuple[np.ndarray, np.ndarray]] = []

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of parts that fit the processor's caches."""
        rows, columns = self._values.shape
        most = max(1, _MAX_TILE_TERMS // max(1, len(self._a)))
        height = max(1, min(rows, _TILE_ROWS, most))
        width = min(_TILE_ELEMENTS // height, most)
        for low in range(0, rows, height):
            for left in range(0, columns, width):
                yield slice(low, low + height), slice(left, left + width)

    def add(self, tile: tuple[slice, slice]) -> None:
        """Add the sums of a tile; those that are not sure are noted."""
        b, a = self._b[tile[0]].astype(np.float64), self._a[:, tile[1]].astype(np.float64)
        values = self._typed(np.ascontiguousarray(self._values[tile]))
        bound = None if values.dtype == np.float32 else _bound(b, a)
        if bound is None:
            self.sums[tile] = self._added(values, _chains(b.T[:, :, np.newaxis], a[:, np.newaxis]))
            return
        products = _products(b, a)
        sums = self._added(values, products - bound)
        self.sums[tile] = sums
        unsure = np.flatnonzero(sums != self._added(values, products + bound))
        if len(unsure):
            rows, columns = np.divmod(unsure, sums.shape[1])
            self._unsure.append((rows + tile[0].start, columns + tile[1].start))

    def settle(self) -> None:
        """Compute the sums that are not sure as chains: many at once, since each step is a few calls of numpy."""
        if not self._unsure:
            return
        all_rows, all_columns = map(np.concatenate, zip(*self._unsure, strict=True))
        at_once = max(1, _MAX_GATHERED // len(self._a))
        for first in range(0, len(all_rows), at_once):
            rows, columns = (each[first : first + at_once] for each in (all_rows, all_columns))
            b, a = np.ascontiguousarray(self._b[rows].T, np.float64), self._a[:, columns].astype(np.float64)
            self.sums[rows, columns] = self._added(self._typed(self._values[rows, columns]), _chains(b, a))

    def _typed(self, values: np.ndarray) -> np.ndarray:
        return typed(values, self._dtype)

    def _added(self, values: np.ndarray, products: np.ndarray) -> np.ndarray:
        """The bits of the sums of values and scaled products, which rise, or fall, with the products."""
        products = products * self._scale
        if self._rounds_twice:
            products = products.astype(values.dtype).astype(np.float32)
        products += values.astype(np.float32)
        rounded: np.ndarray = products.astype(values.dtype)
        bits: np.ndarray = rounded.view(f"u{values.itemsize}")
        return bits


def _bound(b: np.ndarray, a: np.ndarray) -> np.ndarray | None:
    """What the chains' results and the products differ by at most; None if a chain might become infinite.

    Each step of a chain is wrong by a half unit of its sum at most, and a sum of k products is not larger than the root
    of the sums of k squares of B times that of A; so Schwarz's inequality bounds all steps together.
    """
    rank = len(a)
    steps = np.arange(rank, 0, -1) + 2.0  # and two more: the chains' sum, and the rounding of the product
    of_rows, of_columns = np.sqrt((b**2) @ steps), np.sqrt(steps @ (a**2))
    if not of_rows.max(initial=0) * of_columns.max(initial=0) < _LARGE:  # there may be NaNs
        return None
    bound: np.ndarray = np.outer((of_rows * (_UNIT * _SLACK)).astype(np.float32), of_columns.astype(np.float32))
    bound += np.float32(2 * rank * _SMALLEST)
    return bound


def _products(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    """B @ A, each element rounded to float32 once, but for an error that does not count."""
    rank, columns = a.shape
    products = np.empty((len(b), columns), np.float32)
    width = max(1, min(columns, _MAX_PRODUCT // max(1, rank)))
    height = max(1, _MAX_PRODUCT // (max(1, rank) * width))
    for low in range(0, len(b), height):
        for left in range(0, columns, width):
            products[low : low + height, left : left + width] = b[low : low + height] @ a[:, left : left + width]
    return products


def _chains(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Sums of products over the rank, the first axis of both, in its order; float32."""
    rank = len(a)
    count = -(-rank // _MAX_CHAIN)
    borders = [rank * number // count for number in range(count + 1)]
    total = _chain(b[: borders[1]], a[: borders[1]])
    for low, high in pairwise(borders[1:]):
        total = total + _chain(b[low:high], a[low:high])
    return total


def _chain(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    total: np.ndarray = (b[0] * a[0]).astype(np.float32)
    term = np.empty(total.shape, np.float64)
    for left, right in zip(b[1:], a[1:], strict=True):
        np.multiply(left, right, out=term)
        term += total.astype(np.float64)
        total = term.astype(np.float32)
    return total

"""Low-rank additions to matrices: W + s * (B @ A), element by element the bits that peft's merge gives.

PyTorch's float32 product adds one term after the other, in the order of the rank: a chain of fused multiply-adds, each
rounded once. Neither numpy nor its BLAS has that operation, and another order of the terms gives other bits. But W has
16 bits mostly, and nearly always every value near the sum is rounded to the same 16 bits. So the product is computed
fast, in float32 and any order, with a bound of its error; where both ends of the bound round alike, that is the value.
The others, and all of a float32 W, are computed as chains: products of float32 are exact in float64, in which each sum
is rounded to float32.

What an element becomes does not depend on the box that it is computed in.
"""

import math
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import typed
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape

_MAX_CHAIN = 192
"""Terms that MKL adds in one chain; more are divided into equal chains, whose sums are added."""
_TILE_COLUMNS, _TILE_ELEMENTS = 2048, 2**17
"""A tile's buffers, 2 MiB, fit a processor's caches; smaller ones mean more calls, for which threads wait in turn."""
_CHAINED_ELEMENTS = 2**15
"""Elements of a tile of float32, whose chains take more memory."""
_MAX_TILE_TERMS = 2**19
"""Elements of a tile's rows of B, and of its columns of A: a rank may be larger than any side of W."""
_MAX_PRODUCT = 2**26 if os.environ.get("OPENBLAS_NUM_THREADS") == "1" else 2**18
"""Multiply-adds of a BLAS call: OpenBLAS divides larger ones among its threads, if it has any, which wait in turn."""
_MAX_GATHERED = 2**18
"""Terms of the elements that are computed one by one, at once."""
_UNIT = 2.0**-24
"""Relative error of one float32 rounding."""
_SLACK = 1.01
"""For errors of errors."""
_SMALLEST = 2.0**-149
_LARGE = 1e37
"""Beyond this a product might become infinite on the way."""
_HALF = np.uint32(0x8000)
"""Half of a bfloat16's last bit, in the bits of a float32."""
_SIGN = np.uint32(0x80000000)
_STEPS = np.uint32(4)
"""float32 values that roundings after the product may be away: of the sum, here and in peft, and of an end."""


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


def with_low_rank(
    values: np.ndarray, dtype: DType, start: Shape, added: LowRank, out: np.ndarray | None = None
) -> np.ndarray:
    """Add the elements of a box to its values.

    Args:
        values: bits of the box's values, of any strides; a matrix of 16 or 32 bits an element.
        dtype: their floating-point type.
        start: the box's first index in the whole matrix.
        added: what is added to the whole matrix.
        out: where the sums are put, an array like `values`, without overlap; by default a new one in C order.

    Returns:
        The bits of the sums.
    """
    sums = np.empty(values.shape, values.dtype) if out is None else out
    box = _Box(values, dtype, start, added, sums)
    with np.errstate(all="ignore"):
        for tile in box.tiles():
            box.add(tile)
        box.settle()
    return sums


class _Tile(Record, eq=False):
    """Memory for the steps of a tile.

    Attributes:
        near: float32, near the numbers to be rounded.
        inner: float32, and as near; `outer` is farther from zero.
        outer: float32.
        inner_bits: `inner`, rounded to 16 bits; `outer_bits` are those of `outer`.
        outer_bits: uint16.
    """

    near: np.ndarray
    inner: np.ndarray
    outer: np.ndarray
    inner_bits: np.ndarray
    outer_bits: np.ndarray


class _Buffers(threading.local):
    """Memory for one tile in each thread, used again and again: new pages cost as much as the work on them."""

    def __init__(self) -> None:
        self._floats = np.empty((3, _TILE_ELEMENTS), np.float32)
        self._bits = np.empty((2, _TILE_ELEMENTS), np.uint16)

    def of(self, shape: Shape) -> _Tile:
        """Return the memory of a tile of this shape."""
        count = math.prod(shape)
        return _Tile(*(each[:count].reshape(shape) for each in (*self._floats, *self._bits)))


_BUFFERS = _Buffers()


class _Box:
    """The values of a box, and their sums as far as they are known."""

    def __init__(self, values: np.ndarray, dtype: DType, start: Shape, added: LowRank, sums: np.ndarray) -> None:
        self._values, self._sums = typed(values, dtype), typed(sums, dtype)
        self._b = added.b[start[0] : start[0] + values.shape[0]]
        self._a = added.a[:, start[1] : start[1] + values.shape[1]]
        self._rank = len(added.a)
        self._scale = np.float32(added.scale)
        self._rounds_twice = added.rounds_twice
        self._of_rows, self._of_columns = _norms(self._b), _norms(self._a.T)
        self._unsure: list[tuple[np.ndarray, np.ndarray]] = []

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of parts that fit the processor's caches."""
        rows, columns = self._values.shape
        most = max(1, _MAX_TILE_TERMS // max(1, self._rank))
        width = max(1, min(columns, _TILE_COLUMNS, most))
        elements = _TILE_ELEMENTS if self._values.itemsize == 2 else _CHAINED_ELEMENTS
        height = min(elements // width, most)
        for low in range(0, rows, height):
            for left in range(0, columns, width):
                yield slice(low, low + height), slice(left, left + width)

    def add(self, tile: tuple[slice, slice]) -> None:
        """Add the sums of a tile; those that are not sure are noted."""
        b, a = self._b[tile[0]], self._a[:, tile[1]]
        values, sums = self._values[tile], self._sums[tile]
        error = self._error(tile)
        if error is None or values.itemsize != 2:
            chains = _chains(b.T[:, :, np.newaxis].astype(np.float64), a[:, np.newaxis].astype(np.float64))
            sums[...] = self._added(values, chains)
            return
        steps = _BUFFERS.of(values.shape)
        _multiply(b * self._scale, a, steps.near)
        add = _add_rounded if self._rounds_twice else _add
        unsure = add(steps, values, error, sums)
        if len(unsure):
            rows, columns = np.divmod(unsure, values.shape[1])
            self._unsure.append((rows + tile[0].start, columns + tile[1].start))

    def _error(self, tile: tuple[slice, slice]) -> np.float32 | None:
        """What the scaled products of a tile and of chains differ by at most; None if one might become infinite.

        Each rounding is wrong by a half unit of the sum of the terms' sizes at most, which by Schwarz's inequality is
        not larger than the norm of B's row times that of A's column. There are as many as terms, here and in a chain,
        and four more: two of the scale, one of the chains' sum, one to spare.
        """
        scale = abs(float(self._scale))
        row, column = self._of_rows[tile[0]].max(), self._of_columns[tile[1]].max()
        # partial sums, products with the scale, and B times the scale; not `max`, which drops NaNs
        if not np.maximum(scale, 1) * row * np.maximum(column, 1) < _LARGE:
            return None
        rounding = _UNIT * (2 * self._rank + 4) * scale * row * column
        underflow = _SMALLEST * self._rank * (2 + 2 * scale + column)
        return np.float32(_SLACK * (rounding + underflow))

    def settle(self) -> None:
        """Compute the sums that are not sure: many at once, since each step is a few calls of numpy."""
        if not self._unsure:
            return
        all_rows, all_columns = map(np.concatenate, zip(*self._unsure, strict=True))
        # roundings that a term goes through in a chain; two more: the chains' sum, and the rounding of the product
        roundings = np.arange(self._rank, 0, -1) + 2.0
        of_rows = _norms(self._b, roundings) * (_UNIT * _SLACK)
        of_columns = _norms(self._a.T, roundings)
        at_once = max(1, _MAX_GATHERED // self._rank)
        of_a = self._a.T if self._a.size > _MAX_TILE_TERMS else np.ascontiguousarray(self._a.T)
        for first in range(0, len(all_rows), at_once):
            rows, columns = (each[first : first + at_once] for each in (all_rows, all_columns))
            values, b, a = self._values[rows, columns], self._b[rows], of_a[columns]
            products = np.einsum("ij,ij->i", b, a, dtype=np.float64)
            errors = of_rows[rows] * of_columns[columns] + 2 * self._rank * _SMALLEST
            sums, others = (self._added(values, (products + each).astype(np.float32)) for each in (-errors, errors))
            unsure = np.flatnonzero(_bits(sums) != _bits(others))
            chains = _chains(b[unsure].T.astype(np.float64), a[unsure].T.astype(np.float64))
            sums[unsure] = self._added(values[unsure], chains)
            self._sums[rows, columns] = sums

    def _added(self, values: np.ndarray, products: np.ndarray) -> np.ndarray:
        """The sums of values and scaled products, which rise, or fall, with the products."""
        products = products * self._scale
        if self._rounds_twice:
            products = products.astype(values.dtype).astype(np.float32)
        products += values.astype(np.float32)
        return products.astype(values.dtype)


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}")


def _add(steps: _Tile, values: np.ndarray, error: np.float32, out: np.ndarray) -> np.ndarray:
    """Add products, which are `steps.near`, to values; return the places, in C order, of sums that are not sure."""
    steps.inner[...] = values
    np.add(steps.near, steps.inner, out=steps.near)
    unsure = _round(steps, error, out.dtype)
    out[...] = steps.outer_bits.view(out.dtype)
    return unsure


def _add_rounded(steps: _Tile, values: np.ndarray, error: np.float32, out: np.ndarray) -> np.ndarray:
    """Do what `_add` does with products that are rounded first; of those that are not sure few change the sum."""
    places = _round(steps, error, out.dtype)
    inner, outer = (each.view(out.dtype) for each in (steps.inner_bits, steps.outer_bits))
    steps.inner[...] = values
    steps.near[...] = outer
    np.add(steps.near, steps.inner, out=steps.near)
    out[...] = steps.near
    sums = steps.near.reshape(-1)[places].astype(out.dtype)
    others = (steps.inner.reshape(-1)[places] + inner.reshape(-1)[places].astype(np.float32)).astype(out.dtype)
    changed: np.ndarray = places[_bits(sums) != _bits(others)]
    return changed


def _round(steps: _Tile, error: np.float32, dtype: np.dtype[Any]) -> np.ndarray:
    """Round the ends of what numbers may be, which are near `steps.near`, to a type of 16 bits.

    Args:
        steps: all but `near` are overwritten.
        error: how far numbers may be away, but for `_STEPS`.
        dtype: bfloat16 or float16.

    Returns:
        The places, in C order, where the ends are not rounded alike.
    """
    near, inner, outer = (each.view(np.uint32) for each in (steps.near, steps.inner, steps.outer))
    np.bitwise_and(near, _SIGN, out=outer)
    np.bitwise_or(outer, error.view(np.uint32), out=outer)
    np.subtract(steps.near, steps.outer, out=steps.inner)
    np.add(steps.near, steps.outer, out=steps.outer)
    # bits of a sign and a magnitude: one more is the next float32 away from zero
    if dtype == np.float16:
        inner -= _STEPS
        outer += _STEPS
        steps.inner_bits.view(np.float16)[...] = steps.inner
        steps.outer_bits.view(np.float16)[...] = steps.outer
    else:  # bfloat16 is the upper half; where an end is halfway, or a step away, the other is on the other side
        inner += _HALF - _STEPS
        outer += _HALF + _STEPS
        np.right_shift(inner, 16, out=steps.inner_bits, casting="unsafe")
        np.right_shift(outer, 16, out=steps.outer_bits, casting="unsafe")
    return np.flatnonzero(steps.inner_bits != steps.outer_bits)


def _norms(rows: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Euclidean norms of a matrix's rows, whose squares may have weights; float64."""
    weights = np.ones(rows.shape[1]) if weights is None else weights
    squares: np.ndarray = np.einsum("ij,ij,j->i", rows, rows, weights, dtype=np.float64)
    norms: np.ndarray = np.sqrt(squares)
    return norms


def _multiply(b: np.ndarray, a: np.ndarray, out: np.ndarray) -> None:
    """Put B @ A into an array."""
    most = _MAX_PRODUCT // max(1, len(a))
    height = max(1, min(len(b), math.isqrt(most)))
    width = max(1, most // height)
    for low in range(0, len(b), height):
        for left in range(0, a.shape[1], width):
            part = out[low : low + height, left : left + width]
            np.matmul(b[low : low + height], a[:, left : left + width], out=part)


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
    term = b[0] * a[0]
    total: np.ndarray = term.astype(np.float32)
    for left, right in zip(b[1:], a[1:], strict=True):
        np.multiply(left, right, out=term)
        term += total
        total[...] = term
    return total

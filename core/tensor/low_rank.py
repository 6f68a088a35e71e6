"""Low-rank additions to matrices: W + s * (B @ A), element by element the bits that peft's merge gives.

PyTorch's float32 product adds one term after the other, in the order of the rank: a chain of fused multiply-adds, each
rounded once. Neither numpy nor its BLAS has that operation, and another order of the terms gives other bits. But W has
16 bits mostly, and nearly always every value near the sum is rounded to the same 16 bits. So the product is computed
fast, in float32 and any order, with a bound of its error; where the next border, halfway between two values of 16 bits,
is farther away, the sum is rounded as it is. The others, and all of a float32 W, are computed as chains: products of
float32 are exact in float64, in which each sum is rounded to float32. Where float64 has rounded it already, to halfway
between two values, what was lost decides; but not below 2**-126, where float32's values are farther apart.

What an element becomes does not depend on the box that it is computed in.
"""

import math
import os
import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import typed
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.slices import Shape

_MAX_CHAIN = 192
"""Terms that MKL adds in one chain; more are divided into equal chains, whose sums are added."""
_TILE_COLUMNS, _TILE_ELEMENTS = 2048, 2**18
"""A tile's buffers, 3 MiB, fit a processor's caches; smaller ones mean more calls, for which threads wait in turn."""
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
_DROPPED_BITS = np.uint32(16)
"""bfloat16 is the upper half of a float32."""
_KEPT, _HALF = np.uint32(0xFFFF0000), np.uint32(0x8000)
"""Bits of a float32: those that bfloat16 keeps, and half of the last of them, which a border has."""
_LEAST_BORDER = np.float32(2.0**-134)
"""The border next to zero, which has two signs: numbers so near to it are never sure."""
_TIMES_ERROR = np.float32(2.01)
"""A sum is sure if the border between the values on both sides is farther away than this many times its error. Then no
other border is within reach: the nearest may be one below a power of two, which is half as far away."""
_BELOW_FLOAT32, _HALF_OF_FLOAT32 = np.uint64(2**29 - 1), np.uint64(2**28)
"""Bits of a float64: those that float32 drops, and half of the last one that it keeps."""
_STEPS = np.uint32(2)
"""float32 values that a sum may be away because it is rounded to float32, here and in peft."""
_RELATIVE_STEPS = np.float32((_STEPS + 1) * 2.0**-23)
"""More than `_STEPS`, of a float32."""


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
        other: float32.
        another: float32.
        bits: uint16.
        unsure: bool, true where a number's neighbors are not all rounded alike.
        also_unsure: bool.
    """

    near: np.ndarray
    other: np.ndarray
    another: np.ndarray
    bits: np.ndarray
    unsure: np.ndarray
    also_unsure: np.ndarray


class _Buffers(threading.local):
    """Memory for one tile in each thread, used again and again: new pages cost as much as the work on them."""

    def __init__(self) -> None:
        kinds = np.float32, np.float32, np.float32, np.uint16, np.bool_, np.bool_
        self._buffers = [np.empty(_TILE_ELEMENTS, kind) for kind in kinds]

    def of(self, shape: Shape) -> _Tile:
        """Return the memory of a tile of this shape."""
        count = math.prod(shape)
        return _Tile(*(each[:count].reshape(shape) for each in self._buffers))


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
        # roundings that a term goes through in a chain; two more: the chains' sum, and the rounding of the product
        roundings = np.arange(self._rank, 0, -1) + 2.0
        self._of_rows = _norms(self._b, roundings) * (_UNIT * _SLACK)
        self._of_columns = _norms(self._a.T, roundings)
        self._errors = self._product_errors() if values.itemsize == 2 else None
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
        if self._errors is None:
            chains = _chains(b.T[:, :, np.newaxis].astype(np.float64), a[:, np.newaxis].astype(np.float64))
            sums[...] = self._added(values, chains)
            return
        steps = _BUFFERS.of(values.shape)
        _multiply(b * self._scale, a, steps.near)
        add = _add_rounded if self._rounds_twice else _add
        unsure = add(steps, values, self._errors[tile[1]], sums)
        if len(unsure):
            rows, columns = np.divmod(unsure, values.shape[1])
            self._unsure.append((rows + tile[0].start, columns + tile[1].start))

    def _product_errors(self) -> np.ndarray | None:
        """What scaled products and those of chains differ by at most, for each column; None if one may become infinite.

        Each rounding is wrong by a half unit of the sum of the terms' sizes at most, which by Schwarz's inequality is
        not larger than the norm of B's row times that of A's column. Here a term goes through as many as there are
        terms, and four more: two of the scale, two to spare.
        """
        scale = abs(float(self._scale))
        row, columns = _norms(self._b).max(), _norms(self._a.T)
        # partial sums, products with the scale, and B times the scale; not `max`, which drops NaNs
        if not np.maximum(scale, 1) * row * np.maximum(columns.max(), 1) < _LARGE:
            return None
        here = _SLACK * _UNIT * (self._rank + 4) * row * columns
        in_chains = self._of_rows.max() * self._of_columns
        underflow = _SLACK * _SMALLEST * self._rank * (2 + 2 * scale + columns)
        errors: np.ndarray = (scale * (here + in_chains) + underflow).astype(np.float32)
        return errors

    def settle(self) -> None:
        """Compute the sums that are not sure: many at once, since each step is a few calls of numpy."""
        if not self._unsure:
            return
        all_rows, all_columns = map(np.concatenate, zip(*self._unsure, strict=True))
        at_once = max(1, _MAX_GATHERED // self._rank)
        of_a = self._a.T if self._a.size > _MAX_TILE_TERMS else np.ascontiguousarray(self._a.T)
        for first in range(0, len(all_rows), at_once):
            rows, columns = (each[first : first + at_once] for each in (all_rows, all_columns))
            values, b, a = self._values[rows, columns], self._b.take(rows, 0), of_a.take(columns, 0)
            products = np.einsum("ij,ij->i", b, a, dtype=np.float64)
            errors = self._of_rows[rows] * self._of_columns[columns] + 2 * self._rank * _SMALLEST
            sums, others = (self._added(values, (products + each).astype(np.float32)) for each in (-errors, errors))
            unsure = np.flatnonzero(_bits(sums) != _bits(others))
            b, a = (each.take(unsure, 0).T.astype(np.float64, order="C") for each in (b, a))
            sums[unsure] = self._added(values[unsure], _chains(b, a))
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


def _add(steps: _Tile, values: np.ndarray, errors: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Add products, which are `steps.near`, to values; return the places, in C order, of sums that are not sure."""
    _widen(values, steps.other)
    np.add(steps.near, steps.other, out=steps.near)
    return _round(steps, errors, out)


def _add_rounded(steps: _Tile, values: np.ndarray, errors: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Do what `_add` does with products that are rounded first; of those that are not sure few change the sum."""
    places = _round(steps, errors, out)
    near = steps.near.reshape(-1)[places]
    low, high = np.empty((2, *near.shape), np.float32)
    _ends(near, errors[places % values.shape[1]], low, high)
    _widen(values, steps.other)
    _widen(out, steps.near)
    np.add(steps.near, steps.other, out=steps.near)
    out[...] = steps.near
    added_to = steps.other.reshape(-1)[places]
    sums, others = ((added_to + end.astype(out.dtype).astype(np.float32)).astype(out.dtype) for end in (low, high))
    changed: np.ndarray = places[_bits(sums) != _bits(others)]
    return changed


def _widen(values: np.ndarray, out: np.ndarray) -> None:
    """Put values of 16 bits into an array of float32."""
    if values.dtype == np.float16:
        out[...] = values
    else:  # not by ml_dtypes, for which other threads wait
        out = _bits(out)
        out[...] = _bits(values)
        np.left_shift(out, _DROPPED_BITS, out=out)


def _ends(near: np.ndarray, errors: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Put the least and the largest numbers that are near these into arrays of float32."""
    np.abs(near, out=high)
    np.multiply(high, _RELATIVE_STEPS, out=high)
    np.add(high, errors, out=high)
    np.subtract(near, high, out=low)
    np.add(near, high, out=high)


def _round(steps: _Tile, errors: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Round the numbers in `steps.near`, which is kept, to a type of 16 bits.

    Args:
        steps: memory.
        errors: how far what is to be rounded may be away from them, but for `_STEPS`; of each column.
        out: bfloat16 or float16.

    Returns:
        The places, in C order, of numbers that are not sure: those so near are not all rounded alike.
    """
    round_tile = _round_to_float16 if out.dtype == np.float16 else _round_to_bfloat16
    round_tile(steps, errors, out)
    return np.flatnonzero(steps.unsure)


def _round_to_float16(steps: _Tile, errors: np.ndarray, out: np.ndarray) -> None:
    _ends(steps.near, errors, steps.other, steps.another)
    steps.bits.view(np.float16)[...] = steps.other
    out[...] = steps.another
    np.not_equal(steps.bits, _bits(out), out=steps.unsure)


def _round_to_bfloat16(steps: _Tile, errors: np.ndarray, out: np.ndarray) -> None:
    near, other = _bits(steps.near), _bits(steps.other)
    # the distance from the border between the values on both sides
    np.bitwise_and(near, _KEPT, out=other)
    np.bitwise_or(other, _HALF, out=other)
    np.subtract(steps.near, steps.other, out=steps.other)
    np.abs(steps.other, out=steps.other)
    np.less_equal(steps.other, np.maximum(_TIMES_ERROR * errors, _LEAST_BORDER), out=steps.unsure)
    # bits of a sign and a magnitude: one more is the next float32 away from zero
    np.add(near, _HALF + _STEPS, out=other)
    # what bfloat16 drops of that is small beside a border
    steps.bits[...] = other
    np.right_shift(other, _DROPPED_BITS, out=other)
    _bits(out)[...] = other
    np.less_equal(steps.bits, np.uint16(2 * _STEPS), out=steps.also_unsure)
    np.logical_or(steps.unsure, steps.also_unsure, out=steps.unsure)


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
    bits = np.empty(term.shape, np.uint64)
    halfway = np.empty(term.shape, np.bool_)
    for left, right in zip(b[1:], a[1:], strict=True):
        np.multiply(left, right, out=term)
        term += total
        np.bitwise_and(_bits(term), _BELOW_FLOAT32, out=bits)
        np.equal(bits, _HALF_OF_FLOAT32, out=halfway)
        if halfway.any():
            factors = (np.broadcast_to(each, term.shape)[halfway] for each in (left, right))
            term[halfway] = _with_lost(term[halfway], np.multiply(*factors), total[halfway].astype(np.float64))
        total[...] = term
    return total


def _with_lost(sums: np.ndarray, products: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Move sums of products and totals, in float64, by one value toward what their rounding lost, if anything.

    A sum that is halfway between two values of float32 would otherwise be rounded a second time, perhaps the wrong way.
    """
    added = sums - products
    lost = (products - (sums - added)) + (totals - added)
    moved: np.ndarray = np.where(lost == 0, sums, np.nextafter(sums, np.copysign(np.inf, lost)))
    return moved

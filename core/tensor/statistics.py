"""Statistics of arrays that arrive in blocks, in float64."""

import math
from typing import Any

import numpy as np
from msgspec import Struct

_PART = 2**18
"""Elements that are cast to float64 at a time."""


class Statistics(Struct):
    """What was seen of an array's elements: counts, and of the finite numbers their range, mean and deviation.

    Attributes:
        count: all elements.
        nan: those that are NaN.
        positive_inf: those that are Inf.
        negative_inf: those that are -Inf.
        zeros: those that are zero, of either sign.
        least: the smallest finite number; None if there is none.
        greatest: the largest.
    """

    count: int = 0
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0
    zeros: int = 0
    least: float | int | None = None
    greatest: float | int | None = None
    _finite: int = 0
    _mean: float = 0.0
    _squares: float = 0.0

    @property
    def mean(self) -> float | None:
        """The mean of the finite numbers; None if there is none."""
        return self._mean if self._finite else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the finite numbers, as numpy's `std`; None if there is none."""
        return math.sqrt(self._squares / self._finite) if self._finite else None

    def add(self, values: np.ndarray) -> None:
        """Add numbers, of any dtype that has an order."""
        flat = values.reshape(-1)
        for start in range(0, len(flat), _PART):
            self._add(flat[start : start + _PART])

    def _add(self, values: np.ndarray) -> None:
        self.count += len(values)
        if values.dtype.kind in "iub":
            self.zeros += len(values) - int(np.count_nonzero(values))
            self._add_finite(values, values.astype(np.float64))
            return
        with np.errstate(invalid="ignore"):  # numpy warns of signaling NaN
            numbers = values.astype(np.float64)
        is_nan = np.isnan(numbers)
        self.nan += int(np.count_nonzero(is_nan))
        self.positive_inf += int(np.count_nonzero(numbers == np.inf))
        self.negative_inf += int(np.count_nonzero(numbers == -np.inf))
        self.zeros += int(np.count_nonzero(numbers == 0))
        is_finite = np.isfinite(numbers)
        if not is_finite.all():
            numbers = numbers[is_finite]
        self._add_finite(numbers, numbers)

    def _add_finite(self, exact: np.ndarray, numbers: np.ndarray) -> None:
        """Add finite numbers: their range as they are, which float64 may not hold, and the rest in float64."""
        count = len(numbers)
        if not count:
            return
        low, high = _number(exact.min()), _number(exact.max())
        self.least = low if self.least is None else min(self.least, low)
        self.greatest = high if self.greatest is None else max(self.greatest, high)
        # halves and quarters, because the sum of large numbers may be more than float64 holds
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(np.mean(numbers))
            if not math.isfinite(mean):
                mean = float(np.mean(numbers / count) * count)
            squares = float(np.sum((numbers - mean) ** 2))
        total = self._finite + count
        shift = mean - self._mean
        self._squares += squares + shift * shift * (self._finite * count / total)
        self._mean += shift * (count / total)
        self._finite = total


def _number(value: Any) -> float | int:
    number: float | int = value.item()
    return int(number) if isinstance(number, bool) else number

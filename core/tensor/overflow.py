"""What a cast did to values that its dtype cannot hold; without ml_dtypes, which only casts need."""

from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape


class Overflow(Record):
    """Finite values that became infinite.

    Attributes:
        count: how many; at least one.
        largest: the value farthest from zero.
        first: index of the first one.
    """

    count: int
    largest: float
    first: Shape

    def joined(self, other: "Overflow") -> "Overflow":
        """Return the sum of two overflows of one array."""
        largest = self.largest if abs(self.largest) >= abs(other.largest) else other.largest
        return Overflow(self.count + other.count, largest, min(self.first, other.first))

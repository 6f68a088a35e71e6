"""What becomes of the values of a piece on their way: scaled or adapted by their places, then changed one by one."""

from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape


class BlockScale(Record, tag=True):
    """Factors of a matrix's values: one for each block of `block` elements, counted from the whole matrix's beginning.

    `source` is the index of the source parameter that holds them, a matrix with an element for each block. With
    `is_packed` the values are MXFP4: two a byte along the last axis, in groups of `block` along it.
    """

    source: int
    block: Shape
    is_packed: bool = False


class Adaptation(Record, tag=True):
    """An adapter changes the values, by their places in the whole source parameter."""


class Increase(Record, tag=True):
    """A `number` is added to the values."""

    number: int


class Zeroing(Record, tag=True):
    """Zeros are in place of the values."""


class ValueChanges(Record):
    """What becomes of values: first `by_place` in the whole source parameter, if at all, then of `each` by itself."""

    by_place: BlockScale | Adaptation | None = None
    each: tuple[Increase | Zeroing, ...] = ()

    @property
    def scale(self) -> BlockScale | None:
        """Factors of the values, if they are scaled."""
        return self.by_place if isinstance(self.by_place, BlockScale) else None

    @property
    def is_adapted(self) -> bool:
        """True if an adapter changes the values."""
        return isinstance(self.by_place, Adaptation)

    def increased(self, number: int) -> "ValueChanges":
        """Return these with a number added at the end; two in turn are added as one, which rounds once."""
        each = self.each
        if each and isinstance(last := each[-1], Increase):
            each, number = each[:-1], last.number + number
        return ValueChanges(self.by_place, (*each, Increase(number)) if number else each)


UNCHANGED = ValueChanges()

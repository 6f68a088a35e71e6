"""What an adapter does to one tensor of its base."""

from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape


class Product(Record):
    """A product of two of the adapter's matrices, s * (B @ A), or a part of it.

    Attributes:
        a: name of A, of shape [rank, columns] or, for `experts`, [experts * rank, columns].
        b: name of B, of shape [rows, rank] or, for `experts`, [rows, rank * experts], experts in turn.
        scale: s.
        transposed: the product is transposed before it is added.
        rounds_twice: it is rounded to the base's dtype before it is added, which rounds once more.
        expert: number of the expert whose matrices are meant.
        experts: how many experts A and B have; 0: they are one matrix each.
        rows: first and last but one of the rows of B that are used; empty: all.
    """

    a: str
    b: str
    scale: float
    transposed: bool = False
    rounds_twice: bool = False
    expert: int = 0
    experts: int = 0
    rows: tuple[int, ...] = ()


class Delta(Record):
    """What becomes of a tensor of the base.

    Attributes:
        shape: the shape that it has to have.
        replaced_by: name of the adapter's tensor whose values it gets first; empty: it keeps its own.
        product: what is added to it; None: nothing.
    """

    shape: Shape
    replaced_by: str = ""
    product: Product | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapter's tensors that it needs."""
        product = (self.product.a, self.product.b) if self.product else ()
        return tuple(filter(None, (self.replaced_by, *product)))

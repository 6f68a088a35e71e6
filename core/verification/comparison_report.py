"""What is said of a comparison of two checkpoints."""

import math
from collections.abc import Iterator
from enum import StrEnum

from pydantic import ConfigDict

from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted


class Kind(StrEnum):
    """In what a parameter differs; the first that it does differ in."""

    SHAPE = "shape"
    DTYPE = "dtype"
    CONTENT = "content"


class SideSummary(Summary):
    """One of the two.

    Attributes:
        url: the checkpoint, or the document of its fingerprints.
        step: the step looked at, if the names of its files carry one.
        ranks: how many it has; of a unified one, how many files.
        unified: whether it is unified.
        parameters: how many of its parameters were compared.
        size_bytes: of these as whole tensors.
        differing: copies that differ although they should be alike, in sentences.
        notes: what was chosen, in sentences.
    """

    url: str
    step: str | None
    ranks: int
    unified: bool
    parameters: int
    size_bytes: int
    differing: tuple[str, ...]
    notes: tuple[str, ...]


class ParameterDifference(Summary):
    """How a parameter differs.

    Attributes:
        name: its name.
        kind: in what.
        dtypes: that of A and that of B.
        shapes: likewise, of whole tensors.
        cast_to: the dtype that both were compared in, if they are of different floating-point types.
        equal_when_cast: whether they are equal then; None if that is not known, or not the question.
        count: how many elements differ; None if they were not looked at.
        first: index of the first of them.
        largest: the largest absolute difference; None if there is none, or no floating-point numbers.
        index: where that is, or else the first difference.
        values: what A and B have there; None if a side is encrypted.
        nan_count: elements that are a NaN on one side only.
        message: all that in words.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    name: str
    kind: Kind
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    cast_to: str | None = None
    equal_when_cast: bool | None = None
    count: int | None = None
    first: tuple[int, ...] | None = None
    largest: float | None = None
    index: tuple[int, ...] | None = None
    values: tuple[str, str] | None = None
    nan_count: int | None = None
    message: str = ""


class ComparisonReport(Summary):
    """What came of a comparison.

    Attributes:
        same: whether both are the same model.
        verdict: the same in a sentence.
        a: the one side.
        b: the other.
        only_a: parameters that B lacks.
        only_b: parameters that A lacks.
        differences: parameters that both have, and that differ.
        notes: what else is worth knowing, in sentences.
        read_bytes: contents that were read, of all copies.
        seconds: how long it took.
    """

    same: bool
    verdict: str
    a: SideSummary
    b: SideSummary
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[ParameterDifference, ...]
    notes: tuple[str, ...]
    read_bytes: int
    seconds: float

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: parameter, in what it differs, and how; then the copies that differ."""
        copies = [("A", told) for told in self.a.differing] + [("B", told) for told in self.b.differing]
        return [
            *((name, "only in A", "") for name in self.only_a),
            *((name, "only in B", "") for name in self.only_b),
            *((each.name, str(each.kind), each.message) for each in self.differences),
            *(("", f"copies in {letter}", told) for letter, told in copies),
        ]


def difference_words(difference: ParameterDifference) -> Iterator[str]:
    """How a parameter differs, in phrases."""
    if difference.dtypes[0] != difference.dtypes[1]:
        yield " and ".join(difference.dtypes)
    if difference.kind is not Kind.CONTENT and difference.shapes[0] != difference.shapes[1]:
        yield f"{list(difference.shapes[0])} and {list(difference.shapes[1])}"
    if difference.equal_when_cast:
        yield f"equal when cast to {difference.cast_to}"
    elif difference.cast_to and difference.equal_when_cast is None:
        yield "whether they are equal when cast cannot be told from fingerprints"
    elif difference.cast_to:
        yield f"different when cast to {difference.cast_to}, too"
    if difference.count is not None:
        yield from _located_words(difference)
    elif difference.values:
        yield f"{difference.values[0]!r} and {difference.values[1]!r}"


def _located_words(difference: ParameterDifference) -> Iterator[str]:
    yield f"{difference.count} of {counted(math.prod(difference.shapes[0]), 'element')}"
    values = f": {' and '.join(difference.values)}" if difference.values else ""
    if difference.largest is not None:
        yield f"by {difference.largest:.6g} at most, at {list(difference.index or ())}{values}"
    else:
        yield f"the first at {list(difference.index or ())}{values}"
    if difference.nan_count:
        yield f"{difference.nan_count} NaN on one side only"

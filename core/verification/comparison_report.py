"""The report of a comparison of two checkpoints."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

from pydantic import ConfigDict

from reshard.core.reports.blocks import GAP, Block, Line, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted

_Row = tuple[str, str, str]
_MAX_LISTED = 50


class Kind(StrEnum):
    """How a parameter differs; the first kind that applies."""

    SHAPE = "shape"
    DTYPE = "dtype"
    CONTENT = "content"


class SideSummary(Summary):
    """One of the two checkpoints.

    Attributes:
        url: the checkpoint, or the document of its fingerprints.
        step: the step compared, if file names carry one.
        ranks: the number of its ranks; of files, if `counts_files`.
        unified: True if it is unified.
        parameters: the number of its parameters that were compared.
        size_bytes: bytes of these as whole tensors.
        differing: replicas that differ, in sentences.
        notes: what was chosen, in sentences.
        counts_files: True if each of its files counts, however many a rank has.
    """

    url: str
    step: str | None
    ranks: int
    unified: bool
    parameters: int
    size_bytes: int
    differing: tuple[str, ...]
    notes: tuple[str, ...]
    counts_files: bool = False


class ParameterDifference(Summary):
    """How a parameter differs.

    Attributes:
        name: the parameter's name.
        kind: how it differs.
        dtypes: the dtypes in A and in B.
        shapes: the shapes of the whole tensors in A and in B.
        cast_to: the dtype that both were compared in, if they are of different floating-point types.
        equal_when_cast: whether they are equal in that dtype; None if unknown or not applicable.
        count: the number of elements that differ; None if elements were not compared.
        first: index of the first element that differs.
        largest: the largest absolute difference; None if there is none, or if elements are not floating-point.
        index: index of the largest difference, or else of the first one.
        values: the elements of A and B at that index; None if a side is encrypted.
        nan_count: elements that are NaN on one side only.
        message: the difference in words.
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


class ComparisonReport(Report):
    """The result of a comparison.

    Attributes:
        same: True if both hold the same model.
        verdict: the result in a sentence.
        a: the first checkpoint.
        b: the second checkpoint.
        only_a: parameters that B lacks.
        only_b: parameters that A lacks.
        differences: parameters that differ, of those that both have.
        notes: remarks, in sentences.
        read_bytes: bytes of contents read, of all replicas.
        seconds: duration.
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
    def rows(self) -> list[_Row]:
        """Rows of a table: parameter, kind of difference, and details; then the replicas that differ."""
        replicas = [("A", text) for text in self.a.differing] + [("B", text) for text in self.b.differing]
        return [
            *((name, "only in A", "") for name in self.only_a),
            *((name, "only in B", "") for name in self.only_b),
            *((each.name, str(each.kind), each.message) for each in self.differences),
            *(("", f"replicas in {letter}", text) for letter, text in replicas),
        ]

    def blocks(self) -> Iterator[Block]:
        """Yield its content: the verdict, the differences, and notes."""
        yield Line(self.verdict)
        if self.rows:
            yield GAP
            yield Table(("parameter", "differs in", "what"), _listed(self.rows), more=len(self.rows) - _MAX_LISTED)
        for letter, side in (("A", self.a), ("B", self.b)):
            for note in side.notes:
                yield Line(f"note on {letter}: {note}")
        for note in self.notes:
            yield Line(f"note: {note}")


def _listed(rows: Sequence[_Row]) -> list[_Row]:
    """The rows to show: some of each kind of difference, so that none hides another."""
    kinds = Counter(differs_in for _, differs_in, _ in rows)
    room = _MAX_LISTED
    shares = {}
    for place, (kind, count) in enumerate(sorted(kinds.items(), key=lambda item: item[1])):
        shares[kind] = min(count, room // (len(kinds) - place))
        room -= shares[kind]
    return [row for kind in kinds for row in [row for row in rows if row[1] == kind][: shares[kind]]]


def difference_words(difference: ParameterDifference) -> Iterator[str]:
    """How a parameter differs, in phrases."""
    if difference.dtypes[0] != difference.dtypes[1]:
        yield " and ".join(difference.dtypes)
    if difference.kind is not Kind.CONTENT and difference.shapes[0] != difference.shapes[1]:
        yield f"{list(difference.shapes[0])} and {list(difference.shapes[1])}"
    if difference.equal_when_cast:
        yield f"equal when cast to {difference.cast_to}"
    elif difference.cast_to and difference.equal_when_cast is None:
        yield "fingerprints do not show whether they are equal when cast"
    elif difference.cast_to:
        yield f"different even when cast to {difference.cast_to}"
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

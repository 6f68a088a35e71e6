"""The words of a comparison's report."""

from typing import Any

import pytest

from reshard.core.verification.comparison_report import (
    ComparisonReport,
    Kind,
    ParameterDifference,
    SideSummary,
    difference_words,
)

FLOATS = {"dtypes": ("Float32", "Float32"), "shapes": ((2, 3), (2, 3))}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"kind": Kind.SHAPE, "dtypes": ("Int8", "Int8"), "shapes": ((2,), (3,))},
            ["[2] and [3]"],
        ),
        (
            {"kind": Kind.DTYPE, "dtypes": ("Float32", "Float16"), "shapes": ((2,), (2,)), "cast_to": "Float16"},
            ["Float32 and Float16", "fingerprints do not show whether they are equal when cast"],
        ),
        (
            {"kind": Kind.CONTENT, **FLOATS, "count": 2, "largest": 0.5, "index": (1, 2), "values": ("1.0", "0.5")},
            ["2 of 6 elements", "by 0.5 at most, at [1, 2]: 1.0 and 0.5"],
        ),
        (
            {"kind": Kind.CONTENT, **FLOATS, "count": 1, "index": (0, 0), "nan_count": 1},
            ["1 of 6 elements", "the first at [0, 0]", "1 NaN on one side only"],
        ),
    ],
)
def test_a_difference_in_words(fields: dict[str, Any], words: list[str]) -> None:
    assert list(difference_words(ParameterDifference(name="w", **fields))) == words


def test_the_rows_of_a_table_name_each_side() -> None:
    side = SideSummary(
        url="u", step=None, ranks=2, unified=False, parameters=1, size_bytes=8, differing=("w differs",), notes=()
    )
    report = ComparisonReport(
        same=False,
        verdict="NOT the same",
        a=side,
        b=side.model_copy(update={"differing": ()}),
        only_a=("a",),
        only_b=("b",),
        differences=(),
        notes=(),
        read_bytes=0,
        seconds=0.0,
    )
    assert report.rows == [("a", "only in A", ""), ("b", "only in B", ""), ("", "replicas in A", "w differs")]

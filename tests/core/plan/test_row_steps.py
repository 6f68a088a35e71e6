"""The steps of single rows of presets."""

import pytest

from reshard.core.changes.preset_rows import Row
from reshard.core.errors import InputError
from reshard.core.plan.row_steps import Numbers, row_steps

NUMBERS = Numbers({"H": 4, "nh": 2, "hd": 6}, "model/config.json")


def row(**fields: object) -> Row:
    return Row.model_validate({"mf": "a.weight", "hf": {"b.weight": ["nh * hd", "H"]}, **fields})


def test_rope_is_a_regrouping_of_even_and_odd_rows() -> None:
    rope = row_steps(row(rope={"b.weight": "hd"}), NUMBERS)
    regrouped = {"b.weight": {"parts": ["1", "1"], "mf": "nh", "hf": "nh * hd // 2"}}
    assert rope == row_steps(row(regrouped=regrouped), NUMBERS)
    assert [next(iter(step)) for step in rope] == ["rename", "split", "join"]


def test_columns_are_regrouped_by_their_axis() -> None:
    columns = {"b.weight": {"parts": ["1", "1"], "hf": "H // 2", "axis": 1}}
    _, split, join = row_steps(row(regrouped=columns), NUMBERS)
    assert {key: split["split"][key] for key in ("axis", "parts", "groups")} == {
        "axis": 1,
        "parts": [2, 2],
        "groups": 1,
    }
    assert {key: join["join"][key] for key in ("axis", "parts", "groups")} == {"axis": 1, "parts": [1, 1], "groups": 2}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"rope": {"b.weight": "5"}}, "'b.weight' would have 12 rows, 5 for each head"),
        (
            {"regrouped": {"b.weight": {"parts": ["1", "1"], "hf": "3", "axis": 1}}},
            "'a.weight' would have 4 elements along axis 1, not 3 + 3 in 1 group",
        ),
        (
            {"positions": {"head": "hd", "rows": "3"}},
            "'a.weight' would have 12 rows, 6 for each head, of which positions rotate 3",
        ),
    ],
)
def test_numbers_that_contradict_each_other(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        row_steps(row(**fields), NUMBERS)
    assert str(caught.value) == f"model/config.json: its numbers do not go together: {problem}"

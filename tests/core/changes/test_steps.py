"""Steps as documents have them: variables, templates, refusals, and inverses."""

from typing import Any

import pytest
from pydantic import ValidationError

from reshard.core.changes.changes import Changes
from reshard.core.changes.changes_file import parse_changes
from reshard.core.changes.inverse import inverted
from reshard.core.errors import InputError

DOCUMENT = b"""
variables: {N: 61, E: 8, heads: 4}
steps:
  - rename: {parameters: 'mtp.{i}.{x:*}', to: 'model.layers.{N+i}.{x}'}
  - split: {parameters: 'l.{L}.qkv', into: ['l.{L}.q', 'l.{L}.k'], parts: ['heads * 2', 1], groups: 'heads // 2'}
  - transpose: {parameters: 'l.{L}.w', axes: [1, 2, 0], optional: true}
  - stack: {parameters: 'l.{L}.{e}', into: 'l.{L}', count: E}
  - merge: {parameters: 'l.{L}', count: E}
  - repeat: {parameters: embed, to: 'copy.{i}', count: 2}
"""


def changes(*steps: dict[str, Any], **more: Any) -> Changes:
    return Changes.model_validate({"steps": list(steps), **more})


def test_variables_are_replaced() -> None:
    found = parse_changes(DOCUMENT, "changes.yaml")
    assert [step.model_dump(exclude_defaults=True) for step in found.steps[:2]] == [
        {"rename": {"parameters": "mtp.{i}.{x:*}", "to": "model.layers.{i+61}.{x}"}},
        {"split": {"parameters": "l.{L}.qkv", "into": ("l.{L}.q", "l.{L}.k"), "parts": (8, 1), "groups": 2}},
    ]
    for without_defaults in (True, False):
        assert Changes.model_validate_json(found.model_dump_json(exclude_defaults=without_defaults)) == found


def test_the_inverse_of_the_inverse_is_the_same() -> None:
    found = parse_changes(DOCUMENT, "changes.yaml")
    back = inverted(found)
    assert [next(iter(step.model_fields_set)) for step in back.steps] == [
        *("drop", "divide", "unstack", "transpose", "join", "rename")
    ]
    [axes] = [step.transpose.axes for step in back.steps if step.transpose]
    assert axes == (2, 0, 1)
    assert inverted(back) == found


def test_an_addition_is_undone_by_its_opposite() -> None:
    found = changes({"add": {"parameters": "a", "number": 3}})
    assert inverted(found) == changes({"add": {"parameters": "a", "number": -3}})
    assert inverted(inverted(found)) == found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            changes({"slice": {"parameters": "a", "stop": 3}}),
            "the slice of 'a' has no inverse",
        ),
        (
            changes({"pad": {"parameters": "a", "length": 3}}),
            "the padding of 'a' has no inverse",
        ),
        (
            changes({"dequantize": {"parameters": "{x:*}", "scale": "{x}_s"}}),
            "the dequantization of '{x:*}' has no inverse",
        ),
        (changes({"zeros": {"parameters": "a", "to": "b"}}), "the zeros 'b' has no inverse"),
        (Changes(exclude=("a",)), "'exclude' of the changes has no inverse: only 'steps' can be inverted"),
    ],
)
def test_what_loses_something_has_no_inverse(found: Changes, message: str) -> None:
    with pytest.raises(InputError) as error:
        inverted(found)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"join": {"parameters": ["a", "b"], "into": "c", "groups": "F"}}, "join.groups: there is no variable 'F'"),
        ({"merge": {"parameters": "a", "count": "N // 0"}}, "merge.count: 'N // 0' divides by 0"),
        (
            {"merge": {"parameters": "a", "count": "N ** 2"}},
            "merge.count: 'N ** 2' has an operator other than + - * //",
        ),
        (
            {"merge": {"parameters": "a", "count": "f(1)"}},
            "'f(1)' has something other than whole numbers, names, + - *",
        ),
        ({"merge": {"parameters": "a", "count": "1 +"}}, "'1 +' is not an expression, such as nh * hd // 2"),
        ({"merge": {"parameters": "a", "count": "10 ** 99"}}, "has an operator other than"),
        ({"merge": {"parameters": "a", "count": "9999999999 * 9999999999"}}, "is 2^63 or more"),
        ({"rename": {"parameters": "a.{i", "to": "b"}}, "'a.{i' has a single brace"),
        (
            {"rename": {"parameters": "a.{i-1}", "to": "b.{i}"}},
            "'i-1' is not a placeholder, nor one and a number added",
        ),
        ({"rename": {"parameters": "a.{i*2}", "to": "b.{i}"}}, "'i*2' does more with i than to add it"),
        ({"rename": {"parameters": "a.{i+j}", "to": "b.{i}"}}, "'i+j' has several names that are not variables: i, j"),
        ({"rename": {"parameters": "a.{x:|b}", "to": "b.{x}"}}, "'x:|b' is neither NAME:* nor NAME:TEXT|TEXT"),
        ({"rename": {"parameters": "a.{x:a|b}", "to": "b.{x:*}"}}, "the placeholder 'x' has different kinds"),
        ({"rename": {"parameters": "a.{x:a|b}", "to": "b.{x+1}"}}, "the placeholder 'x' is a text, to which no number"),
        ({"rename": {"parameters": "a.{i}", "to": "b"}}, "'a.{i}' and 'b' have different placeholders: i"),
        (
            {"stack": {"parameters": "a.{x:*}", "into": "b", "count": 2}},
            "'a.{x:*}' must have the placeholders of 'b' and one more, a number",
        ),
        ({"split": {"parameters": "a", "into": ["b", "b"]}}, "'into' has a name twice"),
        (
            {"join": {"parameters": ["a", "b"], "into": "c", "parts": [1]}},
            "'parts' has 1 numbers, 'parameters' 2 names",
        ),
        ({"slice": {"parameters": "a", "start": 3, "stop": 3}}, "'start' is 3, 'stop' 3: nothing would be left"),
        ({"transpose": {"parameters": "a", "axes": [0, 2]}}, "must name each axis once, from 0 on, not [0, 2]"),
        (
            {"rename": {"parameters": "a", "to": "b"}, "merge": {"parameters": "a", "count": 2}},
            "must have one key, its",
        ),
        ({}, "must have one key, its kind: rename, split, join"),
        ({"fuse": {"parameters": "a"}}, "there is no such field"),
    ],
)
def test_malformed_steps_are_refused(step: dict[str, Any], message: str) -> None:
    document = str({"variables": {"N": 2}, "steps": [step]}).encode()
    with pytest.raises(InputError) as error:
        parse_changes(document, "changes.yaml")
    assert message in str(error.value)
    assert str(error.value).startswith("changes.yaml: steps")


@pytest.mark.parametrize("variables", [{"a b": 1}, {"N": -1}, {"N": "2"}, {"N": True}])
def test_malformed_variables_are_refused(variables: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="variables"):
        changes({"merge": {"parameters": "a", "count": "N"}}, variables=variables)

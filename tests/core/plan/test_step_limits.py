"""Rules of hostile documents that would make more than a machine holds, or never end: refused, with the limit."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from reshard.core.changes.changes_file import parse_changes
from reshard.core.errors import InputError, PlanError
from reshard.core.plan import making, recipes
from reshard.core.plan.change_summary import changes_of
from reshard.core.plan.operations import Joined
from reshard.core.tensor import segments
from tests.support.changed_plans import changed
from tests.support.plans import FLOAT, entry

Steps = list[dict[str, Any]]


def planned(shapes: Mapping[str, tuple[int, ...]], steps: Steps, **rules: object) -> dict[str, tuple[int, ...]]:
    plan = changed([entry(name, shape, FLOAT) for name, shape in shapes.items()], steps=steps, **rules)
    return {each.name: each.box.shape for each in plan.rank_plan(0).parameters}


def refused(shapes: Mapping[str, tuple[int, ...]], steps: Steps, **rules: object) -> str:
    with pytest.raises((PlanError, InputError)) as error:
        planned(shapes, steps, **rules)
    return str(error.value)


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"unstack": {"parameters": "a", "into": "a.{e}", "count": 2**62}}, "unstack.count"),
        ({"stack": {"parameters": "a.{e}", "into": "a", "count": "E * E"}}, "stack.count"),
        ({"repeat": {"parameters": "a", "to": "b.{i}", "count": 2**62}}, "repeat.count"),
        ({"drop": {"parameters": "b.{i}", "copy_of": "a", "count": 2**62}}, "drop.count"),
        ({"merge": {"parameters": "a", "count": 2**62}}, "merge.count"),
        ({"divide": {"parameters": "a", "count": 2**62}}, "divide.count"),
        ({"join": {"parameters": ["a", "b"], "into": "c", "groups": 2**40}}, "join.groups"),
        ({"split": {"parameters": "a", "into": ["b", "c"], "groups": 2**40}}, "split.groups"),
    ],
)
def test_counts_and_groups_have_a_limit(step: dict[str, Any], field: str) -> None:
    document = json.dumps({"variables": {"E": 2**30}, "steps": [step]})
    with pytest.raises(InputError) as error:
        parse_changes(document.encode(), "changes.json")
    assert str(error.value) == f"changes.json: steps[0].{field}: must be less than or equal to 1048576"


def test_a_document_has_a_number_of_steps_at_most() -> None:
    document = json.dumps({"steps": [{"transpose": {"parameters": "a"}}] * 4097})
    with pytest.raises(InputError) as error:
        parse_changes(document.encode(), "changes.json")
    assert str(error.value) == "changes.json: steps: has too many items: at most 4096"


def test_any_number_of_groups_goes_into_an_empty_axis() -> None:
    join = {"join": {"parameters": ["a", "b"], "into": "c", "groups": 2**20}}
    assert planned({"a": (0, 6), "b": (0, 6)}, [join]) == {"c": (0, 6)}
    assert planned({"a": (2**20, 0)}, [{"divide": {"parameters": "a", "count": 2**20}}]) == {"a": (2**20, 1, 0)}


def test_names_do_not_grow_without_end() -> None:
    rename = {"rename": {"parameters": "{x:*}", "to": "{x}{x}"}}
    assert refused({"ab": (4,)}, [rename] * 40) == (
        f"the rename of '{{x:*}}': makes the name '{'ab' * 40}…' of 8,192 characters, more than 4,096, the limit"
    )
    split = {"parameters": "(.*)", "into": [r"\1\1", r"\1\1x"]}
    assert "makes the name" in refused({"ab": (2**20,)}, [], split=[split] * 20)


def test_names_do_not_become_more_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MAX_NAMES_MADE", 2**10)  # of 2**18 it takes seconds
    repeats: Steps = [{"repeat": {"parameters": "{x:*}", "to": f"{{x}}.{number}"}} for number in range(24)]
    assert (
        refused({"a": (4,)}, repeats) == "the repetition of '{x:*}': makes 2,048 parameters, more than 1,024, the limit"
    )
    unstack = {"unstack": {"parameters": "{x:*}", "into": "{x}.{e}", "count": 2**20}}
    assert (
        refused({"a": (4,)}, [unstack])
        == "the unstacking of '{x:*}': makes 1,048,576 parameters, more than 1,024, the limit"
    )


def test_names_that_no_rule_makes_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MAX_NAMES_MADE", 2)
    monkeypatch.setattr(making, "MAX_NAME_LENGTH", 2)
    shapes = {f"long.{number}": (4, 6) for number in range(9)} | {"a": (4, 6)}
    made = planned(shapes, [{"transpose": {"parameters": "a"}}])
    assert made == shapes | {"a": (6, 4)}


def test_a_parameter_that_is_repeated_and_joined_again_and_again_is_composed_once() -> None:
    doubled: Steps = [
        {"repeat": {"parameters": "a", "to": "b"}},
        {"join": {"parameters": ["a", "b"], "into": "a"}},
        {"slice": {"parameters": "a", "stop": 2}},
    ]
    assert planned({"a": (2,)}, doubled * 40) == {"a": (2,)}


def test_operations_on_one_parameter_have_a_limit() -> None:
    transpose: Steps = [{"transpose": {"parameters": "a"}}]
    assert planned({"a": (4, 6)}, transpose * 128) == {"a": (4, 6)}
    message = "the transposition of 'a': is the operation after 128 others on 'a', the limit"
    assert refused({"a": (4, 6)}, transpose * 129) == message


def test_pieces_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Steps = [
        {"join": {"parameters": ["a", "b"], "into": "a", "groups": 32}},
        {"divide": {"parameters": "a", "count": 64}},
    ]
    shapes = {"a": (1024, 1), "b": (1024, 1)}
    plan = changed([entry(name, shape, FLOAT) for name, shape in shapes.items()], steps=steps)
    assert changes_of(plan)
    monkeypatch.setattr(segments, "MAX_PIECES", 63)
    assert "parameter 'a': it would be cut into more than 63 pieces, the limit" in refused(shapes, steps)
    monkeypatch.setattr(segments, "MAX_PIECES", 2**16)
    monkeypatch.setattr(recipes, "_MAX_PIECES_MADE", 60)
    assert refused(shapes, steps) == (
        "parameter 'a': the division of the first axis of 'a': with it, parameters that are not made alike have more "
        "than 60 pieces, and 16 for each operation, the limit"
    )


def test_pieces_that_lie_near_many_runs_are_not_looked_at_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MAX_LOOKED_AT", 63)
    # a long piece behind which all short ones are near to each run
    shapes = {f"a{number}": (2, 1) for number in range(16)} | {"b": (32, 1)}
    steps: Steps = [
        {"join": {"parameters": [*shapes], "into": "c", "parts": [1] * 16 + [16]}},
        {"divide": {"parameters": "c", "count": 8}},
    ]
    assert "parameter 'c': its pieces lie so that more than 63, the limit, would have to be looked at" in refused(
        shapes, steps
    )
    monkeypatch.undo()
    assert planned(shapes, steps) == {"c": (8, 8, 1)}


DOUBLED: Steps = [
    step
    for number in range(40)
    for step in (
        {"repeat": {"parameters": f"n{number}", "to": "again"}},
        {"join": {"parameters": [f"n{number}", "again"], "into": f"n{number + 1}"}},
    )
]


def test_what_is_doubled_again_and_again_is_refused_before_its_pieces_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    apply = Joined.apply

    def counted(self: Joined, inputs: Any) -> Any:
        made.append(sum(len(each.pieces) for each in inputs))
        return apply(self, inputs)

    monkeypatch.setattr(Joined, "apply", counted)
    assert refused({"n0": (6,)}, DOUBLED) == (
        "parameter 'n40': the join into 'n11': makes 12,288 elements from 6 source elements, more than 1,024 times as "
        "many, the limit"
    )
    assert sum(made) == 2**11 - 2
    stacks: Steps = [
        {"stack": {"parameters": "n{i}", "into": "n", "count": 2}},
        {"merge": {"parameters": "n", "count": 2}},
    ]
    again: Steps = [{"rename": {"parameters": "n", "to": "n0"}}, {"repeat": {"parameters": "n0", "to": "n1"}}, *stacks]
    assert "the stack into 'n': makes 8,192 elements from 4 source elements" not in refused({"n": (4,)}, again * 20)
    assert "the stack into 'n': makes 16,384 elements from 4 source elements" in refused({"n": (4,)}, again * 20)


def test_the_first_parameter_beyond_a_limit_is_the_last_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_PIECES", 63)
    steps: Steps = [
        {"join": {"parameters": ["a", "b"], "into": "c", "groups": 64}},
        {"split": {"parameters": "c", "into": [f"d{number}" for number in range(16)]}},
    ]
    # the rows of 64 groups: too many pieces, whichever part is made of them
    assert refused({"a": (4096, 2), "b": (4096, 2)}, steps).startswith("parameter 'd0': it would be cut into more than")


def test_boxes_that_are_counted_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MAX_CELLS", 63)
    join = {"join": {"parameters": ["a", "b"], "into": "a", "groups": 32}}
    assert "its 64 pieces cut it into 64 * 1 boxes, more than 63" in refused({"a": (1024, 1), "b": (1024, 1)}, [join])


def test_where_a_name_fits_in_several_ways_nothing_is_guessed() -> None:
    rename = {"rename": {"parameters": "{x:*}.{y:*}", "to": "{y}.{x}"}}
    assert planned({"a.b": (4,)}, [rename]) == {"b.a": (4,)}
    [problem] = refused({"a.b.c": (4,), "a.b": (4,)}, [rename]).splitlines()[1:]
    assert problem == (
        "  - the rename of '{x:*}.{y:*}': 'a.b.c' matches '{x:*}.{y:*}' in several ways: x is 'a.b', or 'a'. Say more "
        "of the name between its placeholders"
    )
    # where it does not matter which
    assert planned({"a.b.c": (4, 6)}, [{"transpose": {"parameters": "{x:*}.{y:*}"}}]) == {"a.b.c": (6, 4)}


def test_a_repeated_placeholder_misses_no_name() -> None:
    rename = {"rename": {"parameters": "{x:*}.{x}", "to": "{x}", "optional": True}}
    assert planned({"a.b.a.b": (4,), "a.b.a.c": (4,)}, [rename]) == {"a.b": (4,), "a.b.a.c": (4,)}

"""Steps on names and shapes: what fits, and what is refused, by name."""

from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.errors import PlanError
from reshard.core.files.model import TensorEntry
from reshard.core.plan.change_summary import changes_of
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from tests.support.changed_plans import changed, declared, refusal
from tests.support.plans import FLOAT, entry, make_catalog, make_strategy, plan_of


def tensors(*names: str, shape: tuple[int, ...] = (4, 6)) -> list[TensorEntry]:
    return [entry(name, shape, FLOAT) for name in names]


def made(entries: list[TensorEntry], *steps: dict[str, Any], **rules: Any) -> dict[str, tuple[int, ...]]:
    plan = changed(entries, steps=list(steps), **rules)
    return {each.name: each.box.shape for each in plan.rank_plan(0).parameters}


def refused(entries: list[TensorEntry], *steps: dict[str, Any], **rules: Any) -> list[str]:
    return refusal(*entries, steps=list(steps), **rules)


def test_each_step_sees_what_the_one_before_left() -> None:
    entries = tensors(*(f"l.0.experts.{e}.{name}" for e in range(12) for name in ("gate", "up")))
    experts = "l.{L}.experts.{e}."
    shapes = made(
        entries,
        {"join": {"parameters": [experts + "gate", experts + "up"], "into": experts + "w", "groups": 4}},
        {"transpose": {"parameters": experts + "w"}},
        {"stack": {"parameters": experts + "w", "into": "l.{L}.w", "count": "E"}},
        {"merge": {"parameters": "l.{L}.w", "count": "E"}},
        {"slice": {"parameters": "l.{L}.w", "axis": 1, "start": 1, "stop": 7}},
        {"rename": {"parameters": "l.{L}.w", "to": "mlp.{L+N}.weight1"}},
        variables={"E": 12, "N": 3},
    )
    assert shapes == {"mlp.3.weight1": (72, 6)}


def test_steps_come_before_the_rules_with_a_fixed_order() -> None:
    shapes = made(
        tensors("a"),
        {"rename": {"parameters": "a", "to": "b"}},
        transpose=[{"parameters": "b"}],
        rename=[{"name": "b", "to": "c"}],
    )
    assert shapes == {"c": (6, 4)}


def test_the_plan_says_what_steps_do() -> None:
    plan = changed(
        tensors("a.0", "a.1"),
        steps=[
            {"stack": {"parameters": "a.{e}", "into": "a", "count": 2}},
            {"merge": {"parameters": "a", "count": 2}},
            {"repeat": {"parameters": "a", "to": "b"}},
            {"rename": {"parameters": "a", "to": "c"}},
        ],
    )
    assert {change.parameter: change.how for change in changes_of(plan)} == {
        "c": ("stacked", "merged", "renamed"),
        "b": ("stacked", "merged", "repeated"),
    }


def test_steps_hold_for_states() -> None:
    names = [f"{prefix}w.{e}" for prefix in ("", "adam_m.", "muon_m.", "exp_avg_sq.") for e in range(2)]
    stack = {"stack": {"parameters": "w.{e}", "into": "w", "count": 2}}
    assert {*made(tensors(*names), stack)} == {"w", "adam_m.w", "muon_m.w", "exp_avg_sq.w"}
    own = made(tensors("w.0", "w.1", "my.w.0", "my.w.1"), stack, state_prefixes=["my."])
    assert {*own} == {"w", "my.w"}


def test_a_prefix_of_states_is_renamed() -> None:
    names = tensors("w", "adam_m.w", "exp_avg_sq.w")
    to_megatron = {"rename": {"parameters": "adam_m.{x:*}", "to": "optimizer.state.exp_avg.{x}"}}
    assert {*made(names, to_megatron)} == {"w", "optimizer.state.exp_avg.w", "exp_avg_sq.w"}
    both = made(names, to_megatron, {"rename": {"parameters": "w", "to": "v"}})
    assert {*both} == {"v", "optimizer.state.exp_avg.v", "exp_avg_sq.v"}


def test_an_axis_is_padded() -> None:
    pad = {"pad": {"parameters": "w", "axis": 1, "length": "N"}}
    assert made(tensors("w", "adam_m.w"), pad, variables={"N": 9}) == {"w": (4, 9), "adam_m.w": (4, 9)}
    assert made(tensors("w"), pad, variables={"N": 6}) == {"w": (4, 6)}
    [problem] = refused(tensors("w"), {"pad": {"parameters": "w", "length": 3}})
    assert "the padding of 'w': axis 0 of 'w' has 4 elements, which cannot become 3" in problem
    [problem] = refused(tensors("w"), {"pad": {"parameters": "w", "axis": 2, "length": 3}})
    assert "'w' has shape [4, 6], and no axis 2" in problem


def test_zeros_are_like_another_parameter() -> None:
    zeros = {"zeros": {"parameters": "w", "to": "z", "axis": 1, "length": "N"}}
    found = made(tensors("w", "adam_m.w"), zeros, variables={"N": 15})
    assert found == {"w": (4, 6), "z": (4, 15), "adam_m.w": (4, 6), "adam_m.z": (4, 15)}
    assert made(tensors("w"), zeros, variables={"N": 4})["z"] == (4, 4)
    assert made(tensors("w"), {"zeros": {"parameters": "w", "to": "z"}})["z"] == (4, 6)
    [problem] = refused(tensors("w"), {"zeros": {"parameters": "w", "to": "z", "axis": 1, "length": 6 * 1024 + 1}})
    assert "the zeros 'z': axis 1 of 'w' has 6 elements, too few for 6,145 zeros" in problem
    [problem] = refused(tensors("w"), {"zeros": {"parameters": "w", "to": "z", "axis": 2}})
    assert "'w' has shape [4, 6], and no axis 2" in problem
    [problem] = refused(tensors("w", "z"), {"zeros": {"parameters": "w", "to": "z"}})
    assert "would both be called 'z'" in problem


def test_factored_states_can_only_be_renamed() -> None:
    entries = tensors("w", "exp_avg_insta_row_w")
    assert {*made(entries, {"rename": {"parameters": "w", "to": "v"}})} == {"v", "exp_avg_insta_row_v"}
    [problem] = refused(entries, {"transpose": {"parameters": "w"}})
    assert problem == (
        "the transposition of 'w': 'exp_avg_insta_row_w' is a factored state, whose shape is not its parameter's: it "
        "can only be renamed. Leave it out: select='weights-only'"
    )


def test_a_step_that_fits_nothing_is_refused_unless_it_is_optional() -> None:
    step: dict[str, Any] = {"parameters": "layer.{L}.v", "to": "x.{L}"}
    [problem] = refused(tensors("layer.0.w"), {"rename": step})
    assert problem == (
        "step 1, the rename of 'layer.{L}.v', matches no parameter; there is 'layer.0.w', say: correct it, or say "
        "'optional: true'"
    )
    assert made(tensors("layer.0.w"), {"rename": step | {"optional": True}}) == {"layer.0.w": (4, 6)}


@pytest.mark.parametrize(
    ("names", "step", "problem"),
    [
        (
            ["a.0", "a.1", "a.3"],
            {"stack": {"parameters": "a.{e}", "into": "a", "count": 4}},
            ("the stack into 'a': for 'a' there is no 'a.2', but there is 'a.0': correct the step's names or count"),
        ),
        (
            ["a.0", "a.1", "a.2"],
            {"stack": {"parameters": "a.{e}", "into": "a", "count": 2}},
            "the stack into 'a': for 'a' there are more than 2: 'a.2'; correct 'count'",
        ),
        (
            ["l.7.gate"],
            {"join": {"parameters": ["l.{L}.gate", "l.{L}.up"], "into": "l.{L}.w"}},
            (
                "the join into 'l.{L}.w': for 'l.7.w' there is no 'l.7.up', but there is 'l.7.gate': correct the "
                "step's names"
            ),
        ),
        (
            ["a.0", "b"],
            {"rename": {"parameters": "a.{x:*}", "to": "b", "optional": True}},
            None,
        ),
        (
            ["a", "b"],
            {"rename": {"parameters": "a", "to": "b"}},
            "'b' (the source's 'a') and 'b' would both be called 'b'",
        ),
        (
            ["a", "a.1"],
            {"unstack": {"parameters": "a", "into": "a.{e}", "count": 4}},
            "'a.1' and 'a.1' would both be called 'a.1'",
        ),
        (
            ["a", "b"],
            {"drop": {"parameters": "b", "copy_of": "c"}},
            "the drop of 'b': there is no 'c', of which 'b' is to be a copy",
        ),
        (
            ["a", "b.0", "b.2"],
            {"drop": {"parameters": "b.{i}", "copy_of": "a", "count": 2}},
            "the drop of 'b.{i}': of the 2 copies of 'a', numbered from 0 on, there are 0, 2: correct 'count'",
        ),
    ],
)
def test_names_that_do_not_go_together(names: list[str], step: dict[str, Any], problem: str | None) -> None:
    if problem is None:
        with pytest.raises(ValueError, match="different placeholders"):
            changed(tensors(*names), steps=[step])
    else:
        assert problem in refused(tensors(*names), step)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (
            {"unstack": {"parameters": "a", "into": "a.{e}", "count": 3}},
            "the unstacking of 'a': 'a' has shape [4, 6], whose first axis has not 3 elements: correct 'count'",
        ),
        (
            {"divide": {"parameters": "a", "count": 3}},
            "the division of the first axis of 'a': the first axis of 'a' has 4 elements, which do not divide by 3",
        ),
        (
            {"merge": {"parameters": "a", "count": 3}},
            "the merge of axes of 'a': 'a' has shape [4, 6], whose first axis has not 3 elements: correct 'count'",
        ),
        (
            {"slice": {"parameters": "a", "stop": 5}},
            "the slice of 'a': axis 0 of 'a' has 4 elements, not 5",
        ),
        (
            {"join": {"parameters": ["a", "b"], "into": "c", "parts": [2, 1]}},
            "the join into 'c': along axis 0 'a', 'b' have 4, 4 elements, which is not 2 : 1: correct 'parts'",
        ),
    ],
)
def test_shapes_that_do_not_go_together(step: dict[str, Any], problem: str) -> None:
    [found] = refused(tensors("a", "b"), step)
    assert found.endswith(f": {problem}")


@pytest.mark.parametrize(
    "step",
    [
        {"stack": {"parameters": "l{i}.e{j}.w{k}", "into": "z{i}{j}", "count": 2}},
        {"join": {"parameters": ["l{i}.e{j}.w0", "l{i}.e{j}.w1"], "into": "z{i}{j}"}},
    ],
)
def test_no_part_is_lost_where_different_placeholders_make_the_same_name(step: dict[str, Any]) -> None:
    entries = tensors("l1.e11.w0", "l1.e11.w1", "l11.e1.w0", "l11.e1.w1")
    [(_, fields)] = step.items()
    assert refused(entries, step) == [
        f"the {next(iter(step))} into {fields['into']!r}: 'l1.e11.w{number}' and 'l11.e1.w{number}' would be the same "
        "part of 'z111'"
        for number in range(2)
    ]


def test_parts_are_a_proportion_in_both_directions() -> None:
    join = {"join": {"parameters": ["a", "b"], "into": "c", "parts": [4, 4], "groups": 2}}
    split = {"split": {"parameters": "c", "into": ["a", "b"], "parts": [4, 4], "groups": 2}}
    assert made(tensors("a", "b"), join, split) == {"a": (4, 6), "b": (4, 6)}


def test_a_family_of_different_shapes_is_not_stacked() -> None:
    entries = [*tensors("a.0"), *tensors("a.1", shape=(6, 4))]
    [problem] = refused(entries, {"stack": {"parameters": "a.{e}", "into": "a", "count": 2}})
    assert problem.endswith("the stack into 'a': 'a.0' has shape [4, 6], 'a.1' has [6, 4]")


def test_a_copy_to_be_dropped_has_the_shape_and_element_type_of_the_other() -> None:
    drop = {"drop": {"parameters": "b", "copy_of": "a"}}
    assert made(tensors("a", "b", "c"), drop) == {"a": (4, 6), "c": (4, 6)}
    [problem] = refused([*tensors("a"), *tensors("b", shape=(6, 4))], drop)
    assert problem == "the drop of 'b': 'b' is not a copy of 'a': it is Float32 [6, 4], not Float32 [4, 6]"
    [problem] = refused(tensors("a", "b"), {"transpose": {"parameters": "b"}}, drop)
    assert problem == (
        "the drop of 'b': 'b' and 'a' can only be compared as the source has them: drop it before other steps "
        "change them"
    )


def test_a_copy_to_be_dropped_may_be_in_the_strategy_alone() -> None:
    """As the head of tied embeddings, which is not saved."""
    strategy = make_strategy({name: whole_layout(2) for name in ("a", "b")})
    drop = declared(steps=[{"drop": {"parameters": "b", "copy_of": "a"}}])
    plan = plan_of(make_catalog({0: tensors("a")}), strategy, None, changes=drop)
    assert [each.name for each in plan.rank_plan(0).parameters] == ["a"]
    message = (
        "the drop of 'b': 'b' and 'a' cannot be compared: no file holds all of them. To leave it out unseen: "
        r"exclude=\['b'\]"
    )
    with pytest.raises(PlanError, match=message):
        plan_of(make_catalog({0: tensors("b")}), strategy, None, changes=drop)
    halves = make_strategy({name: ParameterLayout((2,), ((0,), ()), nested=True) for name in ("a", "b")})
    damaged = replace(make_catalog({0: tensors("a")}), lost={1: "missing"})
    with pytest.raises(PlanError, match=message):
        plan_of(damaged, halves, None, changes=drop)

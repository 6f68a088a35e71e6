"""Names on both sides: new names, names that are left out, names that no strategy knows."""

import pytest

from reshard.core.changes.changes import RenameRule, SplitRule, TransposeRule
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.errors import PlanError
from reshard.core.plan.names import fits_any
from reshard.core.tensor.layout import ParameterLayout
from tests.support.changed_plans import declared, told_of
from tests.support.plans import entry, make_catalog, make_strategy, plan_of, vector, vector2


def test_what_is_left_out_is_excused_where_the_target_has_a_place_for_it() -> None:
    catalog = make_catalog({0: [entry("w", (2,)), entry("adam_m.w", (2,)), entry("qkv", (6,))]})
    source = make_strategy({"w": vector(1), "adam_m.w": vector(1), "qkv": vector(1)})
    target = make_strategy({name: vector(1) for name in ("w", "adam_m.w", "q", "k", "v")})
    rules = {"split": [SplitRule(parameters="qkv", into=("q", "k", "v"))]}
    plan = plan_of(catalog, source, target, changes=declared(select="weights-only", exclude=("qkv",), **rules))
    assert plan.match.missing == ("adam_m.w", "k", "q", "v")
    assert plan.match.left_out.sources == {"adam_m.w": "select weights-only: optimizer state", "qkv": "exclude qkv"}
    assert not [note for note in plan_notes(plan) if "missing" in note]  # that they are left out says enough
    with pytest.raises(PlanError, match="parameter 'other' of the target's strategy is in no source file"):
        plan_of(catalog, source, make_strategy({"other": vector(1)}), changes=declared(select="weights-only"))


def test_names_in_the_targets_strategy_are_the_new_ones() -> None:
    catalog = make_catalog({rank: [entry("old", (2, 4))] for rank in range(2)})
    source = make_strategy({"old": vector2(2)})
    known = ParameterLayout((2,), ((), (0,)), nested=True, tensor_shape=(2, 8))
    changes = declared(rename=[RenameRule(name="old", to="new")])
    plan = plan_of(catalog, source, make_strategy({"new": known}), changes=changes)
    assert [(each.name, each.shape) for each in plan.match.resharded] == [("new", (2, 8))]
    # the target's shape tells that ranks were saved whole, under the new name as well
    whole = ParameterLayout((2,), ((), (0,)), nested=True, tensor_shape=(2, 4))
    assert plan_of(catalog, source, make_strategy({"new": whole}), changes=changes).match.integrated
    dropped = plan_of(catalog, source, make_strategy({"other": vector2(2)}), changes=changes, allow_missing=("other",))
    assert dropped.match.dropped == ("new",)


def test_what_no_strategy_knows_is_not_reshaped_beside_a_targets_strategy() -> None:
    catalog = make_catalog({0: [entry("w", (2,)), entry("table", (4, 2))]})
    strategy = make_strategy({"w": vector(1)})
    with pytest.raises(PlanError) as error:
        plan_of(catalog, strategy, strategy, changes=declared(transpose=[TransposeRule(parameters="table")]))
    assert told_of(error) == [
        "no strategy knows 'table', made from 'table': such parameters are copied as they are, and not transposed"
    ]
    alone = plan_of(catalog, strategy, None, changes=declared(transpose=[TransposeRule(parameters="table")]))
    assert {each.name: each.shape for each in alone.match.resharded} == {"w": (2,), "table": (2, 4)}


def test_names_fit_shell_style_patterns_as_a_whole() -> None:
    assert fits_any("adam_m.w", ("x", "adam_*"))
    assert not fits_any("x.adam_m.w", ("adam_*",))
    assert not fits_any("w", ())

"""Summaries of declared changes."""

from reshard.core.changes.changes import CastRule, RenameRule, SplitRule, TransposeRule
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.plan.change_summary import changes_of, changes_text, excluded_text
from tests.support.changed_plans import changed
from tests.support.plans import FLOAT, entry


def test_what_changes_do_is_said() -> None:
    entries = [entry("qkv", (6, 4), FLOAT), entry("w", (2,), FLOAT), entry("adam_m.w", (2,), FLOAT)]
    plan = changed(
        entries,
        select="weights-only",
        split=[SplitRule(parameters="qkv", into=("q", "k", "v"))],
        rename=[RenameRule(name="w", to="weight")],
        cast=[CastRule(parameters="*", dtype="bfloat16")],
    )
    q, *_, w = changes_of(plan)
    assert q.model_dump() == {
        "parameter": "q",
        "sources": ("qkv",),
        "how": ("split", "cast"),
        "source_dtypes": ("Float32",),
        "dtype": "BFloat16",
        "source_shapes": ((6, 4),),
        "shape": (2, 4),
    }
    assert (w.parameter, w.sources, w.how) == ("weight", ("w",), ("renamed", "cast"))
    assert "changed, as declared: 1 renamed; 3 split; 4 cast to BFloat16" in plan_notes(plan)
    assert "left out, as declared: 1 by select weights-only: optimizer state (adam_m.w)" in plan_notes(plan)
    assert (changes_text(()), excluded_text(())) == ("", "")


def test_what_stays_as_it_was_is_not_called_changed() -> None:
    entries = [entry("norm", (6,)), entry("square", (4, 4)), entry("step", ())]
    plan = changed(entries, transpose=[TransposeRule(parameters="*")], rename=[RenameRule(name="norm", to="scale")])
    assert [(each.parameter, each.how) for each in changes_of(plan)] == [
        ("scale", ("renamed",)),
        ("square", ("transposed",)),
    ]

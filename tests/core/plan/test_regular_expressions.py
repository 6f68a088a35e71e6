"""Regular expressions that take too long are refused, others are not."""

from typing import Any

import pytest

from reshard.core.changes.changes import JoinRule, RenameRule, SplitRule
from reshard.core.errors import PlanError
from reshard.core.plan import regular_expressions
from reshard.core.plan.regular_expressions import check_expressions, is_quick
from tests.support.changed_plans import changed
from tests.support.plans import entry

NAMES = [f"model.layers.{layer}.attention.{name}.weight" for layer in range(80) for name in ("wq", "wk", "wv", "wo")]


@pytest.fixture
def half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less to wait for until the system ends a trial: it counts whole seconds, and the next one is the first."""
    monkeypatch.setattr(regular_expressions, "_LIMIT_SECONDS", 0.5)


HUGE = "(?:a?){1000000000}"


@pytest.mark.parametrize(
    ("pattern", "quick"),
    [
        (r"layers\.(\d+)\.(.*)\.weight", True),
        (r"(?P<layer>\d+)\.(?:.*)", True),
        ("(a|b)+", False),
        ("(a)(?#comment)*", False),
        ("(?x)(a)  # comment\n*", False),
        ("a{1,400}", False),
        ("(a|a)(b|b)(c|c)", False),
        (r".*.*.*", False),
    ],
)
def test_expressions_that_need_no_trial(pattern: str, quick: bool) -> None:
    assert is_quick(pattern) == quick


def test_expressions_of_users_pass() -> None:
    patterns = [r"(?:\w+\.)*(wq|wk|wv)\.weight", r"(a|b)+", r"model\.(.*)\.(.*)\.(.*)\.(.*)", r"(?i)MODEL(\.\w+)+"]
    check_expressions(patterns, NAMES)
    check_expressions(patterns, ["\udc80" * 1000])


@pytest.mark.usefixtures("half_a_second")
@pytest.mark.parametrize("pattern", [r"([\w.]+)+!", "(?:.?){400}(?:.?){400}!"])
def test_expressions_without_bound_are_refused(pattern: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_expressions(["(a|b)+", pattern, "(c|d)+"], NAMES)
    assert str(caught.value) == (
        f"the first 2 regular expressions, up to '{pattern}', take more than 0.5 s, or 128.1 MiB, for 320 "
        "names: there are too many ways to try. Repeat no group that repeats something itself: write [^.]+ for the "
        r"text between dots, \d+ for a number"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"rename": [RenameRule(pattern=HUGE, to="b")]},
        {"split": [SplitRule(parameters=HUGE, into=("b", "c"))]},
        {"join": [JoinRule(parameters=("a", HUGE), into="c")]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_all_rules_with_expressions_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="1.0 s, or 128.0 MiB, for 1 name:"):
        changed([entry("a", (2,))], **changes)


@pytest.mark.usefixtures("half_a_second")
def test_long_names_are_tried() -> None:
    with pytest.raises(PlanError, match="for 1 name:"):
        check_expressions([".*.*!"], ["a" * 100_000])


def test_many_expressions_that_each_take_long_are_bounded_together() -> None:
    # each takes a tenth of a second for this name, and there may be thousands
    slow = [rf"(?:.*){{4}}{number}!" for number in range(200)]
    with pytest.raises(PlanError, match=r"the first [0-9]+ regular expressions, up to '.*', take more than 1.0 s"):
        check_expressions(slow, ["a" * 160])

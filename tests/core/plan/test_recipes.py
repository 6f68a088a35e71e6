"""Recipes of target parameters: rules that fit, rules that are refused."""

from reshard.core.changes.changes import CastRule, JoinRule, RenameRule, SplitRule, TransposeRule
from reshard.core.files.model import TensorEntry
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR, TEXT
from tests.support.changed_plans import changed, refusal
from tests.support.plans import FLOAT, HALF, entry


def test_rules_that_fit_nothing_are_refused() -> None:
    assert refusal(
        entry("weight", (2, 2)),
        include=["w*", "b*"],
        exclude=["adam_*"],
        split=[SplitRule(parameters="qkv", into=("q", "k"))],
        join=[JoinRule(parameters=("gate", "up"), into="gate_up")],
        transpose=[TransposeRule(parameters="dense*")],
        rename=[RenameRule(name="wieght", to="w"), RenameRule(pattern="x(.*)", to=r"\1")],
        cast=[CastRule(parameters="norm*", dtype="float32")],
    ) == [
        "the pattern 'b*' (include) matches no parameter",
        "the pattern 'adam_*' (exclude) matches no parameter",
        "the split of 'qkv' matches no parameter",
        "the join into 'gate_up' matches no parameter",
        "the transposition of 'dense*' matches no parameter",
        "the rename of 'wieght' matches no parameter; did you mean weight?",
        "the rename of 'x(.*)' matches no parameter",
        "the cast of 'norm*' matches no parameter",
    ]
    assert refusal(entry("w", ()), cast=[CastRule(parameters="*", dtype="float32")]) == [
        "the cast of '*' matches no floating-point parameter, only w (Int32)"
    ]
    assert refusal(entry("w", ()), exclude=["*"]) == [
        "no parameter is left: what is selected, included and excluded leaves none"
    ]


def test_a_rule_for_what_is_left_out_is_no_mistake() -> None:
    entries = [entry("w", (2,), FLOAT), entry("adam_m.w", (2,), FLOAT)]
    plan = changed(entries, select="weights-only", cast=[CastRule(parameters="adam_*", dtype="float16")])
    assert [each.dtype for each in plan.match.resharded] == [FLOAT]


def test_names_that_become_one_are_refused() -> None:
    a, b, qkv = entry("a", (6,)), entry("b", (6,)), entry("qkv", (6,))
    assert refusal(a, b, rename=[RenameRule(name="a", to="b")]) == ["'a' and 'b' would both be called 'b'"]
    assert refusal(a, qkv, split=[SplitRule(parameters="qkv", into=("a", "k"))]) == [
        "'a' and part 1 of 'qkv' would both be called 'a'"
    ]
    assert refusal(a, b, qkv, join=[JoinRule(parameters=("a", "b"), into="qkv")]) == [
        "the join of 'a' and 'b' and 'qkv' would both be called 'qkv'"
    ]
    swapped = changed([a, b], rename=[RenameRule(name="a", to="b"), RenameRule(name="b", to="a")])
    assert [(each.name, each.sources[0].name) for each in swapped.match.resharded] == [("b", "a"), ("a", "b")]


def test_names_that_cannot_be_are_refused() -> None:
    a, b = entry("a", (6,)), entry("b", (6,))
    assert refusal(a, b, rename=[RenameRule(pattern="a(.*)", to=r"\1")]) == ["nothing is left of the name of 'a'"]
    assert refusal(a, b, split=[SplitRule(parameters="a(.*)", into=(r"\1", "c"))]) == [
        "nothing is left of the name of part 1 of 'a'",
    ]
    assert refusal(a, b, rename=[RenameRule(name="a", to="redundancy_removed")]) == [
        "no parameter can be called 'redundancy_removed': that marks files without redundancy"
    ]


def test_joins_need_each_part_once() -> None:
    a0, b0, a1 = entry("0.a", (2,)), entry("0.b", (2,)), entry("1.a", (2,))
    rule = JoinRule(parameters=(r"(\d)\.a", r"(\d)\.b"), into=r"\1.ab")
    assert refusal(a0, b0, a1, join=[rule]) == [
        r"the join into '\1.ab': '1.a' has no counterpart that matches '(\d)\.b'"
    ]
    same = JoinRule(parameters=(r"(\d)\..", "(x)"), into=r"\1.ab")
    assert refusal(a0, b0, entry("x", (2,)), join=[same])[0] == (
        r"the join into '\1.ab': '0.b' and '0.a' are the same part of it"
    )
    both = JoinRule(parameters=(r"(\d)\.a", r"(\d)\.[ab]"), into=r"\1.ab")
    assert r"the join into '\1.ab': '0.a' matches several of its parts" in refusal(a0, b0, join=[both])


def test_shapes_that_rules_do_not_go_with_are_refused() -> None:
    qkv, other = entry("qkv", (8, 4), FLOAT), entry("other", (8, 6), FLOAT)
    [message] = refusal(qkv, split=[SplitRule(parameters="qkv", into=("q", "k", "v"))])
    assert message == (
        "parameters 'q', 'k', 'v': the split of 'qkv': axis 0 of 'qkv' has 8 elements, which do not divide into 3 "
        "shares"
    )
    assert refusal(qkv, split=[SplitRule(parameters="qkv", into=("q", "k"), groups=3)])[0].endswith(
        "has 8 elements, which do not divide into 2 shares in 3 groups"
    )
    assert refusal(qkv, split=[SplitRule(parameters="qkv", into=("q", "k"), axis=2)])[0] == (
        "parameters 'q', 'k': the split of 'qkv': 'qkv' has shape [8, 4], and no axis 2"
    )
    names = tuple(f"p{number}" for number in range(5))
    each = [entry(name, (8, 4), FLOAT) for name in ("a", "b")]
    into = tuple(rf"\1.{name}" for name in names)
    lines = refusal(*each, split=[SplitRule(parameters="(.)", into=into)])
    assert [line.partition(": ")[0] for line in lines] == [
        f"parameters '{of}.p0', '{of}.p1', '{of}.p2' and 2 more" for of in ("a", "b")
    ]
    [message] = refusal(qkv, other, join=[JoinRule(parameters=("qkv", "other"), into="x")])
    assert message == (
        "parameter 'x': the join into 'x': 'qkv' has shape [8, 4], 'other' has [8, 6]: they may differ along axis 0 "
        "only"
    )
    assert refusal(qkv, other, join=[JoinRule(parameters=("qkv", "other"), into="x", axis=1, groups=4)]) == [
        "parameter 'x': the join into 'x': axis 1 of 'other' has 6 elements, which do not divide into 4 groups"
    ]
    assert refusal(qkv, transpose=[TransposeRule(parameters="*", axes=(1, 2, 0))]) == [
        "parameter 'qkv': the transposition of '*': orders 3 axes, 'qkv' has shape [8, 4]"
    ]


def test_dtypes_that_rules_do_not_go_with_are_refused() -> None:
    parts = [entry("a", (4,), FLOAT), entry("b", (4,), HALF)]
    join = [JoinRule(parameters=("a", "b"), into="ab")]
    [message] = refusal(*parts, join=join)
    assert message == (
        "parameter 'ab': what it is made from has different dtypes ('a' Float32, 'b' Float16), which a cast could "
        "make one"
    )
    [message] = refusal(parts[0], entry("b", (4,)), join=join)
    assert message.endswith("has different dtypes ('a' Float32, 'b' Int32)")
    plan = changed(parts, join=join, cast=[CastRule(parameters="ab", dtype="bfloat16")])
    assert plan.match.resharded[0].dtype.name == "BFloat16"
    assert (plan.read_bytes, plan.written_bytes) == (4 * 4 + 4 * 2, 8 * 2)
    for dtype in (TEXT, MAP_TENSOR):
        opaque = TensorEntry("t", dtype, (4,), (), "text" if dtype is TEXT else None)
        assert refusal(opaque, transpose=[TransposeRule(parameters="t")]) == [
            f"parameter 't': 't' has dtype {dtype}, which cannot be transposed"
        ]
    assert refusal(entry("i", (4, 2), INT4), transpose=[TransposeRule(parameters="i")]) == [
        "parameter 'i': 'i' has dtype Int4, which cannot be transposed"
    ]

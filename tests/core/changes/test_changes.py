"""Declared changes: rules, and how options spell them."""

import pytest
from pydantic import ValidationError

from reshard.core.changes.changes import (
    FLOAT_NAMES,
    CastRule,
    Changes,
    JoinRule,
    RenameRule,
    SplitRule,
    TransposeRule,
    parse_cast,
    parse_rename,
)
from reshard.core.tensor.dtypes import dtype_from_name


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a=b", RenameRule(name="a", to="b")),
        ("a.b=c=", None),
        ("=b", None),
        ("a=", None),
        ("a", None),
        ("re:=b", None),
        (r"re:(?=x)(.*)=m.\1", RenameRule(pattern="(?=x)(.*)", to=r"m.\1")),
        (r"re:(?P<n>.)=\g<n>", RenameRule(pattern="(?P<n>.)", to=r"\g<n>")),
        (r"re:(.)=\g<n>", None),
        (r"re:.=\1", None),
        ("re:[=b", None),
    ],
)
def test_renames_of_options(text: str, rule: RenameRule | None) -> None:
    if rule is None:
        with pytest.raises(ValueError, match="must be OLD=NEW|does not go with|is not a regular expression"):
            parse_rename(text)
    else:
        assert parse_rename(text) == rule


def test_casts_of_options() -> None:
    assert parse_cast("*=BFloat16") == CastRule(parameters="*", dtype="bfloat16")
    assert parse_cast("a=b=float64") == CastRule(parameters="a=b", dtype="float64")
    for text in ("float16", "=float16"):
        with pytest.raises(ValueError, match="must be PATTERN=DTYPE"):
            parse_cast(text)
    with pytest.raises(ValueError, match="unsupported dtype 'half'; did you mean float16\\?"):
        parse_cast("*=half")


def test_renames_are_of_whole_names() -> None:
    rule = RenameRule(pattern=r"layers\.(\d+)", to=r"h.\1")
    assert [rule.new_name(name) for name in ("layers.12", "layers.12.w", "x.layers.12")] == ["h.12", None, None]
    assert [RenameRule(name="a.b", to="c").new_name(name) for name in ("a.b", "axb")] == ["c", None]


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (SplitRule, {"parameters": "a", "into": ["b", "c"], "parts": [1]}, "'parts' has 1 numbers, 'into' 2 names"),
        (SplitRule, {"parameters": "a", "into": ["b", "b"]}, "'into' has a name twice"),
        (SplitRule, {"parameters": "a", "into": ["b", r"\1"]}, "invalid group reference 1"),
        (SplitRule, {"parameters": "a", "into": ["b", "c"], "parts": [1, 0]}, "greater than or equal to 1"),
        (SplitRule, {"parameters": "a", "into": ["b", "c"], "groups": 0}, "greater than or equal to 1"),
        (SplitRule, {"parameters": "a", "into": ["b", "c"], "axis": -1}, "greater than or equal to 0"),
        (JoinRule, {"parameters": ["a"], "into": "b"}, "at least 2 items"),
        (JoinRule, {"parameters": ["(a)", "b"], "into": "c"}, "have different numbers of groups"),
        (JoinRule, {"parameters": ["a", "b"], "into": r"\1"}, "invalid group reference 1"),
        (TransposeRule, {"parameters": "a", "axes": [1, 2]}, r"must name each axis once, from 0 on, not \[1, 2\]"),
        (RenameRule, {"to": "a"}, "needs either 'name' or 'pattern'"),
        (RenameRule, {"name": "a", "pattern": "b", "to": "c"}, "needs either 'name' or 'pattern'"),
        (CastRule, {"parameters": "a", "dtype": "int8"}, "unsupported dtype 'int8'; choose from"),
        (Changes, {"include": [""]}, "at least 1 character"),
        (Changes, {"drop": ["a"]}, "Extra inputs are not permitted"),
    ],
)
def test_rules_that_say_nothing_clear_are_refused(kind: type[Changes], fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        kind.model_validate(fields)


def test_dtypes_are_those_of_checkpoints() -> None:
    assert all(dtype_from_name(name).is_float for name in FLOAT_NAMES.values())
    assert not any(dtype_from_name(name).is_float for name in ("Int8", "Int32", "Bool", "Int4", "str", "MapTensor"))

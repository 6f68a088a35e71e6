"""Templates of names, in both directions: what fits, in how many ways, and that no template takes long."""

import re
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.changes.templates import Template, Values, parse_template, parse_templates
from reshard.core.errors import InputError


@pytest.mark.parametrize(
    ("template", "name", "values"),
    [
        ("layers.{L}.w", "layers.10.w", {"L": 10}),
        ("layers.{L}.w", "layers.010.w", None),
        ("layers.{L}.w", "layers.x.w", None),
        ("layers.{L}.w", "layers.1.w.w", None),
        ("layers.{L+N}.w", "layers.61.w", {"L": 0}),
        ("layers.{N + L}.w", "layers.60.w", None),
        ("layers.{N}.w", "layers.61.w", {}),
        ("{x:*}.w", "a.b.w", {"x": "a.b"}),
        ("{x:*}.w", ".w", None),
        ("mlp.{x:gate|up}.w", "mlp.up.w", {"x": "up"}),
        ("mlp.{x:gate|up}.w", "mlp.upper.w", None),
        ("experts.{e}", "shared_experts.1", None),
        ("{L}.{L}", "3.3", {"L": 3}),
        ("{L}.{L}", "3.4", None),
        ("a{{b}}.{L}", "a{b}.2", {"L": 2}),
        ("w.{L}", "w.9999999999", None),
        ("{x:*}", "a\nb", {"x": "a\nb"}),
    ],
)
def test_names_fit_or_do_not(template: str, name: str, values: dict[str, int | str] | None) -> None:
    parsed = parse_template(template, {"N": 61})
    assert parsed.fitting(name) == values
    if values is not None:
        assert parsed.expanded(values) == name


@given(st.text(max_size=20), st.integers(0, 999_999_999))
def test_a_template_gives_back_the_name_that_fits_it(text: str, number: int) -> None:
    literal = text.replace("{", "{{").replace("}", "}}")
    template = parse_template(literal + "{i+3}" + literal)
    name = f"{text}{number}{text}"
    values = template.fitting(name)
    if number >= 3:
        assert values == {"i": number - 3}
        assert template.expanded(values) == name
    assert parse_template(str(template)) == template


def test_a_kind_given_once_counts_for_a_step() -> None:
    one, other = parse_templates(["{x:*}.w", "v.{x}"])
    assert other.fitting("v.a.b") == {"x": "a.b"}
    assert str(other) == "v.{x:*}"
    assert one.names == other.names


def ways(template: str, name: str, most: int = 9) -> list[dict[str, int | str]]:
    return [dict(values) for values in parse_template(template).ways(name, most)]


@pytest.mark.parametrize(
    ("template", "name", "values"),
    [
        ("l.{L}.w", "l.10.w", [{"L": 10}]),
        ("l.{L}.w", "l.010.w", []),
        ("l.{L}.w", "l..w", []),
        ("l.{L}.w", "l.1234567890.w", []),
        ("l.{L}.w", "l.\uff11.w", []),
        ("l.{L+3}.w", "l.5.w", [{"L": 2}]),
        ("l.{L+3}.w", "l.2.w", []),
        ("{x:*}.w", ".w", []),
        ("{x:*}.w", "a.w.w", [{"x": "a.w"}]),
        ("{x:*}.{L}", "a.1.2", [{"x": "a.1", "L": 2}]),
        ("{x:*}{L}", "a12", [{"x": "a1", "L": 2}, {"x": "a", "L": 12}]),
        ("{L}{M}", "111", [{"L": 11, "M": 1}, {"L": 1, "M": 11}]),
        ("{x:*}.{y:*}", "a.b.c", [{"x": "a.b", "y": "c"}, {"x": "a", "y": "b.c"}]),
        ("{x:*}.mlp.{y:*}", "a.mlp.b", [{"x": "a", "y": "b"}]),
        ("{x:a|aa}{y:a|aa}", "aaa", [{"x": "a", "y": "aa"}, {"x": "aa", "y": "a"}]),
        ("{x:a|a}", "a", [{"x": "a"}]),
        ("a{{b}}", "a{b}", [{}]),
        ("a\nb.{x:*}", "a\nb.\n", [{"x": "\n"}]),
    ],
)
def test_all_ways_to_fit(template: str, name: str, values: list[dict[str, int | str]]) -> None:
    assert ways(template, name) == values


@pytest.mark.parametrize(
    ("template", "name", "values"),
    [
        ("{x:*}.{x}", "a.b.a.b", {"x": "a.b"}),  # from the left x would be a.b.a
        ("{x:*}.{x}", "a.b.a.c", None),
        ("{x:*}{x}{x}", "ababab", {"x": "ab"}),
        ("{L}{L}", "1111", {"L": 11}),
        ("{L}-{L+1}", "7-8", {"L": 7}),
        ("{L}-{L+1}", "7-9", None),
        ("{x:a|aa}-{x}", "aa-aa", {"x": "aa"}),
        ("{x:a|aa}-{x}", "aa-a", None),
    ],
)
def test_a_placeholder_that_comes_twice_has_one_value(template: str, name: str, values: Values | None) -> None:
    [parsed] = parse_templates([template])
    assert parsed.fitting(name) == values


_PARTS = st.sampled_from(["{x:*}", "{y:*}", "{x}", "{L}", "{M+1}", "{z:a|aa|b}", "{v:1|a1}", "a", ".", "1", "a."])


@settings(max_examples=100)
@given(st.lists(_PARTS, min_size=1, max_size=5), st.text("a1.", min_size=1, max_size=7))
def test_the_ways_are_those_of_trying_everything(parts: list[str], name: str) -> None:
    [template] = parse_templates(["".join(parts)])
    found = template.ways(name, 10**6)
    assert {*map(_frozen, found)} == {*map(_frozen, _tried(template, name))}
    assert len({*map(_frozen, found)}) == len(found)
    assert template.ways(name, 2) == found[:2]


def _frozen(values: Values) -> frozenset[tuple[str, int | str]]:
    return frozenset(values.items())


def _tried(template: Template, name: str) -> list[Values]:
    """All values, of all texts and numbers in a name, with which a template makes it."""
    texts = {name[start:stop] for start in range(len(name)) for stop in range(start + 1, len(name) + 1)}
    numbers = {int(text) for text in texts if re.fullmatch("0|[1-9][0-9]*", text)}
    kinds = {each.name: each.texts for each in template.placeholders}
    offsets = {each.name: each.offset for each in template.placeholders}
    choices: list[list[Any]] = [
        sorted({number - offsets[each] for number in numbers if number >= offsets[each]})
        if not kind
        else sorted(texts if kind == ("*",) else texts & {*kind})
        for each, kind in kinds.items()
    ]
    tried: Iterator[dict[str, int | str]] = (dict(zip(kinds, values, strict=True)) for values in product(*choices))
    return [values for values in tried if template.expanded(values) == name]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("".join(f"{{x{number}:*}}" for number in range(8)) + ".b", "a" * 200 + ".c.b"),
        (".".join(f"{{x{number}:*}}" for number in range(8)) + ".{L}.b", "a." * 100 + "x.b"),
        ("".join(f"{{x{number}:a|aa}}" for number in range(15)) + "{y:*}b", "a" * 200 + "c"),
        ("".join(f"{{x{number}}}" for number in range(8)) * 2 + "b", "1" * 144 + "ab"),
        ("{x:*}{y:*}{z:*}{x}{y}{z}b", "a" * 1000 + "cb"),
    ],
)
def test_no_template_takes_long(template: str, name: str) -> None:
    began = time.process_time()
    [parsed] = parse_templates([template])
    try:
        parsed.ways(name)
    except InputError as error:
        assert "takes more than 20000 tries: put texts between its placeholders" in str(error)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{x:a|aa}" * 17, "has 17 placeholders; a template has at most 16"),
        ("a" * 4097, "…' has 4097 characters; a template has at most 4096"),
    ],
)
def test_templates_have_limits(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_template(template)

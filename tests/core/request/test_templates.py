"""Templates of names, in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.request.templates import parse_template, parse_templates


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

"""Documents of presets."""

import pytest

from reshard.core.changes.preset import list_presets, parse_preset, preset_names, preset_text, read_preset
from reshard.core.errors import InputError

SMALL = """
preset: small
title: Small
proof: read
switches:
  odd: {about: what is odd, values: {true: "yes", false: "no"}}
names:
  only:
    model:
      - {mf: a.weight, hf: {b.weight: [H, H]}, when: {odd: true}}
    layers: {"a.{L}": "b.{L}"}
    layer: []
"""


def refusal(old: str, new: str) -> str:
    assert old in SMALL
    with pytest.raises(InputError) as caught:
        parse_preset(SMALL.replace(old, new).encode(), "small.yaml")
    return str(caught.value)


def test_every_preset_of_the_package_can_be_read() -> None:
    assert {each.preset for each in list_presets().presets} == set(preset_names())
    assert all(read_preset(name).preset == name for name in preset_names())
    assert {"qwen3", "qwen3_moe", "deepseek3", "llama", "qwen2", "mixtral", "glm4"} <= set(preset_names())


def test_texts_stay_texts() -> None:
    """YAML's own true and numbers would not be the values that options have."""
    preset = parse_preset(SMALL.encode(), "small.yaml")
    assert preset.switches["odd"].values == {"true": "yes", "false": "no"}
    assert next(preset.names["only"].rows)[1].when == {"odd": "true"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("proof: read", "proof: guessed", "small.yaml: proof: Input should be 'run' or 'read'"),
        ("title: Small", "titel: Small", "small.yaml: titel: there is no such field"),
        ("when: {odd: true}", "when: {even: true}", "counts for even: true, which is not a switch"),
        ("when: {odd: true}", "when: {odd: maybe}", "counts for odd: maybe, which is not a switch"),
        ("when: {odd: true}", "merged: true", "only a stack has axes to be 'merged'"),
        ("when: {odd: true}", "boxed: true", "only a stack has axes to be 'boxed'"),
        ("when: {odd: true}", "variant: dense", "'variant' is one of a 'part'"),
        ("when: {odd: true}", "rope: {a.weight: 4}", "'rope' has 'a.weight', which is none of the parts"),
        ("when: {odd: true}", "rope: {b.weight: 4}, stacked: E", "'rope' is for matrices and vectors of one layer"),
        ("when: {odd: true}", "regrouped: {c.weight: {parts: [H, H]}}", "'regrouped' is for names of 'hf' with their"),
        ("when: {odd: true}", "regrouped: {b.weight: {parts: [H]}}", "should have at least 2 items"),
        (
            "when: {odd: true}",
            "regrouped: {b.weight: {parts: [H, H]}}, transposed: true",
            "'regrouped' is for one parameter of 'mf', neither 'stacked' nor 'transposed'",
        ),
        ("mf: a.weight", "mf: {a.weight: [], c.weight: []}", "several of 'mf' need their shapes"),
        (
            "{mf: a.weight, hf: {b.weight: [H, H]}",
            "{mf: {a: [H, H], c: [H, H]}, hf: {b: [H, H], d: [H, H]}",
            "'mf' and 'hf' cannot both list several names",
        ),
        (
            "{b.weight: [H, H]}",
            "{b.weight: [H, H], c.weight: [H]}",
            "the shapes of 'hf' have different numbers of axes",
        ),
        ("{b.weight: [H, H]}", "{}", "should have at least 1 item"),
        (
            "hf: {b.weight: [H, H]}",
            "hf: {b.weight: [], c.weight: [H]}, rope: {b.weight: 4}",
            "different numbers of axes",
        ),
        (
            "hf: {b.weight: [H, H]}",
            "hf: {b.weight: []}, regrouped: {b.weight: {parts: [1, 1], hf: H}}",
            "'regrouped' is for names of 'hf' with their shapes",
        ),
        (
            "when: {odd: true}",
            "regrouped: {a.weight: {parts: [1, 1], hf: H}}",
            "'regrouped' is for names of 'hf' with their shapes",
        ),
        (
            "when: {odd: true}",
            "regrouped: {b.weight: {parts: [1, 1], hf: H}}, transposed: true",
            "'regrouped' is for one parameter of 'mf', neither 'stacked' nor 'transposed'",
        ),
        ("when: {odd: true}", "regrouped: {b.weight: {parts: [1], hf: H}}", "should have at least 2 items"),
        (
            "hf: {b.weight: [H, H]}",
            "hf: {b.weight: []}, positions: {head: H, rows: 2}",
            "'positions' is for one parameter that is one parameter, with its shape, of 'hf'",
        ),
        (
            "layer: []",
            "layer:\n      - {mf: c, hf: {d: []}, only_in: [c.x]}",
            "'only_in' has 'c.x', which is not one of 'layers'",
        ),
        ("when: {odd: true}", "added: 1, stacked: E", "'added' is for one parameter that is one parameter on the"),
        (
            "when: {odd: true}",
            "required_if: M",
            "the row of 'a.weight' is required by M, which is not one of 'counted'",
        ),
        ("hf: {b.weight: [H, H]}", "hf: {b.weight: []}, rope: {b.weight: 4}", "'rope' needs the shapes of the parts"),
        (
            "when: {odd: true}",
            "regrouped: {b.weight: {parts: [1, 1], axis: 2}}",
            "'regrouped' is for names of 'hf' with their shapes, of which 'axis' is an axis",
        ),
        ("when: {odd: true}", "regrouped: {b.weight: {parts: [1, 1], axis: -1}}", "greater than or equal to 0"),
        (
            "hf: {b.weight: [H, H]}",
            "stacked: E, hf: {b.weight: [H], c.weight: [H]}",
            "the parts of a whole stack have shapes of the stack's axis, rows and columns",
        ),
        (
            "names:",
            "names:\n  other: {like: none}",
            "other is like 'none', which is not a world with rows of its own",
        ),
        ("names:", "names:\n  other: {like: gpt/mcore}", "other is like 'gpt/mcore', which is not a world with rows"),
        (
            "names:",
            "names:\n  more: {like: other}\n  other: {like: only}",
            "more is like 'other', which is not a world",
        ),
        (
            "names:",
            "names:\n  other: {like: only, without: [c.weight]}",
            "'without' has 'c.weight', which 'only' has no row of",
        ),
        (
            "layer: []",
            "layer: []\n    without: [a.weight]",
            "'without' is for names of the world that this one is 'like'",
        ),
        ("names:", "names:\n  other: {whose: Me}", "needs rows, in 'model' and 'layer', and 'layers', or to be 'like'"),
        ("mf: a.weight", "mf: 'a.{x:*}.weight'", "'a.{x:*}.weight': placeholders of a preset are numbers"),
        ("mf: a.weight", "mf: 'a.{e}.weight'", "'a.{e}.weight': {e} is the index of a stack, and 'stacked' does not"),
        ("mf: a.weight", "mf: 'a.{i.weight'", "has a single brace"),
        ('values: {true: "yes", false: "no"}', "values: {true: x}", "should have at least 2 items"),
        ('false: "no"}', 'false: "no"}, default: perhaps', "'perhaps' is not one of its 'values'"),
        ("names:\n  only:", "names:\n  only: &a\n  x: *a\n  only:", "'only' is there twice"),
    ],
)
def test_malformed_documents(old: str, new: str, problem: str) -> None:
    assert problem in refusal(old, new)


def test_a_world_that_is_like_another() -> None:
    """It has its rows, with switches settled, but for those that it has itself, or does without."""
    text = SMALL.replace(
        "layer: []",
        """layer:
      - {mf: c.weight, hf: {d.weight: []}, when: {odd: false}}
      - {mf: e.weight, hf: {f.weight: []}}
      - {mf: g.weight, hf: {h.weight: []}}
  other:
    like: only
    switches: {odd: true}
    without: [e.weight]
    layer:
      - {mf: g.weight, hf: {i.weight: []}}
""",
    )
    names = parse_preset(text.encode(), "small.yaml").names["other"]
    assert [(row.name, [*row.hf], row.when) for _, row in names.rows] == [
        ("a.weight", ["b.weight"], {}),
        ("a.{L}.g.weight", ["b.{L}.i.weight"], {}),
    ]


def test_rows_that_multiply_are_refused() -> None:
    """A megabyte of prefixes and of rows below each would be billions of rows."""
    layers = ", ".join(f"a{number}: b{number}" for number in range(1000))
    rows = ", ".join(f"{{mf: c{number}, hf: {{d{number}: []}}}}" for number in range(1000))
    text = SMALL.replace('{"a.{L}": "b.{L}"}', f"{{{layers}}}").replace("layer: []", f"layer: [{rows}]")
    with pytest.raises(InputError) as caught:
        parse_preset(text.encode(), "small.yaml")
    assert str(caught.value) == (
        "small.yaml: names.only: 1,000,001 rows, with those of each of its layers and adapters, are more than 8,192, "
        "the limit"
    )


def test_presets_that_do_not_exist() -> None:
    with pytest.raises(
        InputError, match=r"there is no preset 'bert'. There are baichuan, chatglm, .*, or a .yaml file of your own"
    ):
        preset_text("bert")
    with pytest.raises(InputError, match="nothing.yaml"):
        read_preset("/nowhere/nothing.yaml")

import pytest

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.strategy.rescaling import CutRule, Rescaler, parse_cut
from reshard.core.strategy.roles import device_roles
from reshard.core.tensor.layout import ParameterLayout

ROWS, COLUMNS = ParameterLayout((2, 4), ((0,), ())), ParameterLayout((2, 4), ((), (0,)))
WHOLE = ParameterLayout((2, 4), ((), ()))


def rescaler(data: int, model: int, has_rules: bool = False) -> Rescaler:
    layouts = [("rows", ROWS), ("columns", COLUMNS), ("norm", WHOLE)]
    return Rescaler(device_roles(layouts, 8), data, model, has_rules)


def shards(layout: ParameterLayout) -> tuple[int, ...]:
    return layout.shard_grid(2).pieces


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("*.wq=0", CutRule("*.wq", ((0, "model"),))),
        ("*.wq=0:model,1:data", CutRule("*.wq", ((0, "model"), (1, "data")))),
        ("a=b=whole", CutRule("a=b", ())),
    ],
)
def test_rules(text: str, rule: CutRule) -> None:
    assert parse_cut(text) == rule


@pytest.mark.parametrize("text", ["", "w", "w=", "=0", "w=x", "w=-1", "w=0:tensor", "w=0,", "w=1000", "w=²"])
def test_no_rules(text: str) -> None:
    with pytest.raises(StrategyError, match="it has to be PATTERN=AXIS"):
        parse_cut(text)


def test_the_same_devices_shard_once() -> None:
    with pytest.raises(StrategyError, match="the same devices cannot cut it twice"):
        parse_cut("w=0,1:model")


def test_the_same_axes_are_sharded_over_other_numbers() -> None:
    scaled = rescaler(3, 2)
    scaled.check("src")
    found = {name: scaled.rescaled(layout, None, None) for name, layout in (("r", ROWS), ("c", COLUMNS))}
    assert [shards(layout) for layout in found.values()] == [(2, 1), (1, 2)]
    assert {layout.device_count for layout in found.values()} == {6}
    assert shards(scaled.rescaled(WHOLE, (4, 4), None)) == (1, 1)


def test_the_same_sizes_keep_layouts_as_they_are() -> None:
    assert rescaler(2, 4).rescaled(ROWS, (8, 8), None) is ROWS


def test_a_rule_overrides_the_source() -> None:
    scaled = rescaler(3, 2, has_rules=True)
    assert shards(scaled.rescaled(ROWS, (8, 12), parse_cut("rows=1:data,0"))) == (2, 3)
    assert shards(scaled.rescaled(ROWS, (8, 12), parse_cut("rows=whole"))) == (1, 1)
    with pytest.raises(LayoutError, match=r"has no axis 2, which cuts=\['rows'\] names: it has 2"):
        scaled.rescaled(ROWS, (8, 12), parse_cut("rows=2"))


def test_a_source_without_model_parallel_does_not_show_what_to_shard() -> None:
    roles = device_roles([("norm", WHOLE)], 8)
    with pytest.raises(StrategyError, match="it does not show which tensor axes model_parallel=2 should cut"):
        Rescaler(roles, 4, 2).check("src")
    Rescaler(roles, 4, 1).check("src")
    Rescaler(roles, 4, 2, has_rules=True).check("src")


def test_uneven_shards_cannot_be_rescaled() -> None:
    uneven = ParameterLayout((2, 4), ((0,), ()), param_split_shape=(1, 2, 3, 2), indices_offset=(0, 1, 3, 6))
    with pytest.raises(LayoutError, match="axis 0 is cut unevenly"):
        rescaler(1, 2).rescaled(uneven, None, None)

"""Shards and layouts whose shapes contradict one another."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from reshard.core.tensor.layout import ParameterLayout
from tests.support.diagnosed import LAYERS, looked_at, only, problems, shaped, sharded
from tests.support.two_stages import COLUMNS, NORM, ROWS, STAGES, write


def test_unequal_shards(tmp_path: Path) -> None:
    uneven = ParameterLayout((2, 2), ((0,), ()), param_split_shape=(3, 5), indices_offset=(0, 3))
    write(tmp_path / "src", [{**STAGES[0], "net.l.0.wq": uneven}, STAGES[1]])
    finding = only(looked_at(tmp_path), "shapes")
    assert finding.found == "parameter 'net.l.0.wq' is Float32 [3, 8] on rank_0, but Float32 [5, 8] on rank_1"


def test_another_number_of_axes(tmp_path: Path) -> None:
    write(tmp_path / "src")
    finding = problems(looked_at(tmp_path, [{**STAGES[0], "net.l.0.wq": NORM}, STAGES[1]]))[0]
    assert "shards that their layouts do not fit: 'net.l.0.wq' Float32 [4, 8]: its layout has 1" in finding.found


def test_another_shape(tmp_path: Path) -> None:
    write(tmp_path / "src")
    other = [{**shaped(STAGES)[0], "net.l.0.wq": replace(ROWS, tensor_shape=(12, 8))}, shaped(STAGES)[1]]
    finding = only(looked_at(tmp_path, other, "strategy.json"), "shapes")
    assert finding.found == (
        "shards of other shapes than the strategy's: 'net.l.0.wq' is [4, 8] on rank_0, of [12, 8] in the strategy: "
        "it would make [8, 8]"
    )


def test_optimizer_parallel_was_off(tmp_path: Path) -> None:
    write(tmp_path / "src")
    found = problems(looked_at(tmp_path, shaped(sharded(STAGES)), "strategy.json"))
    assert [finding.check for finding in found] == ["shapes", "contents"]
    assert found[0].found.startswith(
        "shards that the optimizer shard does not cut, though the strategy says so: 'net.embed.w' is [4, 8] on rank_0"
    )
    by_contents = only(looked_at(tmp_path, sharded(STAGES)), "contents")
    assert by_contents.found.startswith("the optimizer shard does not cut what ranks hold: 'net.embed.w' is the same")
    assert "optimizer parallel was off" in by_contents.means
    assert "without optimizer_parallel=True" in by_contents.advice


def test_optimizer_parallel_was_on(tmp_path: Path) -> None:
    write(tmp_path / "src", sharded(STAGES))
    found = problems(looked_at(tmp_path, shaped(STAGES), "strategy.json"))
    assert found[0].found.startswith("shards that are cut by optimizer parallel, unlike the strategy's")
    by_contents = only(looked_at(tmp_path), "contents")
    assert by_contents.found.startswith("replicas differ as if optimizer parallel cut them: 'net.embed.w'")
    assert "optimizer parallel was on" in by_contents.means


def test_stages_of_different_jobs(tmp_path: Path) -> None:
    tied = [STAGES[0], {**STAGES[1], "net.embed.w": ROWS}]
    write(tmp_path / "src", tied)
    found = problems(looked_at(tmp_path, [STAGES[0], {**STAGES[1], "net.embed.w": COLUMNS}]))
    assert found[0].found == (
        "shards of several stages make wholes of different shapes: 'net.embed.w': [4, 16] and [8, 8]"
    )


@pytest.mark.parametrize("names", [["l.3.wq"], ["adam_m.l.3.wq"], ["l.3.wq", "adam_m.l.3.wq"]])
def test_one_layer_along_another_axis(tmp_path: Path, names: Sequence[str]) -> None:
    layers = {**LAYERS, **{f"adam_m.{name}": layout for name, layout in LAYERS.items()}}
    write(tmp_path / "src", [layers])
    diagnosis = looked_at(tmp_path, [{**layers, **dict.fromkeys(names, COLUMNS)}])
    finding = only(diagnosis, "shapes")
    assert "parameters that should be alike make wholes of other shapes" in finding.found
    assert "'adam_m.l.3.wq'" in finding.found or "'l.3.wq' [4, 16] but 'l.0.wq' [8, 8]" in finding.found


def test_layers_of_one_stage_along_another_axis(tmp_path: Path) -> None:
    layers = [{f"l.{n}.w": ROWS for n in numbers} for numbers in ((0, 1), (2, 3))]
    write(tmp_path / "src", layers)
    finding = only(looked_at(tmp_path, [layers[0], dict.fromkeys(layers[1], COLUMNS)]), "shapes")
    assert "'l.2.w' [4, 16] but 'l.0.w' [8, 8], of shards [4, 8]" in finding.found


def test_layers_that_all_differ_are_no_finding(tmp_path: Path) -> None:
    unlike = {"l.0.w": ROWS, "l.1.w": COLUMNS, "l.2.w": ROWS}
    write(tmp_path / "src", [unlike])
    message = looked_at(tmp_path, [{"l.0.w": ROWS, "l.1.w": COLUMNS, "l.2.w": COLUMNS}])
    assert (message.fits, message.findings) == (True, ())


def test_a_strategy_without_shapes_shows_those_it_makes(tmp_path: Path) -> None:
    write(tmp_path / "src", [LAYERS])
    facts = dict(looked_at(tmp_path, [LAYERS]).facts)
    assert facts["shapes"] == (
        "not confirmed for 8 parameters, whose axes only the strategy shows; compare with the network's: "
        "l.*.wq [8, 8], l.*.wo [8, 8], l.*.norm [8]"
    )
    shown = dict(looked_at(tmp_path, shaped([LAYERS]), "s.json").facts)["shapes"]
    assert shown.startswith("confirmed by recorded shapes: l.*.wq [8, 8], ")

"""Whole shapes compared with those of a model that has them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.diagnosed import LAYERS, diagnose, only, shaped
from tests.support.families import ALL_FAMILIES, Family, sharded, switches_of
from tests.support.two_stages import COLUMNS, strategy, write

WRONG = LAYERS | {name: COLUMNS for name in LAYERS if name.endswith("wq")}


def compared(tmp_path: Path, like: Path, layouts: Mapping[str, ParameterLayout] = LAYERS) -> Diagnosis:
    write_strategy(strategy([layouts]), str(tmp_path / "strategy.ckpt"))
    return diagnose(str(tmp_path / "src"), str(tmp_path / "strategy.ckpt"), like=str(like))


@pytest.fixture(params=["strategy in JSON", "unified", "dcp"])
def like(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model that shows the shapes of the checkpoint in `src`."""
    write(tmp_path / "src", [LAYERS])
    if request.param == "strategy in JSON":
        write_strategy(strategy(shaped([LAYERS])), str(tmp_path / "like.json"))
        return tmp_path / "like.json"
    write_strategy(strategy([LAYERS]), str(tmp_path / "own.ckpt"))
    options = {"layout": request.param, "source_strategy": str(tmp_path / "own.ckpt")}
    convert(build_request(source=str(tmp_path / "src"), target=str(tmp_path / "like"), **options))
    return tmp_path / "like"


def test_a_model_confirms_the_whole_shapes(tmp_path: Path, like: Path) -> None:
    diagnosis = compared(tmp_path, like)
    assert (diagnosis.fits, diagnosis.whole_shapes.confirmed) == (True, True)
    assert diagnosis.whole_shapes.witnesses == str(like)


def test_a_model_contradicts_a_strategy_along_the_wrong_axis(tmp_path: Path, like: Path) -> None:
    found = only(compared(tmp_path, like, WRONG), "shapes").found
    assert found.startswith(f"the strategy makes wholes of other shapes than {like} has: 'l.0.wq' [4, 16], not [8, 8]")


def test_a_target_strategy_in_json_confirms_the_shapes_of_a_plan(tmp_path: Path) -> None:
    write(tmp_path / "src", [LAYERS])
    write_strategy(strategy([LAYERS]), str(tmp_path / "own.ckpt"))
    write_strategy(strategy(shaped([LAYERS])), str(tmp_path / "target.json"))
    paths = {"source": str(tmp_path / "src"), "source_strategy": str(tmp_path / "own.ckpt")}
    _, summary = describe_plan(build_request(target=str(tmp_path / "out"), **paths))
    assert not summary.whole_shapes.confirmed
    named = {"target_strategy": str(tmp_path / "target.json")}
    _, summary = describe_plan(build_request(target=str(tmp_path / "out"), **paths, **named))
    assert summary.whole_shapes.confirmed
    assert summary.whole_shapes.witnesses == "target strategy"


def test_a_model_of_other_names_and_one_without_whole_tensors_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "src", [LAYERS])
    unshaped = {name: replace(layout, tensor_shape=None) for name, layout in LAYERS.items()}
    write_strategy(strategy([unshaped]), str(tmp_path / "bare.json"))
    with pytest.raises(InputError, match="bare.json: shows no whole shapes"):
        compared(tmp_path, tmp_path / "bare.json")
    other = {name.replace("l.", "h."): layout for name, layout in shaped([LAYERS])[0].items()}
    write_strategy(strategy([other]), str(tmp_path / "other.json"))
    with pytest.raises(InputError, match=r"other.json: has none of the parameters \('l.0.wq'.* add 'preset'"):
        compared(tmp_path, tmp_path / "other.json")
    with pytest.raises(InputError, match="nothing to compare them with: leave out 'like'"):
        diagnose(str(tmp_path / "src"), like=str(tmp_path / "other.json"))


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=str)
def test_a_preset_confirms_the_shapes_of_a_family(family: Family, tmp_path: Path) -> None:
    ranks = sharded(family, tmp_path)
    alone = diagnose(str(ranks.source), str(ranks.strategy))
    assert (alone.fits, alone.findings, alone.whole_shapes.confirmed) == (True, (), False)
    options = {"preset": family.case["preset"], "switch": switches_of(family), "like": str(family.hf)}
    with_preset = diagnose(str(ranks.source), str(ranks.strategy), **options)
    assert (with_preset.fits, with_preset.findings, with_preset.whole_shapes.confirmed) == (True, (), True)

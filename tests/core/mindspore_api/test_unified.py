"""What ranks get of whole parameters in a directory."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, CheckpointError, PlanError
from reshard.core.files.model import CheckpointFormat
from reshard.core.files.numpy_values import Value
from reshard.core.mindspore_api.file_writing import read_values
from reshard.core.mindspore_api.unified import open_unified, plan_ranks, sharded_names
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout

WHOLE = np.arange(48, dtype=np.float32).reshape(4, 12)
STEP = np.array([7], np.int32)


def strategy_of(**layouts: ParameterLayout) -> Strategy:
    return Strategy((StageStrategy(0, layouts, (OperatorStrategy("op", 0, ((1, 1),)),)),), "strategy.ckpt")


def values_of(catalog: CheckpointCatalog, strategy: Strategy | None, rank: int) -> dict[str, Value]:
    return read_values(plan_ranks(catalog, strategy, CheckpointFormat.CKPT), rank)


@pytest.fixture
def unified(tmp_path: Path) -> CheckpointCatalog:
    save_file({"w": WHOLE}, str(tmp_path / "part0.safetensors"))
    save_file({"old": WHOLE + 100}, str(tmp_path / "part1.safetensors"))
    save_file({"step": STEP}, str(tmp_path / "hyper_param.safetensors"))
    weights = {"w": "part0.safetensors", "new": "part1.safetensors"}
    (tmp_path / "param_name_map.json").write_text(json.dumps({"weight_map": weights}))
    return open_unified(parse_url(str(tmp_path)), {"new": "old"})


def test_names_are_those_of_the_strategy(unified: CheckpointCatalog) -> None:
    assert sharded_names(unified) == {"w", "new"}


def test_without_a_strategy_all_is_whole(unified: CheckpointCatalog) -> None:
    values = values_of(unified, None, 0)
    assert values.keys() == {"w", "new", "step"}
    np.testing.assert_array_equal(values["new"], WHOLE + 100)
    np.testing.assert_array_equal(values["step"], STEP)


@pytest.mark.parametrize(
    ("layout", "rank", "expected"),
    [
        (ParameterLayout((2,), ((0,), ())), 1, WHOLE[2:]),
        (ParameterLayout((2,), ((), (0,))), 1, WHOLE[:, 6:]),
        (ParameterLayout((2, 2), ((1,), (0,))), 2, WHOLE[2:, :6]),
    ],
    ids=["rows", "columns", "blocks"],
)
def test_slices(unified: CheckpointCatalog, layout: ParameterLayout, rank: int, expected: np.ndarray) -> None:
    values = values_of(unified, strategy_of(w=layout, absent=layout), rank)
    assert list(values) == ["w", "step"]
    np.testing.assert_array_equal(values["w"], expected)
    assert isinstance(values["w"], np.ndarray)
    assert values["w"].base is None or values["w"].base.nbytes == expected.nbytes  # the rest is not kept in memory


def test_what_is_outside_the_strategy_stays_whole_though_a_layout_has_its_name(unified: CheckpointCatalog) -> None:
    rows = ParameterLayout((2,), ((0,), ()))
    np.testing.assert_array_equal(values_of(unified, strategy_of(w=rows, step=rows), 1)["step"], STEP)


def test_a_parameter_that_is_in_the_map_and_outside_the_strategy(tmp_path: Path, unified: CheckpointCatalog) -> None:
    save_file({"step": STEP, "w": WHOLE}, str(tmp_path / "hyper_param.safetensors"))
    again = open_unified(parse_url(str(tmp_path)), {"new": "old"})
    assert sharded_names(again) == {"new"}
    np.testing.assert_array_equal(values_of(again, None, 0)["w"], WHOLE)


def test_ranks_of_a_stage_without_a_parameter_in_the_files(unified: CheckpointCatalog) -> None:
    rows = ParameterLayout((2,), ((0,), ()))
    stages = tuple(StageStrategy(number, {name: rows}) for number, name in enumerate(("absent", "w")))
    strategy = Strategy(stages, "strategy.ckpt")
    assert values_of(unified, strategy, 1).keys() == {"step"}
    np.testing.assert_array_equal(values_of(unified, strategy, 3)["w"], WHOLE[2:])


def test_files_that_change_while_they_are_read(tmp_path: Path, unified: CheckpointCatalog) -> None:
    plan = plan_ranks(unified, None, CheckpointFormat.CKPT)
    save_file({"w": np.zeros((5, 12), np.float32)}, str(tmp_path / "part0.safetensors"))
    with pytest.raises(CatalogError, match=r"part0\.safetensors"):
        read_values(plan, 0)


def test_elements_that_arrays_cannot_have(tmp_path: Path) -> None:
    save_file({"w": WHOLE, "v": np.zeros((2, 2), np.complex64)}, str(tmp_path / "part0.safetensors"))
    plan = plan_ranks(open_unified(parse_url(str(tmp_path)), {}), None, CheckpointFormat.CKPT)
    with pytest.raises(CheckpointError, match=r"part0\.safetensors: parameter 'v': C64 cannot be read as an array"):
        read_values(plan, 0)


def test_layouts_that_do_not_divide(unified: CheckpointCatalog) -> None:
    with pytest.raises(PlanError, match=r"parameter 'w': its shape .*: axis 0 has 4 elements, which 3 devices"):
        plan_ranks(unified, strategy_of(w=ParameterLayout((3,), ((0,), ()))), CheckpointFormat.CKPT)

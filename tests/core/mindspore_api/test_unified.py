"""Slices of whole parameters in a directory."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.errors import CatalogError, LayoutError
from reshard.core.mindspore_api.unified import UnifiedCheckpoint
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout

WHOLE = np.arange(48, dtype=np.float32).reshape(4, 12)
STEP = np.array([7], np.int32)


def strategy_of(layout: ParameterLayout) -> Strategy:
    return Strategy((StageStrategy(0, {"w": layout}, (OperatorStrategy("op", 0, ((1, 1),)),)),), "strategy.ckpt")


@pytest.fixture
def unified(tmp_path: Path) -> Iterator[UnifiedCheckpoint]:
    save_file({"w": WHOLE}, str(tmp_path / "part0.safetensors"))
    save_file({"old": WHOLE + 100}, str(tmp_path / "part1.safetensors"))
    save_file({"step": STEP}, str(tmp_path / "hyper_param.safetensors"))
    weights = {"w": "part0.safetensors", "new": "part1.safetensors"}
    (tmp_path / "param_name_map.json").write_text(json.dumps({"weight_map": weights}))
    checkpoint = UnifiedCheckpoint(parse_url(str(tmp_path)), {"new": "old"})
    yield checkpoint
    checkpoint.close()


def test_names_are_those_of_the_strategy(unified: UnifiedCheckpoint) -> None:
    assert list(unified.parameters) == ["w", "new"]


def test_without_a_strategy_all_is_whole(unified: UnifiedCheckpoint) -> None:
    values = {each.name: each.value() for each in unified.slices(None, 0)}
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
def test_slices(unified: UnifiedCheckpoint, layout: ParameterLayout, rank: int, expected: np.ndarray) -> None:
    [shard, step] = unified.slices(strategy_of(layout), rank)
    np.testing.assert_array_equal(shard.value(), expected)
    assert (shard.output().name, shard.output().shape) == ("w", expected.shape)
    assert step.name == "step"
    # any stretch of the contents may be read by itself
    assert b"".join(map(bytes, shard.blocks(8, 40))) == expected.tobytes()[8:40]


def test_refused_ranks_and_layouts(unified: UnifiedCheckpoint) -> None:
    with pytest.raises(CatalogError, match="is for ranks 0 to 1, there is no rank 2"):
        unified.slices(strategy_of(ParameterLayout((2,), ((0,), ()))), 2)
    with pytest.raises(LayoutError, match="parameter 'w': axis 0 has 4 elements"):
        unified.slices(strategy_of(ParameterLayout((3,), ((0,), ()))), 0)

"""Zeros that steps put beside values, against the same in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.core.conversion.test_added_numbers import TYPES, changes_of, check_shards, plus, source_of, values
from tests.support.checkpoints import read_safetensors
from tests.support.safetensors_files import write_safetensors


@settings(max_examples=12)
@given(st.data())
def test_blocks_of_zeros(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever the values in whose place they are."""
    directory = tmp_path_factory.mktemp("zeros")
    tag = data.draw(st.sampled_from([*TYPES]))
    array = values(data.draw(st.integers(0, 99)), (48, 24), tag)
    array[data.draw(st.integers(0, 47))] = np.nan
    axis, length = data.draw(st.integers(0, 1)), data.draw(st.sampled_from([0, 24, 120]))
    shape = tuple(length or own if at == axis else own for at, own in enumerate(array.shape))
    steps: list[dict[str, Any]] = [{"zeros": {"parameters": "w", "to": "z", "axis": axis, "length": length}}]
    zeros = np.zeros(shape, array.dtype)
    wanted = {"w": array, "z": zeros}
    kind = data.draw(st.sampled_from(["apart", "joined", "in turn", "transposed"]))
    if kind == "transposed":
        steps.append({"transpose": {"parameters": "z"}})
        wanted["z"] = zeros.T
    elif kind != "apart":
        groups = 1 if kind == "joined" else 24
        parts = [array.shape[axis], shape[axis]]
        join = {"parameters": ["w", "z"], "into": "b", "axis": axis, "parts": parts, "groups": groups}
        steps.append({"join": join})
        shares = [np.split(each, groups, axis) for each in (array, zeros)]
        wanted = {"b": np.concatenate([share for both in zip(*shares, strict=True) for share in both], axis)}
    check_shards(data, directory, {"w": (tag, array)}, steps, wanted)


def test_a_comparison_makes_zeros_too(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"w": ("F32", values(3, (6,), "F32"))})
    zeros: dict[str, Any] = {"zeros": {"parameters": "w", "to": "z"}}
    steps = [zeros, {"join": {"parameters": ["w", "z"], "into": "b"}}]
    changes = changes_of(tmp_path, steps)
    target = tmp_path / "target"
    convert(build_request(source=str(source), target=str(target), layout="unified", changes=changes))
    assert compare_checkpoints(build_comparison(a=str(source), b=str(target), changes=changes)).same
    (tmp_path / "other").mkdir()
    other = source_of(tmp_path / "other", {"b": ("F32", np.ones(12, np.float32))})
    assert not compare_checkpoints(build_comparison(a=str(source), b=str(other), changes=changes)).same


def test_zeros_are_of_floats_only(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"w": ("I32", np.arange(6, dtype=np.int32))})
    changes = changes_of(tmp_path, [{"zeros": {"parameters": "w", "to": "z"}}])
    request = build_request(source=str(source), target=str(tmp_path / "out"), layout="unified", changes=changes)
    with pytest.raises(PlanError, match=r"'w' has dtype Int32: zeros can only be made in the place of Float16, BFloat"):
        make_plan(request)


def test_no_zeros_of_scaled_values(tmp_path: Path) -> None:
    weight, scale = np.zeros((4, 4), np.uint8), np.ones((1, 1), np.float32)
    steps = [{"dequantize": {"parameters": "w", "scale": "w_scale"}}, {"zeros": {"parameters": "w", "to": "z"}}]
    source = tmp_path / "source"
    source.mkdir()
    write_safetensors(source / "model.safetensors", {"w": ("F8_E4M3", weight), "w_scale": ("F32", scale)})
    request = build_request(
        source=str(source), target=str(tmp_path / "out"), layout="unified", changes=changes_of(tmp_path, steps)
    )
    with pytest.raises(PlanError, match="'w' has scaled values, of which no zeros can be made"):
        make_plan(request)


@pytest.mark.parametrize("tag", TYPES)
def test_a_number_is_added_to_zeros_too(tag: str, tmp_path: Path) -> None:
    array = values(5, (6, 4), tag)
    zeros: dict[str, Any] = {"zeros": {"parameters": "w", "to": "z"}}
    steps = [{"add": {"parameters": "w", "number": 2}}, zeros, {"add": {"parameters": "z", "number": 3}}]
    source, target = source_of(tmp_path, {"w": (tag, array)}), tmp_path / "target"
    convert(
        build_request(
            source=str(source),
            target=str(target),
            layout="unified",
            changes=changes_of(tmp_path, steps),
            verify="content",
        )
    )
    found = read_safetensors(target / "model.safetensors")
    for name, wanted in {"w": plus(array, 2), "z": np.full((6, 4), 3, array.dtype)}.items():
        assert found[name][2] == wanted.tobytes()

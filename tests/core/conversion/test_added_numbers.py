"""Numbers that are added to values on the way, against the same in numpy."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import read_tree
from tests.support.families import directory_contents
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import layouts, shard_of
from tests.support.safetensors_files import write_safetensors

TYPES = {
    "F16": ("Float16", np.dtype(np.float16)),
    "BF16": ("BFloat16", np.dtype(ml_dtypes.bfloat16)),
    "F32": ("Float32", np.dtype(np.float32)),
    "F64": ("Float64", np.dtype(np.float64)),
}
Tensors = dict[str, tuple[str, np.ndarray]]


def values(number: int, shape: tuple[int, ...], tag: str) -> np.ndarray:
    scale = np.random.default_rng(number)
    return (scale.standard_normal(shape) * 10.0 ** scale.integers(-3, 4, shape)).astype(TYPES[tag][1])


def plus(array: np.ndarray, number: int) -> np.ndarray:
    """The sum, rounded once from float32 or wider, as PyTorch has it."""
    wide = np.result_type(array.dtype, np.float32)
    return (array.astype(wide) + np.asarray(number, wide)).astype(array.dtype)


def source_of(directory: Path, tensors: Tensors) -> Path:
    source = directory / "source"
    source.mkdir()
    bits = {name: (tag, array.view(f"u{array.itemsize}")) for name, (tag, array) in tensors.items()}
    write_safetensors(source / "model.safetensors", bits)
    return source


def changes_of(directory: Path, steps: list[dict[str, Any]], **more: Any) -> str:
    document = directory / "changes.yaml"
    document.write_text(str({"steps": steps, **more}).replace("'", '"'))
    return str(document)


def check_shards(
    data: st.DataObject, directory: Path, tensors: Tensors, steps: list[dict[str, Any]], wanted: dict[str, np.ndarray]
) -> None:
    """Convert tensors of one dtype to random shards, perhaps cast, and compare these."""
    cuts = {name: data.draw(layouts(4, each.ndim)) for name, each in wanted.items()}
    cast = data.draw(st.sampled_from([None, "float32"]))
    more: dict[str, Any] = {"cast": [{"parameters": "*", "dtype": cast}]} if cast else {}
    strategy = directory / "strategy.ckpt"
    write_strategy(make_strategy({each: as_layout(cut) for each, cut in cuts.items()}), str(strategy))
    request = build_request(
        source=str(source_of(directory, tensors)),
        target=str(directory / "target"),
        target_strategy=str(strategy),
        changes=changes_of(directory, steps, **more),
        format="safetensors",
        verify="content",
        memory_limit="16MiB",
    )
    assert convert(request).committed
    [tag] = {tag for tag, _ in tensors.values()}
    name, dtype = TYPES["F32" if cast else tag]
    for rank, held in read_tree(directory / "target").items():
        assert {*held} == {*wanted}
        for key, (found, shape, content) in held.items():
            shard = shard_of(wanted[key], cuts[key], rank).astype(dtype)
            assert (found, shape, content) == (name, shard.shape, np.ascontiguousarray(shard).tobytes())


@settings(max_examples=12)
@given(st.data())
def test_values_become_so_much_more(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("added")
    tag = data.draw(st.sampled_from([*TYPES]))
    array = values(data.draw(st.integers(0, 99)), (48, 120), tag)
    number = data.draw(st.sampled_from([1, -1, 300]))
    step = {"add": {"parameters": "w", "number": number}}
    steps, whole = [step], plus(array, number)
    if data.draw(st.booleans()):
        steps.insert(data.draw(st.integers(0, 1)), {"transpose": {"parameters": "w"}})
        whole = whole.T
    wanted = {"w": whole}
    if data.draw(st.booleans()):  # rows in turn, one half of them as they were
        groups = len(whole) // 2
        plain = array if whole.shape == array.shape else array.T
        steps = [each for each in steps if each is not step]
        steps.append({"split": {"parameters": "w", "into": ["even", "odd"], "groups": groups}})
        steps.append({"add": {"parameters": "even", "number": number}})
        wanted = {"even": plus(plain[::2], number), "odd": plain[1::2]}
        if data.draw(st.booleans()):
            steps.append({"join": {"parameters": ["odd", "even"], "into": "w", "groups": groups}})
            wanted = {"w": np.stack([wanted["odd"], wanted["even"]], 1).reshape(plain.shape)}
    check_shards(data, directory, {"w": (tag, array)}, steps, wanted)


def test_states_but_for_copies_of_the_weight_are_as_they_were(tmp_path: Path) -> None:
    arrays = {f"{prefix}w": values(3, (6,), "F32") for prefix in ("", "main_param.", "adam_m.", "exp_avg.")}
    source = source_of(tmp_path, {name: ("F32", array) for name, array in arrays.items()})
    changes = changes_of(tmp_path, [{"add": {"parameters": "w", "number": -1}}])
    target = tmp_path / "target"
    convert(build_request(source=str(source), target=str(target), layout="unified", changes=changes, verify="content"))
    held = directory_contents(target)
    for name, array in arrays.items():
        expected = plus(array, -1) if name in ("w", "main_param.w") else array
        assert held[name][2] == expected.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (0, 3)])
def test_a_number_is_added_to_a_scalar_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.full(shape, 0.5, np.float32)
    source = source_of(tmp_path, {"w": ("F32", array)})
    changes, target = changes_of(tmp_path, [{"add": {"parameters": "w", "number": 1}}]), tmp_path / "target"
    convert(build_request(source=str(source), target=str(target), layout="unified", changes=changes, verify="content"))
    assert directory_contents(target) == {"w": ("Float32", shape, plus(array, 1).tobytes())}


def test_a_comparison_adds_too(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"w": ("F32", values(3, (6,), "F32"))})
    changes = changes_of(tmp_path, [{"add": {"parameters": "w", "number": 1}}])
    target = tmp_path / "target"
    convert(build_request(source=str(source), target=str(target), layout="unified", changes=changes))
    assert compare_checkpoints(build_comparison(a=str(source), b=str(target), changes=changes)).same
    assert not compare_checkpoints(build_comparison(a=str(source), b=str(target))).same


def test_numbers_are_added_to_floats_only(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"w": ("I32", np.arange(6, dtype=np.int32))})
    changes = changes_of(tmp_path, [{"add": {"parameters": "w", "number": 1}}])
    request = build_request(source=str(source), target=str(tmp_path / "out"), layout="unified", changes=changes)
    with pytest.raises(PlanError) as error:
        make_plan(request)
    assert "'w' has dtype Int32: numbers can only be added to Float16, BFloat16, Float32, Float64" in str(error.value)


def test_scaled_values_are_not_added_to(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    weight = np.zeros((4, 4), np.uint8)
    scale = np.ones((1, 1), np.float32)
    write_safetensors(source / "model.safetensors", {"w": ("F8_E4M3", weight), "w_scale": ("F32", scale)})
    steps: list[dict[str, Any]] = [
        {"dequantize": {"parameters": "w", "scale": "w_scale"}},
        {"add": {"parameters": "w", "number": 1}},
    ]
    changes = changes_of(tmp_path, steps)
    request = build_request(source=str(source), target=str(tmp_path / "out"), layout="unified", changes=changes)
    with pytest.raises(PlanError) as error:
        make_plan(request)
    assert "the addition to 'w': 'w' has scaled values, to which no number can be added" in str(error.value)

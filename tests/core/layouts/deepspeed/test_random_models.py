"""Models of any shapes, partitioned anywhere, are read back to their values: what was written is what is found."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from tests.support.deepspeed_files import made, to_whole
from tests.support.zero_files import ZeroModel, ZeroTraining, expected, random_model, write_zero

SHAPES = st.lists(st.integers(1, 7), max_size=3).map(tuple)
GROUPS = st.lists(st.lists(SHAPES, min_size=1, max_size=5), min_size=1, max_size=3)
TRAININGS = st.builds(
    ZeroTraining,
    stage=st.sampled_from([1, 2, 3]),
    ranks=st.integers(1, 5),
    dtype=st.sampled_from(["BFloat16", "Float16", "Float32"]),
    alignment=st.sampled_from([1, 4, 8]),
    sub_group_size=st.integers(1, 60),
    is_elastic=st.booleans(),
    says_places=st.booleans(),
)


def model_of(groups: list[list[tuple[int, ...]]], seed: int, keys: list[str]) -> ZeroModel:
    names = [
        {f"g{number}.p{index}.weight": shape for index, shape in enumerate(group)}
        for number, group in enumerate(groups)
    ]
    model = random_model(seed, names, keys)
    first = next(iter(names[0]))
    random = np.random.default_rng(seed)
    return ZeroModel(
        model.groups,
        model.states,
        frozen={"frozen.weight": np.asarray(random.standard_normal((3, 5)), np.float32)},
        buffers={"seen": np.array(7, np.int64), "scales": np.arange(5, dtype=np.float32)},
        tied={"head.weight": first},
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(GROUPS, TRAININGS, st.integers(0, 1000), st.sampled_from([[], ["exp_avg"], ["exp_avg", "exp_avg_sq"]]))
def test_a_random_model_is_read_back(
    groups: list[list[tuple[int, ...]]], training: ZeroTraining, seed: int, keys: list[str]
) -> None:
    model = model_of(groups, seed, keys)
    with tempfile.TemporaryDirectory() as directory:
        write_zero(Path(directory) / "ck", model, training)
        convert(to_whole(f"{directory}/ck", f"{directory}/out"))
        assert made(Path(directory) / "out") == expected(model, training)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_an_optimizer_that_accumulates_in_float32_pads_masters(ranks: int, tmp_path: Path) -> None:
    model = model_of([[(5, 3), (4,)], [(7,)]], ranks, ["exp_avg", "exp_avg_sq"])
    training = ZeroTraining(stage=1, ranks=ranks, accumulates_float32=True)
    write_zero(tmp_path / "ck", model, training)
    convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(model, training)


@pytest.mark.parametrize("stage", [1, 3])
def test_parameters_without_elements(stage: int, tmp_path: Path) -> None:
    model = random_model(0, [{"a": (2, 3), "none": (0, 4), "b": (5,)}])
    training = ZeroTraining(stage=stage)
    write_zero(tmp_path / "ck", model, training)
    convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(model, training)


@pytest.mark.parametrize("key", ["exp_avg", "momentum_buffer"])
def test_optimizers_of_one_state(key: str, tmp_path: Path) -> None:
    model = random_model(0, [{"a": (2, 3), "b": (5,)}], [key])
    training = ZeroTraining()
    write_zero(tmp_path / "ck", model, training)
    convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(model, training)
    convert(to_whole(tmp_path / "ck", tmp_path / "weights", select="weights-only"))
    assert made(tmp_path / "weights").keys() == {"a", "b"}

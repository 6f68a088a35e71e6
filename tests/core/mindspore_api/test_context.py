from typing import Any

import numpy as np
import pytest

from reshard import mindspore


def test_settings_with_which_scripts_begin_are_accepted() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="Ascend", device_id=3, max_device_memory="30GB")
    assert [mindspore.get_context(key) for key in ("mode", "device_target", "max_device_memory")] == [
        0,
        "Ascend",
        "30GB",
    ]
    mindspore.context.set_context(mode=mindspore.context.PYNATIVE_MODE)
    assert mindspore.get_context("mode") == 1
    mindspore.set_device("CPU")
    assert (mindspore.get_context("device_target"), mindspore.get_context("device_id")) == ("CPU", 0)


def test_settings_of_parallel_training_are_accepted_and_forgotten() -> None:
    mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", strategy_ckpt_save_file="a.ckpt")
    assert mindspore.get_auto_parallel_context("parallel_mode") == "semi_auto_parallel"
    mindspore.reset_auto_parallel_context()
    assert mindspore.context.get_auto_parallel_context("parallel_mode") == "stand_alone"
    assert mindspore.get_auto_parallel_context("strategy_ckpt_save_file") == ""


def test_parallel_modes_are_mindspores() -> None:
    assert mindspore.ParallelMode.SEMI_AUTO_PARALLEL == "semi_auto_parallel"
    assert mindspore.ParallelMode.MODE_LIST == [
        "stand_alone",
        "data_parallel",
        "hybrid_parallel",
        "semi_auto_parallel",
        "auto_parallel",
    ]
    assert mindspore.context.ParallelMode is mindspore.ParallelMode


def test_a_seed_is_numpys() -> None:
    drawn = []
    for _ in range(2):
        mindspore.set_seed(1)
        drawn.append(np.random.rand())
    np.random.seed(1)
    assert drawn == [np.random.rand()] * 2
    assert mindspore.get_seed() == 1


@pytest.mark.parametrize(
    ("seed", "error"),
    [("1", TypeError), (None, TypeError), (True, TypeError), (1.0, TypeError), (-1, ValueError), (2**32, ValueError)],
)
def test_seeds_that_mindspore_refuses(seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="'seed' has to be"):
        mindspore.set_seed(seed)

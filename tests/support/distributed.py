"""A tensor to distribute over ranks, and its slices in files."""

from typing import Any

import numpy as np

from reshard import mindspore
from tests.support.strategy_writer import FileLayout

WHOLE = np.arange(48, dtype=np.float32).reshape(4, 12)


ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 12))


COLUMNS = FileLayout((2,), ((), (0,)), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 12))


BLOCKS = FileLayout((2, 2), ((1,), (0,)), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 12))


def ranks(layout_name: str, *slices: np.ndarray, **more: Any) -> list[str]:
    paths = [f"{layout_name}_{rank}.ckpt" for rank in range(len(slices))]
    for path, array in zip(paths, slices, strict=True):
        mindspore.save_checkpoint({"w": array, "step": np.array(7)}, path, **more)
    return paths

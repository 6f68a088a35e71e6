"""Checkpoints that several modules' tests read."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reshard import mindspore
from reshard.core.files.numpy_values import INT4


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A file with a parameter of every kind."""
    path = tmp_path / "kinds.ckpt"
    values: dict[str, Any] = {
        "half": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
        "scalar": np.array(3, np.int64),
        "truth": np.array([True, False]),
        "packed": np.arange(4, dtype=np.int8).view(INT4),
        "empty": np.zeros((0, 3), np.float32),
        "table": [np.arange(3, dtype=np.int32), np.ones((3, 2), np.float32), np.zeros(3, np.int32)],
    }
    mindspore.save_checkpoint(values, str(path), append_dict={"version": "a text"})
    return path

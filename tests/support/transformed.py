"""Small checkpoints to transform by MindSpore's functions."""

from pathlib import Path

import numpy as np

from reshard import mindspore
from tests.support.checkpoints import Case, Contents
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.strategy_writer import FileLayout

ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))


COLUMNS = FileLayout((2,), ((), (0,)), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))


REPEATED_ROWS = FileLayout((2, 2), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))


VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)


def tensor(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return "Float32", values.shape, values.tobytes()


def write_rank(directory: Path, rank: int, contents: Contents, name: str = "net") -> str:
    path = directory / f"rank_{rank}" / f"{name}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(checkpoint_bytes(*((name, *entry) for name, entry in contents.items())))
    return str(path)


def transform(directory: Path, target: str = "out", **options: object) -> None:
    arguments: dict = {
        "src_strategy_file": str(directory / "rows.ckpt"),
        "dst_strategy_file": str(directory / "columns.ckpt"),
        "src_checkpoints_dir": str(directory / "src"),
        "dst_checkpoints_dir": str(directory / target),
        "ckpt_prefix": "net_",
    }
    mindspore.transform_checkpoints(**arguments | options)


def strategies(case: Case) -> tuple[str | None, str | None]:
    paths = (case.directory / "src_strategy.ckpt", case.directory / "dst_strategy.ckpt")
    source, target = (str(path) if path.exists() else None for path in paths)
    return source, target

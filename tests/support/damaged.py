"""Checkpoints of data-parallel ranks, some of which lack entries."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.plans import make_strategy

DATA_PARALLEL = ParameterLayout((3, 2), ((0,),))
"""Two slices, each on three ranks."""

NAMES = ("a", "b", "c")


def whole_shards(directory: Path, drop: Mapping[int, set[str]] | None = None) -> Path:
    """A checkpoint of six ranks of DATA_PARALLEL, of which some lack entries."""
    for rank in range(6):
        entries = [
            (name, "Int32", (2,), np.array([10 * n + rank % 2, 10 * n + 5], np.int32).tobytes())
            for n, name in enumerate(NAMES)
            if name not in (drop or {}).get(rank, set())
        ]
        path = directory / "src" / f"rank_{rank}" / "net-1_1.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(checkpoint_bytes(*entries))
    write_strategy(make_strategy(dict.fromkeys(NAMES, DATA_PARALLEL)), str(directory / "strategy.ckpt"))
    return directory


def file_of(directory: Path, rank: int, step: str = "1_1") -> Path:
    return directory / f"src/rank_{rank}/net-{step}.ckpt"

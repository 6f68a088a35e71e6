"""A small network of two stages: its strategy, and checkpoints that its jobs save."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.ckpt_writer import checkpoint_bytes

ROWS = ParameterLayout((2, 2), ((0,), ()))

COLUMNS = ParameterLayout((2, 2), ((), (0,)))

NORM = ParameterLayout((2, 2), ((),))

STAGES = (
    {"net.embed.w": ROWS, "net.l.0.wq": ROWS, "net.l.0.wo": COLUMNS, "net.l.0.norm": NORM},
    {"net.l.1.wq": ROWS, "net.l.1.wo": COLUMNS, "net.l.1.norm": NORM, "net.head.w": ROWS},
)

Layouts = Sequence[Mapping[str, ParameterLayout]]


def whole(name: str) -> np.ndarray:
    shape = (8,) if name.endswith("norm") else (8, 8)
    return np.random.default_rng(zlib.crc32(name.encode())).random(shape, np.float32)


def strategy(stages: Layouts = STAGES) -> Strategy:
    cut = (OperatorStrategy("op", 0, ((1, 1),)),)
    return Strategy(
        tuple(
            StageStrategy(number, layouts, tuple(replace(each, stage=number) for each in cut))
            for number, layouts in enumerate(stages)
        ),
        "test",
    )


def write(directory: Path, stages: Layouts = STAGES, seeds: Mapping[int, float] | None = None) -> Path:
    """A checkpoint that a job of these layouts saves; `seeds` are added to what ranks hold."""
    written = strategy(stages)
    for rank in written.ranks:
        stage = written.stage_of(rank)
        entries = [("global_step", "Int32", (1,), np.int32(7).tobytes())]
        for name, layout in stage.layouts.items():
            tensor = whole(name)
            box = layout.shard_grid(tensor.ndim).box_of(rank % written.devices_per_stage, tensor.shape)
            shard = tensor[box.as_index()] + np.float32((seeds or {}).get(rank, 0))
            entries.append((name, "Float32", shard.shape, shard.tobytes()))
        put(directory, rank, *entries)
    return directory


def put(directory: Path, rank: int, *entries: tuple[str, str, tuple[int, ...], bytes]) -> None:
    (directory / f"rank_{rank}").mkdir(parents=True, exist_ok=True)
    (directory / f"rank_{rank}/net.ckpt").write_bytes(checkpoint_bytes(*entries))

"""Checkpoints of data-parallel ranks, some of which lack entries."""

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import Contents, read_ckpt
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


def request_of(directory: Path, **options: object) -> ConversionRequest:
    defaults = {
        "source": str(directory / "src"),
        "source_strategy": str(directory / "strategy.ckpt"),
        "target": str(directory / "out"),
    }
    return build_request(**(defaults | options))


def entries_of(path: Path) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(name, *value) for name, value in read_ckpt(path).items()]


def whole_model() -> Contents:
    return {
        name: ("Int32", (4,), np.array([10 * n, 10 * n + 5, 10 * n + 1, 10 * n + 5], np.int32).tobytes())
        for n, name in enumerate(NAMES)
    }


def with_crc(data: bytes) -> bytes:
    return data + b"crc_num" + zlib.crc32(data).to_bytes(10, "big")

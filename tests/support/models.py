"""Models written as checkpoints: any values, cut by random layouts, in either format, changed where a test wants it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from reshard.core.files import ckpt_writing
from reshard.core.files.any_format import plan_file
from reshard.core.files.model import CheckpointFormat, OutputEntry
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.dtypes import dtype_from_name
from tests.support.ckpt_writer import filled
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout, shard_of

UNSIGNED = {
    **dict.fromkeys(["Int8", "UInt8", "Bool", "Int4"], np.uint8),
    **dict.fromkeys(["Int16", "UInt16", "Float16", "BFloat16"], np.uint16),
    **dict.fromkeys(["Int32", "UInt32", "Float32"], np.uint32),
    **dict.fromkeys(["Int64", "UInt64", "Float64"], np.uint64),
}
"""Dtype -> numpy's unsigned integers of its size."""


def random_bits(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Elements of any bits, as unsigned integers; of a Bool 0 and 1."""
    kind = np.dtype(UNSIGNED[dtype])
    stop = 2 if dtype == "Bool" else 2 ** (8 * kind.itemsize)
    return np.random.default_rng(seed).integers(0, stop, shape, kind)


@dataclass
class Model:
    """A checkpoint to be written.

    Attributes:
        values: parameter -> its dtype, and its elements as unsigned integers.
        layouts: parameter -> its layout; of those that no strategy knows none.
        devices: how many ranks there are.
        shards: rank -> parameter -> what the rank's file holds; may be changed before it is written.
    """

    values: Mapping[str, tuple[str, np.ndarray]]
    layouts: Mapping[str, RandomLayout]
    devices: int
    shards: dict[int, dict[str, np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        self.shards = {
            rank: {
                name: (shard_of(whole, self.layouts[name], rank) if name in self.layouts else whole).copy()
                for name, (_, whole) in self.values.items()
            }
            for rank in range(self.devices)
        }

    def places(self, name: str, rank: int) -> np.ndarray:
        """Of each element of a rank's shard its place in the whole tensor, in C order."""
        whole = self.values[name][1]
        places = np.arange(whole.size).reshape(whole.shape)
        return shard_of(places, self.layouts[name], rank) if name in self.layouts else places

    def sharing(self, name: str, rank: int) -> list[int]:
        """The ranks that hold the same slice, itself included."""
        own = self.places(name, rank)
        return [other for other in range(self.devices) if np.array_equal(self.places(name, other), own)]

    def write(self, directory: Path, format: CheckpointFormat, piece_bytes: int = 2**29) -> tuple[str, str]:
        """Writes it; returns the directory of the ranks, and the strategy if it has any layouts."""
        for rank, shards in self.shards.items():
            entries = [OutputEntry(n, dtype_from_name(self.values[n][0]), s.shape) for n, s in shards.items()]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ckpt_writing, "MAX_PIECE_BYTES", piece_bytes)
                file_plan = plan_file(format, entries)
            path = directory / "ckpt" / f"rank_{rank}" / f"m.{format}"
            path.parent.mkdir(parents=True)
            path.write_bytes(filled(file_plan, lambda name, held=shards: held[name].tobytes()))  # type: ignore[misc]
        strategy = directory / "strategy.ckpt"
        if self.layouts:
            layouts = {name: as_layout(layout) for name, layout in self.layouts.items()}
            write_strategy(make_strategy(layouts), str(strategy))
        return str(directory / "ckpt"), str(strategy) if self.layouts else ""

"""A checkpoint of one rank, to be cut by columns: every target rank needs a part of every row."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import Contents
from tests.support.ckpt_writer import checkpoint_bytes

COLUMN_RANKS = 8
_SHAPE = (512, 1024)
_NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class ColumnCase:
    """A conversion from one rank to 8, by columns, and its right result."""

    directory: Path
    want: dict[int, Contents]
    source_bytes: int

    @property
    def target(self) -> Path:
        """Where the result is to be."""
        return self.directory / "out"

    def request(self, **options: object) -> ConversionRequest:
        """The request for it."""
        defaults: dict[str, object] = {
            "source": str(self.directory / "whole.ckpt"),
            "target": str(self.target),
            "target_strategy": str(self.directory / "columns.ckpt"),
        }
        return build_request(**(defaults | options))


def column_case(directory: Path) -> ColumnCase:
    """Writes the source and the strategy below `directory`."""
    generator = np.random.default_rng(7)
    tensors = {name: generator.integers(0, 2**31, _SHAPE, dtype=np.int32) for name in _NAMES}
    (directory / "whole.ckpt").write_bytes(
        checkpoint_bytes(*((name, "Int32", _SHAPE, tensor.tobytes()) for name, tensor in tensors.items()))
    )
    layout = ParameterLayout((COLUMN_RANKS,), ((), (0,)), nested=True)
    strategy = Strategy((StageStrategy(0, dict.fromkeys(_NAMES, layout)),), "test")
    write_strategy(strategy, str(directory / "columns.ckpt"))
    want: dict[int, Contents] = {rank: {} for rank in range(COLUMN_RANKS)}
    for name, tensor in tensors.items():
        for rank, columns in enumerate(np.split(tensor, COLUMN_RANKS, axis=1)):
            want[rank][name] = ("Int32", columns.shape, columns.tobytes())
    return ColumnCase(directory, want, sum(tensor.nbytes for tensor in tensors.values()))

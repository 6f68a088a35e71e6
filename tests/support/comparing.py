"""Comparisons of two checkpoints, and small files to compare."""

from pathlib import Path

import numpy as np

from reshard.core.request.comparison import build_comparison
from reshard.core.verification.compare import compare_checkpoints
from reshard.core.verification.comparison_report import ComparisonReport
from tests.support.ckpt_writer import checkpoint_bytes


def compared(a: str | Path, b: str | Path, **options: object) -> ComparisonReport:
    return compare_checkpoints(build_comparison(a=str(a), b=str(b), **options))


def file_of(path: Path, *entries: tuple[str, str, np.ndarray]) -> Path:
    """A checkpoint that is one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(checkpoint_bytes(*((name, dtype, array.shape, array.tobytes()) for name, dtype, array in entries)))
    return path

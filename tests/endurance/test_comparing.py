"""Two checkpoints of 512 MiB are compared, and the element that differs is found, in the memory of a few blocks."""

import subprocess
import sys
from pathlib import Path

import pytest

from reshard.core.files.any_format import plan_file
from reshard.core.files.model import CheckpointFormat, Content, OutputEntry
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from tests.support.places import PROJECT
from tests.support.runs import RESHARD

pytestmark = pytest.mark.slow

ROWS, COLUMNS = 2 * 5791, 11_585
MOST_BYTES = 160 << 20
"""Half of it is the program itself."""


def sparse(path: Path, rows: int) -> int:
    """A file of one parameter of zeros that takes no room; returns where they begin."""
    path.parent.mkdir(parents=True)
    begin = 0
    with open(path, "wb") as file:
        plan = plan_file(CheckpointFormat.SAFETENSORS, [OutputEntry("w", dtype_from_name("Float32"), (rows, COLUMNS))])
        for segment in plan.segments:
            if isinstance(segment, Content):
                begin = file.tell()
                file.seek(begin + segment.stop - segment.start)
            else:
                file.write(segment)
        file.truncate(plan.size_bytes)
    return begin


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    sparse(tmp_path / "a" / "rank_0" / "m.safetensors", ROWS)
    begins = [sparse(tmp_path / "b" / f"rank_{rank}" / "m.safetensors", ROWS // 2) for rank in range(2)]
    with open(tmp_path / "b" / "rank_1" / "m.safetensors", "r+b") as file:
        file.seek(begins[1] + 4 * (3 * COLUMNS + 5) + 3)
        file.write(b"\x40")  # 2.0
    layouts = {"w": ParameterLayout((2,), ((0,), ()))}
    write_strategy(Strategy((StageStrategy(0, layouts),), origin="test"), str(tmp_path / "strategy.ckpt"))
    sides = [str(tmp_path / "a"), str(tmp_path / "b"), "--strategy-b", str(tmp_path / "strategy.ckpt")]
    limited = [sys.executable, "-S", str(PROJECT / "tests/endurance/limited.py"), "0"]
    done = subprocess.run([*limited, *RESHARD, "diff", *sides, "--workers", "2"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert f"1 of {ROWS * COLUMNS} elements; by 2 at most, at [{ROWS // 2 + 3}, 5]: 0.0 and 2.0" in done.stdout
    peak_bytes = int(done.stderr.splitlines()[-1].removeprefix("peak "))
    assert peak_bytes < MOST_BYTES, f"{peak_bytes / 2**20:.0f} MiB"

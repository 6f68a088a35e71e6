"""A training job's output: steps of a small checkpoint, in rank folders, and a process that saves one slowly.

`python -m tests.support.training SOURCE DIRECTORY STEP SECONDS`: that process.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reshard.core.options.validation import build_options
from reshard.core.request.latest import LatestConversionRequest
from tests.support.checkpoints import case
from tests.support.places import PROJECT

CASE = case(7009)
"""4 ranks to 3."""
RANKS = range(4)
LONG_AGO_SECONDS = 100_000.0
PREFIX = "CKP"


def file_of(directory: Path, step: str, rank: int, prefix: str = PREFIX) -> Path:
    """Where a rank's file of a step is."""
    return directory / f"rank_{rank}" / f"{prefix}-{step}.ckpt"


def save_step(
    directory: Path,
    step: str,
    *,
    ranks: Collection[int] = RANKS,
    age_seconds: float = LONG_AGO_SECONDS,
    prefix: str = PREFIX,
) -> None:
    """Saves a step, or some ranks of it, as if it had been so long ago."""
    for rank in ranks:
        [saved] = (CASE.directory / "src" / f"rank_{rank}").iterdir()
        path = file_of(directory, step, rank, prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(saved, path)
        set_age(path, age_seconds)


def set_age(path: Path, seconds: float) -> None:
    """Makes a file look as if it was changed so long ago; less than nothing is in the future."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def truncate(path: Path, age_seconds: float = LONG_AGO_SECONDS) -> None:
    """Cuts a file in half."""
    os.truncate(path, path.stat().st_size // 2)
    set_age(path, age_seconds)


def latest_request(source: Path | str, target: Path | str, **options: object) -> LatestConversionRequest:
    """A request for the newest step of that job."""
    strategies = {
        "source_strategy": str(CASE.directory / "src_strategy.ckpt"),
        "target_strategy": str(CASE.directory / "dst_strategy.ckpt"),
    }
    return build_options(
        LatestConversionRequest, **({"source": str(source), "target": str(target)} | strategies | options)
    )


@contextmanager
def saving_slowly(directory: Path, step: str, seconds: float) -> Iterator[Callable[[], None]]:
    """A process that writes a step's files one after another, each in small pieces.

    It has begun with the first file; the function that the block gets lets it do the rest, in so many seconds. The
    block's end waits for it.
    """
    command = [sys.executable, "-m", "tests.support.training", str(CASE.directory / "src"), str(directory), step]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, str(seconds)], cwd=PROJECT, **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        yield process.stdin.close


def _save_slowly(source: Path, directory: Path, step: str, seconds: float) -> None:
    pieces = 8
    for rank in RANKS:
        [saved] = (source / f"rank_{rank}").iterdir()
        content = saved.read_bytes()
        path = file_of(directory, step, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        size = -(-len(content) // pieces)
        with path.open("wb", buffering=0) as file:
            for piece in range(pieces):
                file.write(content[piece * size : (piece + 1) * size])
                if (rank, piece) == (0, 0):
                    os.write(1, b"begun\n")
                    sys.stdin.read()
                time.sleep(seconds / pieces / len(RANKS))


if __name__ == "__main__":
    _save_slowly(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))

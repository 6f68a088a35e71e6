"""A checkpoint of 3 GiB is converted by a process with 256 MiB of memory in all.

The limit is the kernel's: RLIMIT_AS bounds the whole address space, set before the program is loaded, and cannot be
raised again. All counts that the process could use, touched or not: Python and numpy, the stacks of threads, buffers,
mapped files. So neither mapping the source nor reserving memory and filling it later gets round it: beyond the limit
every allocation fails. A child process would have a limit of its own; the peak of memory in use, which the kernel
reports at the end and which files in mapped memory are part of, would be the largest of all processes'.
"""

import hashlib
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.ckpt_writer import blob, number, varint
from tests.support.places import PROJECT
from tests.support.runs import RESHARD, Conversion

pytestmark = pytest.mark.slow

LIMIT_BYTES = 256 << 20
PIECE_BYTES = 512 << 20
"""What MindSpore puts into one entry of a file: larger parameters come in several."""

ROWS, COLUMNS = 12_672, 32_256
"""1.52 GiB of float32, which 2 and 3 devices can share by rows and by columns; a row is no divisor of a piece."""

ShardGrid = tuple[tuple[int, ...], ...]
"""The device axes that each axis of a parameter is cut by; there is one device axis, 0."""

BY_ROWS: ShardGrid = ((0,), ())
BY_COLUMNS: ShardGrid = ((), (0,))
SOURCE_RANKS, TARGET_RANKS = 2, 3
SOURCE_CUTS = {"embedding": BY_COLUMNS, "moment": BY_COLUMNS}
TARGET_CUTS = {"embedding": BY_ROWS, "moment": BY_COLUMNS}
ROWS_AT_ONCE = 256

NEEDED_BYTES = 2 * len(SOURCE_CUTS) * ROWS * COLUMNS * 4 + (1 << 30)


@dataclass(frozen=True)
class Box:
    """Rows and columns of a parameter."""

    name: str
    first_row: int
    last_row: int
    first_column: int
    last_column: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.last_row - self.first_row, self.last_column - self.first_column

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * 4

    def stretches(self) -> Iterator[memoryview]:
        """The contents, some rows at a time: the values follow from the parameter's name and the place in it."""
        salt = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "little")
        columns = np.arange(self.first_column, self.last_column, dtype=np.uint32) * np.uint32(2_654_435_761)
        for row in range(self.first_row, self.last_row, ROWS_AT_ONCE):
            rows = np.arange(row, min(row + ROWS_AT_ONCE, self.last_row), dtype=np.uint32)
            rows = rows * np.uint32(40_503) + np.uint32(salt)
            yield (rows[:, None] ^ columns).data.cast("B")


def box_of(name: str, cut: ShardGrid, rank: int, ranks: int) -> Box:
    if cut == BY_ROWS:
        return Box(name, rank * ROWS // ranks, (rank + 1) * ROWS // ranks, 0, COLUMNS)
    return Box(name, 0, ROWS, rank * COLUMNS // ranks, (rank + 1) * COLUMNS // ranks)


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversion]:
    directory = tmp_path_factory.mktemp("three_gib")
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 2**30:.1f} GiB in {directory}, {free / 2**30:.1f} are free")
    try:
        for rank in range(SOURCE_RANKS):
            write_rank(directory / "source" / f"rank_{rank}" / "big.ckpt", rank)
        for name, cuts, ranks in (("from", SOURCE_CUTS, SOURCE_RANKS), ("to", TARGET_CUTS, TARGET_RANKS)):
            layouts = {parameter: ParameterLayout((ranks,), cut) for parameter, cut in cuts.items()}
            write_strategy(Strategy((StageStrategy(0, layouts),), origin="test"), str(directory / f"{name}.ckpt"))
        yield Conversion(directory / "source", directory / "from.ckpt", directory / "to.ckpt")
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out"
    shutil.rmtree(tmp_path)


def write_rank(path: Path, rank: int) -> None:
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.writelines(file_parts(SOURCE_CUTS, rank, SOURCE_RANKS))


def check_rank(path: Path, rank: int) -> None:
    """Compares a converted file with what it is to be, part by part."""
    with open(path, "rb", buffering=0) as file:
        for part in file_parts(TARGET_CUTS, rank, TARGET_RANKS):
            offset = file.tell()
            found, wanted = np.frombuffer(file.read(len(part)), np.uint8), np.frombuffer(part, np.uint8)
            assert np.array_equal(found, wanted), f"{path}: differs between {offset} and {file.tell()}"
        assert not file.read(1), f"{path}: there is more in it"


def file_parts(cuts: dict[str, ShardGrid], rank: int, ranks: int) -> Iterator[bytes | memoryview]:
    """A rank's file as MindSpore would write it: the heads of its entries, and their contents by stretches."""
    for name, cut in cuts.items():
        box = box_of(name, cut, rank, ranks)
        offset = 0
        for stretch in box.stretches():
            while stretch:
                in_piece = offset % PIECE_BYTES
                if not in_piece:
                    yield head_of(box, min(PIECE_BYTES, box.size_bytes - offset))
                part, stretch = stretch[: PIECE_BYTES - in_piece], stretch[PIECE_BYTES - in_piece :]
                yield part
                offset += len(part)


def head_of(box: Box, content_bytes: int) -> bytes:
    """The bytes before the contents of an entry."""

    def opened(field: int, inside: bytes) -> bytes:
        return varint(field * 8 + 2) + varint(len(inside) + content_bytes) + inside

    dims = b"".join(number(1, length) for length in box.shape)
    return opened(1, blob(1, box.name.encode()) + opened(2, dims + blob(2, b"Float32") + opened(3, b"")))


def run_limited(limit_bytes: int, command: list[str]) -> int:
    """Runs a command to its good end; returns its peak of memory in use."""
    # both reserve memory for each processor there is, used or not; it would count
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    launcher = [sys.executable, "-S", str(Path(__file__).with_name("limited.py")), str(limit_bytes)]
    done = subprocess.run([*launcher, *command], cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    word, peak_bytes = done.stderr.splitlines()[-1].split()
    assert word == "peak"
    return int(peak_bytes)


@pytest.mark.parametrize("memory", [("--memory-limit", "128MiB"), ()], ids=["128MiB", "the default"])
def test_three_gib_in_a_process_of_256_mib(conversion: Conversion, target: Path, memory: tuple[str, ...]) -> None:
    command = [*RESHARD, *conversion.arguments(target, "--engine", "direct", "--workers", "2", *memory)]
    peak_bytes = run_limited(LIMIT_BYTES, command)
    assert peak_bytes < LIMIT_BYTES
    for rank in range(TARGET_RANKS):
        check_rank(target / f"rank_{rank}" / f"checkpoint_{rank}.ckpt", rank)


def test_the_limit_is_one(tmp_path: Path) -> None:
    """Reserving memory without using it fails, and so does mapping a file; the peak is the process's own."""
    sparse = tmp_path / "sparse"
    with open(sparse, "wb") as file:
        file.truncate(LIMIT_BYTES)
    for attempt in (f"mmap.mmap(-1, {LIMIT_BYTES})", f"mmap.mmap(open({str(sparse)!r}, 'r+b').fileno(), 0)"):
        with pytest.raises(AssertionError, match="OSError|MemoryError"):
            run_limited(LIMIT_BYTES, [sys.executable, "-c", f"import mmap; {attempt}"])
    used = 100 << 20
    assert used < run_limited(LIMIT_BYTES, [sys.executable, "-c", f"b'x' * {used}"]) < 2 * used
    assert run_limited(LIMIT_BYTES, [sys.executable, "-c", ""]) < 32 << 20

"""Several runs into one target at once, begun at random moments: it ends whole, and who cannot work says so."""

import random
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.runs import (
    RESHARD,
    Conversion,
    Files,
    check_finished,
    clear,
    files_of,
    kill,
    many_ranks,
    rerun,
    start,
)

pytestmark = pytest.mark.slow

DONE, WRONG_INPUT = 0, 2
LATEST_START_SECONDS = 0.5
"""About as long as a run works, after Python's imports: some begin together, some when others have ended."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    process: int
    code: int
    context: str


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    options = ("--engine", "direct", "--workers", "1", "--memory-limit", "16MiB")
    return many_ranks(tmp_path_factory.mktemp("many_ranks"), *options)


@pytest.fixture(scope="module")
def wanted(conversion: Conversion, tmp_path_factory: pytest.TempPathFactory) -> Files:
    target = tmp_path_factory.mktemp("undisturbed") / "out"
    rerun(conversion.arguments(target))
    return files_of(target)


def run_together(command_lines: Sequence[list[str]], generator: random.Random) -> list[Ended]:
    """Starts all of them, each a random moment after the first, and waits for their ends."""
    offsets = sorted(generator.uniform(0, LATEST_START_SECONDS) for _ in command_lines)
    processes: list[subprocess.Popen[str]] = []
    began = time.monotonic()
    for offset, arguments in zip(offsets, command_lines, strict=True):
        time.sleep(max(0.0, began + offset - time.monotonic()))
        processes.append(start([*RESHARD, *arguments]))
    context = [process.communicate(timeout=120)[1] for process in processes]
    return [
        Ended(process.pid, process.returncode, text.strip()) for process, text in zip(processes, context, strict=True)
    ]


def test_the_same_conversion_many_times(conversion: Conversion, wanted: Files, tmp_path: Path) -> None:
    target = tmp_path / "out"
    refused = 0
    for seed in range(6):
        ended = run_together([conversion.arguments(target)] * 3, random.Random(seed))
        context = f"seed {seed}: {ended}"
        assert {run.code for run in ended} <= {DONE, WRONG_INPUT}, context
        assert DONE in {run.code for run in ended}, context
        for run in ended:
            if run.code == WRONG_INPUT:
                refused += 1
                named = re.search(
                    r"another run is already converting into this target: .*\(process (\d+),", run.context
                )
                assert named, context
                assert int(named[1]) in {other.process for other in ended} - {run.process}, context
        check_finished(target, wanted, context)
        clear(target)
    assert refused >= 3, "the runs did not meet"


def test_shares_of_one_conversion(conversion: Conversion, wanted: Files, tmp_path: Path) -> None:
    """`--ranks`: all succeed, the last one to finish commits. Ranks 8 to 31 have the contents of 0 to 7."""
    target = tmp_path / "out"
    for seed in range(4):
        generator = random.Random(seed)
        ranks = list(range(32))
        generator.shuffle(ranks)
        shares = [",".join(map(str, ranks[number::3])) for number in range(3)]
        ended = run_together([conversion.arguments(target, "--ranks", share) for share in shares], generator)
        context = f"seed {seed}: {ended}"
        assert {run.code for run in ended} == {DONE}, context
        check_finished(target, wanted, context)
        clear(target)


def test_a_share_that_is_killed(conversion: Conversion, wanted: Files, tmp_path: Path) -> None:
    """The others finish theirs, and its own rerun commits."""
    target = tmp_path / "out"
    for seed in range(4):
        generator = random.Random(seed)
        first, second = (conversion.arguments(target, "--ranks", share) for share in ("0-15", "16-31"))
        processes = [start([*RESHARD, *first]), start([*RESHARD, *second])]
        time.sleep(0.35 + generator.uniform(0, LATEST_START_SECONDS))
        kill(processes[0])
        _, context = processes[1].communicate(timeout=120)
        assert processes[1].returncode == DONE, f"seed {seed}: {context}"
        rerun(first)
        check_finished(target, wanted, f"seed {seed}")
        clear(target)


@pytest.mark.parametrize("former", [False, True])
def test_different_conversions(conversion: Conversion, wanted: Files, tmp_path: Path, former: bool) -> None:
    """The target is at the end that of one of them that said it succeeded, and whole."""
    target = tmp_path / "out"
    rerun(conversion.arguments(tmp_path / "other", "--prefix", "other_"))
    acceptable = [wanted, files_of(tmp_path / "other")]
    command_lines = [conversion.arguments(target, "--overwrite", *options) for options in ([], ["--prefix", "other_"])]
    for seed in range(4):
        if former:
            rerun(conversion.arguments(target, "--format", "safetensors"))
        generator = random.Random(seed)
        generator.shuffle(command_lines)
        ended = run_together(command_lines * 2, generator)
        context = f"seed {seed}: {ended}"
        assert {run.code for run in ended} <= {DONE, WRONG_INPUT}, context
        for run in ended:
            refusal = (
                r"another run is already converting|is converting something else into it|was just replaced by another"
            )
            assert run.code == DONE or re.search(refusal, run.context), context
        assert DONE in {run.code for run in ended}, context
        there = files_of(target)
        assert there in acceptable, context
        check_finished(target, there, context)
        clear(target)

"""`kill -9` at any moment: nothing half-written looks whole, and the same command goes on to the same bytes."""

import dataclasses
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reshard import clean
from reshard.core.errors import InputError
from tests.support.checkpoints import case
from tests.support.places import PROJECT
from tests.support.runs import (
    RESHARD,
    Conversion,
    Files,
    check_finished,
    check_nothing_looks_whole_that_is_not,
    clear,
    files_of,
    kill,
    many_ranks,
    of_case,
    partial,
    recorded_ranks,
    replaced,
    rerun,
    start,
)

pytestmark = pytest.mark.slow

POLL_SECONDS = 0.002
RANKS = 32
MANIFEST = ".reshard/manifest.json"
OVERWRITE: dict[bool, tuple[str, ...]] = {False: (), True: ("--overwrite",)}


@dataclass(frozen=True)
class Moment:
    """A moment of a run, by how far it has come: how fast it gets there depends on what else the machine does.

    Attributes:
        ranks: so many are done; None in its imports, before the work begins.
        delay_seconds: so long after that.
    """

    ranks: int | None
    delay_seconds: float

    def await_in(self, process: subprocess.Popen[str], target: Path) -> None:
        """Waits for it, at most until the process ends."""
        while self.ranks is not None and not done(target, self.ranks) and process.poll() is None:
            time.sleep(POLL_SECONDS)
        time.sleep(self.delay_seconds)


@dataclass(frozen=True)
class Undisturbed:
    """A conversion, what it makes of nothing, and how long its imports and each of its ranks take."""

    conversion: Conversion
    wanted: Files
    imports_seconds: float
    rank_seconds: float

    def moments(self, count: int, seed: int) -> Iterator[Moment]:
        """So many moments of a run, at random but for the first, which is before the work begins."""
        generator = random.Random(seed)
        yield Moment(None, 0.2 * self.imports_seconds)
        for number in range(count - 1):
            ranks = (number + generator.random()) * (RANKS + 1) / (count - 1)
            yield Moment(int(ranks), self.delay_seconds(generator))

    def delay_seconds(self, generator: random.Random) -> float:
        """A random part of what a rank takes."""
        return generator.random() * self.rank_seconds

    def kill_at(self, moment: Moment, target: Path, *options: str) -> bool:
        """Starts it and kills it at a moment; False if it had ended before."""
        process = start([*RESHARD, *self.conversion.arguments(target, *options)])
        moment.await_in(process, target)
        return kill(process)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    directory = tmp_path_factory.mktemp("many_ranks")
    conversion = many_ranks(directory, "--engine", "direct", "--workers", "1", "--memory-limit", "16MiB")
    target = directory / "out"
    imports_seconds, work_seconds = zip(*(run_seconds(conversion, target) for _ in range(2)), strict=True)
    wanted = files_of(target)
    assert len(wanted) == RANKS
    return Undisturbed(conversion, wanted, min(imports_seconds), min(work_seconds) / RANKS)


def run_seconds(conversion: Conversion, target: Path) -> tuple[float, float]:
    """Converts anew; how long it takes until it begins to write, and from there."""
    clear(target)
    started = time.monotonic()
    process = start([*RESHARD, *conversion.arguments(target)])
    Moment(0, 0).await_in(process, target)
    begun = time.monotonic()
    _, context = process.communicate()
    assert process.returncode == 0, context
    return begun - started, time.monotonic() - begun


def done(target: Path, ranks: int) -> bool:
    """Whether a run has come so far; with no ranks, whether it writes."""
    return partial(target).exists() and len(recorded_ranks(target)) >= ranks


def phase(target: Path, wanted: Files) -> str:
    """How far a killed run came."""
    if target.exists() and files_of(target) == wanted:
        return "published"
    if not partial(target).exists():
        return "before the work"
    ranks = len(recorded_ranks(target))
    return "converting" if 0 < ranks < RANKS else "all ranks written" if ranks else "no rank done"


@pytest.mark.parametrize(("seed", "overwrite"), [(1, False), (2, True)])
def test_killed_at_random_moments(undisturbed: Undisturbed, tmp_path: Path, seed: int, overwrite: bool) -> None:
    conversion, wanted = undisturbed.conversion, undisturbed.wanted
    source, target = files_of(conversion.source), tmp_path / "out"
    former_target, options = tmp_path / "former", OVERWRITE[overwrite]
    if overwrite:
        rerun(conversion.arguments(former_target, "--format", "safetensors"))
    former = files_of(former_target)
    phases: Counter[str] = Counter()
    for moment in undisturbed.moments(12, seed):
        context = f"seed {seed}, killed at {moment}"
        if overwrite:
            shutil.copytree(former_target, target)
        killed = undisturbed.kill_at(moment, target, *options)
        phases[phase(target, wanted) if killed else "ended"] += 1
        check_nothing_looks_whole_that_is_not(target, wanted, former, context)
        rerun(conversion.arguments(target, *options))
        check_finished(target, wanted, context)
        clear(target)
    assert files_of(conversion.source) == source
    context = f"seed {seed}: the kills are not spread over the run: {dict(phases)}"
    assert phases["before the work"] + phases["no rank done"] >= 1, context
    assert phases["converting"] >= 3, context
    assert phases["ended"] <= 4, context


def test_killed_and_cleaned_up(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Whatever a killed run left is removed, or refused because it holds a complete checkpoint."""
    conversion, target = undisturbed.conversion, tmp_path / "out"
    cleaned = 0
    for moment in undisturbed.moments(6, seed=7):
        undisturbed.kill_at(moment, target)
        if not (target.exists() or partial(target).exists()):  # killed before it had made anything
            with pytest.raises(InputError, match="does not exist"):
                clean(target, remove=True)
            continue
        whole = files_of(partial(target)) == undisturbed.wanted and (partial(target) / MANIFEST).exists()
        if whole:
            with pytest.raises(InputError, match="holds a complete conversion"):
                clean(target, remove=True)
            rerun(conversion.arguments(target))
        finished = files_of(target)
        cleaned += clean(target, remove=True).removed
        assert sorted(path.name for path in tmp_path.iterdir()) == (["out"] if finished else [])
        assert files_of(target) == finished
        clear(target)
    assert cleaned >= 3


@pytest.mark.parametrize(("seed", "overwrite"), [(3, False), (4, True)])
def test_killed_again_and_again_until_it_is_done(
    undisturbed: Undisturbed, tmp_path: Path, seed: int, overwrite: bool
) -> None:
    """A rank that is done stays done: were it not so, this would not end."""
    conversion, wanted = undisturbed.conversion, undisturbed.wanted
    target, options = tmp_path / "out", OVERWRITE[overwrite]
    if overwrite:
        rerun(conversion.arguments(target, "--format", "safetensors"))
    former = files_of(target)
    generator = random.Random(seed)
    kills = 0
    recorded: set[str] = set()
    while True:
        further = generator.randint(0, RANKS // 4)
        moment = Moment(len(recorded) + further, undisturbed.delay_seconds(generator))
        if not undisturbed.kill_at(moment, target, *options):
            break
        kills += 1
        context = f"seed {seed}, kill {kills}"
        check_nothing_looks_whole_that_is_not(target, wanted, former, context)
        if partial(target).exists():
            assert recorded_ranks(target) >= recorded, f"{context}: what was done is not any more"
            recorded = recorded_ranks(target)
        assert kills < 40, f"seed {seed}: it comes no further than {sorted(recorded)}"
    check_finished(target, wanted, f"seed {seed}, after {kills} kills")
    assert kills >= 3, f"seed {seed}: it was killed only {kills} times"


DYING_RUNS = """
import os, signal, sys
import reshard.cli.convert, reshard.core.conversion.convert
from reshard.cli.main import run

MUTATIONS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.copyfile"}

def die_at(left):
    def watch(event, arguments):
        nonlocal left
        if event in MUTATIONS or event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)

for step in sys.stdin:
    child = os.fork()
    if child == 0:
        die_at(int(step))
        os._exit(run(sys.argv[1:]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr, flush=True)
"""
"""Runs that kill themselves when they are about to change the file system for the n-th time; each is given its n.

Python tells its hooks beforehand. Each is forked off: Python's imports take ten times as long as the run.
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_before_each_change_of_the_file_system(tmp_path: Path, overwrite: bool) -> None:
    """Publishing takes a few milliseconds, which random moments seldom meet: this meets every step of it."""
    conversion = of_case(case(7009), "--engine", "direct", "--workers", "1")
    target, former_target, options = tmp_path / "out", tmp_path / "former", OVERWRITE[overwrite]
    rerun(conversion.arguments(target))
    wanted = files_of(target)
    if overwrite:
        rerun(conversion.arguments(former_target, "--prefix", "former_"))
    former = files_of(former_target)
    seen: Counter[str] = Counter()
    arguments = conversion.arguments(target, *options)
    runs = subprocess.Popen(
        [sys.executable, "-c", DYING_RUNS, *arguments],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    for step in range(1000):
        clear(target)
        if overwrite:
            shutil.copytree(former_target, target)
        if not killed(runs, step):
            break
        context = f"killed before change {step}"
        seen[publishing_step(target, wanted)] += 1
        check_nothing_looks_whole_that_is_not(target, wanted, former, context)
        rerun(arguments)
        check_finished(target, wanted, context)
    runs.communicate()
    expected = {"writing", "about to be published", "published"}
    assert set(seen) == expected | ({"between the two"} if overwrite else set()), seen
    assert seen["writing"] > 10, seen


def killed(runs: subprocess.Popen[str], step: int) -> bool:
    """Whether the run that was to be killed before a change came to that change."""
    assert runs.stdin is not None
    assert runs.stderr is not None
    runs.stdin.write(f"{step}\n")
    runs.stdin.flush()
    context: list[str] = []
    while (line := runs.stderr.readline()) not in ("0\n", "-9\n"):
        assert line, "".join(context)
        context.append(line)
    return line == "-9\n"


def publishing_step(target: Path, wanted: Files) -> str:
    """How far a run came with publishing."""
    if files_of(target) == wanted:
        return "published"
    if replaced(target).exists():
        return "between the two"
    return "about to be published" if (partial(target) / ".reshard" / "manifest.json").exists() else "writing"


def test_a_flow_run_killed_twice(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Its embedded server is killed as well, and the next run goes on with the same database."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    environment["PREFECT_PROFILES_PATH"] = str(tmp_path / "profiles.toml")
    conversion = dataclasses.replace(undisturbed.conversion, options=("--engine", "prefect", "--workers", "1"))
    target = tmp_path / "out"
    command = [*RESHARD, *conversion.arguments(target)]
    generator = random.Random(seed := 5)
    ranks = 0
    for number in range(2):
        context = f"seed {seed}, kill {number}"
        wanted_ranks = ranks + generator.randint(1, RANKS // 4)
        process = start(command, environment)
        while len(recorded_ranks(target)) < wanted_ranks:
            assert process.poll() is None, f"{context}: ended before {wanted_ranks} ranks were done"
            time.sleep(POLL_SECONDS)
        assert kill(process), f"{context}: ended before it was killed"
        ranks = len(recorded_ranks(target))
        assert wanted_ranks <= ranks < RANKS, context
        check_nothing_looks_whole_that_is_not(target, undisturbed.wanted, {}, context)
    process = start(command, environment)
    _, context = process.communicate(timeout=120)
    assert process.returncode == 0, context
    check_finished(target, undisturbed.wanted, f"seed {seed}")

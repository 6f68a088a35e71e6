"""Runs a scenario: writes its files, measures its contenders in turn, looks at what they wrote, clears up."""

import datetime
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import measure
from benchmarks.contenders import CP, NONE, Contender, Job
from benchmarks.errors import BenchmarkError
from benchmarks.files import check_target, write_checkpoint, write_strategies
from benchmarks.models import Model, Side
from benchmarks.results import Result, Run, this_machine
from benchmarks.scenarios import Scenario
from core.checkpoint.model import CheckpointFormat

Say = Callable[[str], None]
_SPARE_BYTES = 2**30
# a Prefect server goes on recording a run for a moment after it ended, which the next contender should not pay for
_SERVER_SETTLES_SECONDS = 2


@dataclass(frozen=True)
class Plan:
    """A scenario as it is to be run this time."""

    scenario: Scenario
    contenders: tuple[Contender, ...]
    once: tuple[Contender, ...]
    rounds: int

    def in_round(self, number: int) -> tuple[Contender, ...]:
        """Who takes part in a round; the first is 1."""
        return self.contenders + self.once if number == 1 else self.contenders

    def needed_bytes(self) -> int:
        """Room for its files, as many as there are at once."""
        if self.scenario.model is None:
            return 0
        model = self.scenario.model()
        source = sum(_rank_bytes(model, Side.SOURCE, set(model.first_with_same_content(Side.SOURCE).values())))
        target = sum(_rank_bytes(model, Side.TARGET, model.ranks(Side.TARGET)))
        return source * len(self._formats()) + target * (2 if self._keeps_a_target() else 1)

    def run(self, directory: Path, server: Mapping[str, str], say: Say) -> Result:
        """Measures everything in a new `directory`, which is removed again.

        Raises:
            BenchmarkError: a contender failed, or reshard wrote something else than it should have.
        """
        model = self.scenario.model() if self.scenario.model else None
        with _new_directory(directory):
            job = Job(directory, directory / "source_ckpt" if self.scenario.copies_source else directory / "kept")
            if model:
                self._prepare(model, job, say)
            runs: list[Run] = []
            wrong: dict[str, str] = {}
            for number in range(1, self.rounds + 1):
                told = []
                for contender in self.in_round(number):
                    run = _run(contender, job, number, server)
                    if model and contender.converts and number == 1:
                        wrong |= _problem(contender, model, job.target)
                    shutil.rmtree(job.target, ignore_errors=True)
                    runs.append(run)
                    told.append(f"{contender.name} {run.seconds:.2f} s")
                say(f"  round {number} of {self.rounds}: {', '.join(told)}")
        return Result(
            scenario=self.scenario.name,
            measured_on=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            machine=this_machine(),
            model_bytes=model.size_bytes if model else 0,
            target_bytes=sum(_rank_bytes(model, Side.TARGET, model.ranks(Side.TARGET))) if model else 0,
            target_ranks=len(model.ranks(Side.TARGET)) if model else 0,
            runs=tuple(runs),
            wrong=wrong,
        )

    def _prepare(self, model: Model, job: Job, say: Say) -> None:
        """Writes the source, keeps one target for `cp` to copy, and copies once in vain.

        The latter because memory that nobody has used yet can be several times slower, on virtual machines above all.
        """
        started = time.monotonic()
        for format in self._formats():
            write_checkpoint(model, format, job.source(format))
        write_strategies(model, job.directory)
        if self._keeps_a_target():
            measure.run(NONE.command(job))
            job.target.rename(job.copied)
        if CP in self.contenders:
            measure.run(CP.command(job))
            shutil.rmtree(job.target)
        say(f"  files written in {time.monotonic() - started:.0f} s")

    def _formats(self) -> list[CheckpointFormat]:
        return sorted({contender.source_format for contender in self.in_round(1)} | {CheckpointFormat.CKPT})

    def _keeps_a_target(self) -> bool:
        return not self.scenario.copies_source and CP in self.contenders


def check_room(plans: list[Plan], directory: Path) -> None:
    """Sees to it that what is to be written fits.

    Raises:
        BenchmarkError: it does not.
    """
    largest = max(plans, key=Plan.needed_bytes)
    needed = largest.needed_bytes() + _SPARE_BYTES
    # memory-backed storage promises more than the machine may have left
    free = min(shutil.disk_usage(directory).free, psutil.virtual_memory().available)
    if free < needed:
        raise BenchmarkError(
            f"scenario {largest.scenario.name!r} needs {needed / 2**30:.1f} GiB in {directory}, "
            f"{free / 2**30:.1f} GiB are free (or of the memory behind it). "
            "Choose other scenarios, or another place with --directory"
        )


def _rank_bytes(model: Model, side: Side, ranks: "set[int] | range") -> Iterator[int]:
    return (model.shard_bytes(side, rank) for rank in ranks)


def _run(contender: Contender, job: Job, number: int, server: Mapping[str, str]) -> Run:
    measured = measure.run(contender.command(job), server if contender.needs_server else None)
    if contender.needs_server:
        time.sleep(_SERVER_SETTLES_SECONDS)
    told = json.loads(measured.output) if measured.output.strip() else {}
    return Run(
        contender=contender.name,
        round=number,
        seconds=told[contender.counted] if contender.counted else measured.seconds,
        process_seconds=measured.seconds,
        peak_bytes=measured.peak_bytes,
        read_bytes=measured.read_bytes,
        written_bytes=measured.written_bytes,
        reported_read_bytes=told.get("read_bytes"),
    )


def _problem(contender: Contender, model: Model, target: Path) -> dict[str, str]:
    """What is wrong with a target. Others may be wrong, which is told; reshard must not."""
    try:
        check_target(model, target)
    except BenchmarkError as error:
        if contender.is_mindspore:
            return {contender.name: str(error)}
        raise
    return {}


@contextmanager
def _new_directory(directory: Path) -> Iterator[None]:
    directory.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)

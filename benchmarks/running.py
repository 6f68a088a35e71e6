"""Runs a scenario: writes its files, measures its contenders in turn, looks at what they wrote, clears up."""

import datetime
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import measure
from benchmarks.contenders import CP, DELAY_SECONDS, S3_COPY, S3_NAIVE, S3_UPLOAD, Contender, Job
from benchmarks.errors import BenchmarkError
from benchmarks.files import check_target, write_checkpoint, write_config, write_strategies
from benchmarks.models import Model, Side
from benchmarks.object_store import ObjectStore, object_store
from benchmarks.results import Result, Run, this_machine
from benchmarks.scenarios import Scenario
from reshard.core.files.model import CheckpointFormat

Say = Callable[[str], None]
_SPARE_BYTES = 2**30
# a Prefect server goes on recording a run for a moment after it ended, which the next contender should not pay for
_SERVER_SETTLES_SECONDS = 2
# a virtual machine hands memory that was freed back to its host, a while later, and is slow to get it again
_MUCH_MEMORY_BYTES, _MEMORY_SETTLES_SECONDS = 2**30, 5


@dataclass(frozen=True)
class Services:
    """What runs beside the contenders.

    Attributes:
        prefect: environment of a Prefect server's clients.
        store: an object store, where the scenario needs one.
    """

    prefect: Mapping[str, str]
    store: ObjectStore | None = None

    def environment(self, contender: Contender) -> dict[str, str]:
        """What a contender needs to find those that it is for."""
        prefect = self.prefect if contender.needs_server else {}
        store = self.store.environment(delayed=contender.delayed) if self.store and contender.needs_store else {}
        return {**prefect, **store}


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
        targets = target * (2 if self._keeps_a_target() else 1)
        # who works by way of the disk has all that there is, and what becomes of it
        on_the_way = source + target if S3_NAIVE in self.in_round(1) else 0
        # what makes a source of its own may need whole tensors on the way
        prepared = 2 * source if any(contender.preparation for contender in self.in_round(1)) else 0
        return source * len(self._formats()) + targets + on_the_way + prepared

    def run(self, directory: Path, server: Mapping[str, str], say: Say) -> Result:
        """Measures everything in a new `directory`, which is removed again.

        Raises:
            BenchmarkError: a contender failed, or reshard wrote something else than it should have.
        """
        model = self.scenario.model() if self.scenario.model else None
        with _new_directory(directory):
            first_ranks = model.first_with_same_content(Side.SOURCE) if model else {}
            export_options = model.export.options if model and model.export else ()
            job = Job(directory, first_ranks, self.scenario.copies_source, export_options)
            if model:
                self._prepare(model, job, say)
            store_runs = object_store(job.buckets, DELAY_SECONDS) if self.scenario.needs_store else nullcontext()
            with store_runs as store:
                runs, wrong = self._measure(model, job, Services(server, store), say)
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

    def _measure(self, model: Model | None, job: Job, services: Services, say: Say) -> tuple[list[Run], dict[str, str]]:
        """All rounds; and contender -> what was wrong with what it wrote."""
        runs = []
        wrong: dict[str, str] = {}
        for contender in self._warmed_up():
            _run(contender, job, 0, services)
        for number in range(1, self.rounds + 1):
            printed = []
            # nobody always comes after the one who leaves the machine busy
            for contender in random.sample(self.in_round(number), len(self.in_round(number))):
                run = _run(contender, job, number, services)
                if model and contender.converts and number == 1:
                    wrong |= _problem(contender, model, job.target)
                runs.append(run)
                printed.append(f"{contender.name} {run.seconds:.2f} s")
            say(f"  round {number} of {self.rounds}: {', '.join(printed)}")
        return runs, wrong

    def _prepare(self, model: Model, job: Job, say: Say) -> None:
        """Writes the source, and keeps one target for `cp` to copy."""
        started = time.monotonic()
        for format in self._formats():
            write_checkpoint(model, format, job.source(format))
        write_strategies(model, job.directory)
        if model.export:
            write_config(model.export, job.like)
        job.target.parent.mkdir()
        if self._keeps_a_target():
            measure.run(self.scenario.kept_by.command(job))
            job.target.rename(job.copied)
        for contender in self.in_round(1):
            if contender.preparation:
                measure.run(contender.preparation(job))
        say(f"  files written in {time.monotonic() - started:.0f} s")

    def _formats(self) -> list[CheckpointFormat]:
        return sorted({contender.source_format for contender in self.in_round(1)} | {CheckpointFormat.CKPT})

    def _warmed_up(self) -> list[Contender]:
        """Who runs once unmeasured: memory and modules take longer when first used, above all on virtual machines."""
        return [who for who in self.contenders if self.scenario.model and not who.is_mindspore]

    def _keeps_a_target(self) -> bool:
        """Whether somebody copies a target."""
        return not self.scenario.copies_source and bool({CP, S3_COPY, S3_UPLOAD} & set(self.contenders))


def check_room(plans: list[Plan], directory: Path) -> None:
    """Sees to it that what is to be written fits.

    Raises:
        BenchmarkError: it does not.
    """
    if not plans:
        return
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


def _run(contender: Contender, job: Job, number: int, services: Services) -> Run:
    for left in (job.target, job.scratch):
        shutil.rmtree(left, ignore_errors=True)
    store = services.store if contender.needs_store else None
    if store:
        store.begin()
    measured = measure.run(contender.command(job), services.environment(contender))
    if contender.needs_server:
        time.sleep(_SERVER_SETTLES_SECONDS)
    if measured.peak_bytes > _MUCH_MEMORY_BYTES:
        time.sleep(_MEMORY_SETTLES_SECONDS)
    printed = json.loads(measured.output) if measured.output.strip() else {}
    return Run(
        contender=contender.name,
        round=number,
        seconds=printed[contender.counted] if contender.counted else measured.seconds,
        process_seconds=measured.seconds,
        peak_bytes=measured.peak_bytes,
        read_bytes=measured.read_bytes,
        written_bytes=measured.written_bytes,
        reported_read_bytes=printed.get("read_bytes"),
        traffic=store.traffic() if store else None,
        processor_seconds=measured.processor_seconds,
    )


def _problem(contender: Contender, model: Model, target: Path) -> dict[str, str]:
    """Problems of a target. Other contenders' targets may have some, which are printed; reshard's must not."""
    try:
        check_target(model, target, contender.target_dtype, merged=contender.merges)
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

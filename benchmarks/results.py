"""What was measured, kept as JSON, one file a scenario; and the statistics of it."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

DIRECTORY = Path(__file__).parent / "results"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Machine(_Record):
    """Where it was measured."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str


class Traffic(_Record):
    """What an object store and a contender sent each other: contents of objects, lists, records, but no headers.

    Attributes:
        source_sent_bytes: by the store, of the source.
        target_sent_bytes: by the store, of the target.
        received_bytes: by the store.
        requests: how many there were of each operation.
        server_seconds: that the processors worked for the store.
    """

    source_sent_bytes: int
    target_sent_bytes: int
    received_bytes: int
    requests: Mapping[str, int]
    server_seconds: float = 0.0


class Run(_Record):
    """One contender's run in one round.

    Attributes:
        contender: its name.
        round: the first is 1.
        seconds: what counts: of MindSpore the conversion alone, of the others the whole process.
        process_seconds: of the whole process.
        peak_bytes: resident memory of the whole process tree, at the highest.
        read_bytes: that the kernel counted.
        written_bytes: that the kernel counted.
        reported_read_bytes: of the source, as the contender itself says.
        traffic: with an object store, if there was one.
        processor_seconds: of the whole process tree; earlier results lack it.
    """

    contender: str
    round: int
    seconds: float
    process_seconds: float
    peak_bytes: int
    read_bytes: int
    written_bytes: int
    reported_read_bytes: int | None = None
    traffic: Traffic | None = None
    processor_seconds: float | None = None


class Result(_Record):
    """All runs of a scenario.

    Attributes:
        scenario: its name.
        measured_on: the day, as YYYY-MM-DD.
        machine: where.
        model_bytes: bytes of the whole model.
        target_bytes: bytes of all target files.
        target_ranks: how many target ranks there are.
        runs: in the order in which they were made.
        wrong: contender -> what was wrong with what it wrote.
    """

    scenario: str
    measured_on: str
    machine: Machine
    model_bytes: int
    target_bytes: int
    target_ranks: int
    runs: tuple[Run, ...]
    wrong: Mapping[str, str] = {}

    def of(self, contender: str) -> list[Run]:
        """A contender's runs."""
        return [run for run in self.runs if run.contender == contender]

    def has(self, *contenders: str) -> bool:
        """Whether all of these were measured."""
        return all(self.of(contender) for contender in contenders)


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def seconds(result: Result, contender: str) -> Spread:
    """The seconds that count."""
    return Spread.of([run.seconds for run in result.of(contender)])


def ratio(result: Result, contender: str, base: str) -> Spread:
    """How many times as long a contender took as another in the same round: what else went on then hit both."""
    base_of = {run.round: run.seconds for run in result.of(base)}
    return Spread.of([run.seconds / base_of[run.round] for run in result.of(contender) if run.round in base_of])


def processor_ratio(result: Result, contender: str, base: str) -> Spread:
    """How many times as much processor time a contender took as another in the same round."""
    base_of = {run.round: run.processor_seconds for run in result.of(base)}
    pairs = [(run.processor_seconds, base_of.get(run.round)) for run in result.of(contender)]
    return Spread.of([(ours or 0.0) / theirs for ours, theirs in pairs if theirs])


def extra(result: Result, contender: str, base: str) -> Spread:
    """How many seconds longer a contender took than another in the same round."""
    base_of = {run.round: run.seconds for run in result.of(base)}
    return Spread.of([run.seconds - base_of[run.round] for run in result.of(contender) if run.round in base_of])


def peak_bytes(result: Result, contender: str) -> int:
    """The most memory of any run."""
    return max(run.peak_bytes for run in result.of(contender))


def save(result: Result) -> Path:
    """Writes a scenario's file, replacing that of an earlier run."""
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{result.scenario}.json"
    path.write_text(result.model_dump_json(indent=1) + "\n")
    return path


def load(scenarios: Sequence[str]) -> list[Result]:
    """The latest results of those of the scenarios that have any."""
    paths = [DIRECTORY / f"{name}.json" for name in scenarios]
    return [Result.model_validate_json(path.read_text()) for path in paths if path.exists()]


def this_machine() -> Machine:
    """The machine that this runs on."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        python=platform.python_version(),
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

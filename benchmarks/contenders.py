"""Who is measured, and how each is called."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.checkpoint.model import CheckpointFormat

_HERE = Path(__file__).parent
MINDSPORE_PYTHON = _HERE.parent / ".venv-mindspore" / "bin" / "python"


@dataclass(frozen=True)
class Job:
    """The files of one scenario, all below one directory.

    Attributes:
        directory: what holds them.
        copied: the checkpoint that `cp` copies.
    """

    directory: Path
    copied: Path

    def source(self, format: CheckpointFormat) -> Path:
        """The source checkpoint in one of its formats."""
        return self.directory / f"source_{format}"

    @property
    def target(self) -> Path:
        """Where the contenders write to, one after another."""
        return self.directory / "target"

    @property
    def strategies(self) -> tuple[str, str]:
        """The strategy files of source and target."""
        return str(self.directory / "source_strategy.ckpt"), str(self.directory / "target_strategy.ckpt")


@dataclass(frozen=True)
class Contender:
    """One way of doing the job.

    Attributes:
        name: in results and progress lines.
        title: in tables.
        command: what is run.
        source_format: the format that it reads, and writes.
        needs_server: whether it needs a running Prefect server.
        is_mindspore: whether it needs MindSpore.
        converts: whether its target has to be looked at.
        counted: field of the JSON that it prints with the seconds that count; empty: those of the whole process.
    """

    name: str
    title: str
    command: Callable[[Job], Sequence[str]]
    source_format: CheckpointFormat = CheckpointFormat.CKPT
    needs_server: bool = False
    is_mindspore: bool = False
    converts: bool = True
    counted: str = ""


def _reshard(*options: str) -> Callable[[Job], Sequence[str]]:
    def command(job: Job) -> Sequence[str]:
        source_strategy, target_strategy = job.strategies
        return [
            str(Path(sys.executable).with_name("reshard")),
            "convert",
            str(job.source(CheckpointFormat.CKPT)),
            str(job.target),
            *("--source-strategy", source_strategy),
            *("--target-strategy", target_strategy),
            "--json",
            *options,
        ]

    return command


def _mindspore(format: CheckpointFormat, processes: int) -> Callable[[Job], Sequence[str]]:
    def command(job: Job) -> Sequence[str]:
        script = str(_HERE / "mindspore_transform.py")
        paths = str(job.source(format)), str(job.target), *job.strategies
        return [str(MINDSPORE_PYTHON), script, *paths, format.value, str(processes)]

    return command


def _plan(stages: int) -> Callable[[Job], Sequence[str]]:
    return lambda _: [sys.executable, "-m", "benchmarks.planning", str(stages)]


CP = Contender("cp", "`cp -r`", lambda job: ["cp", "-r", str(job.copied), str(job.target)], converts=False)
NONE = Contender("none", "reshard, not verified", _reshard("--engine", "direct", "--verify", "none"))
CHECKSUM = Contender("checksum", "reshard, every byte verified", _reshard("--engine", "direct", "--verify", "checksum"))
FLOW = Contender(
    "flow", "reshard as a Prefect flow, every byte verified", _reshard("--verify", "checksum"), needs_server=True
)
MINDSPORE_CKPT = Contender(
    "mindspore-ckpt",
    "MindSpore, `.ckpt`",
    _mindspore(CheckpointFormat.CKPT, 1),
    is_mindspore=True,
    counted="transform_seconds",
)
MINDSPORE_SAFETENSORS = Contender(
    "mindspore-safetensors",
    "MindSpore, `.safetensors`, 2 processes",
    _mindspore(CheckpointFormat.SAFETENSORS, 2),
    CheckpointFormat.SAFETENSORS,
    is_mindspore=True,
    counted="transform_seconds",
)
PLAN_FLAT = Contender("plan-1", "plan, 1 pipeline stage", _plan(1), converts=False, counted="plan_seconds")
PLAN_STAGES = Contender("plan-16", "plan, 16 pipeline stages", _plan(16), converts=False, counted="plan_seconds")

CONTENDERS = {
    contender.name: contender
    for contender in (
        CP,
        NONE,
        CHECKSUM,
        FLOW,
        MINDSPORE_CKPT,
        MINDSPORE_SAFETENSORS,
        PLAN_FLAT,
        PLAN_STAGES,
    )
}

"""The command `reshard` in process groups of its own, and the files that it leaves behind."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from demo.make_checkpoint import make_demo
from demo.model import Job
from reshard.cli.main import run
from reshard.core.storage.publishing import PARTIAL_SUFFIX, REPLACED_SUFFIX
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from tests.support.checkpoints import Case
from tests.support.places import PROJECT

RESHARD = (sys.executable, "-m", "reshard.cli.main")

Files = Mapping[str, bytes]
"""Path below a checkpoint -> content, of the files in its rank folders."""


@dataclass(frozen=True)
class Conversion:
    """A conversion to be started again and again."""

    source: Path
    source_strategy: Path
    target_strategy: Path
    options: tuple[str, ...] = ()

    def arguments(self, target: Path, *options: str) -> list[str]:
        """The command line, after `reshard`."""
        strategies = ["--source-strategy", str(self.source_strategy), "--target-strategy", str(self.target_strategy)]
        return ["convert", str(self.source), str(target), *strategies, *self.options, *options]


def many_ranks(directory: Path, *options: str) -> Conversion:
    """The demo's checkpoint of 8 ranks, to 32 small ones: 8 that are written and 24 that are copies of them."""
    make_demo(parse_url(str(directory)))
    job = Job(stages=1, data_parallel=8, tensor_parallel=4, optimizer_shards=2)
    write_strategy(job.strategy(0), str(directory / "many_ranks.ckpt"))
    source_strategy, target_strategy = directory / "strategy", directory / "many_ranks.ckpt"
    return Conversion(directory / "checkpoint", source_strategy, target_strategy, options)


def of_case(case: Case, *options: str) -> Conversion:
    """A conversion that MindSpore did."""
    source_strategy, target_strategy = case.directory / "src_strategy.ckpt", case.directory / "dst_strategy.ckpt"
    return Conversion(case.directory / "src", source_strategy, target_strategy, options)


def start(command: list[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a command in a process group of its own."""
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> bool:
    """`kill -9` to a process and all that it started; False if it had ended by itself, and well."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    _, context = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), context
    return process.returncode != 0


def rerun(arguments: list[str]) -> None:
    """Gives a command line again, in this process, to its good end."""
    assert run(arguments) == 0, arguments


def files_of(directory: Path) -> Files:
    """All files in the rank folders of a checkpoint."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.glob("rank_*/**/*"))
        if path.is_file()
    }


def partial(target: Path) -> Path:
    """Where a target's files are written."""
    return target.with_name(target.name + PARTIAL_SUFFIX)


def replaced(target: Path) -> Path:
    """Where a former target is moved before the new one gets its name."""
    return target.with_name(target.name + REPLACED_SUFFIX)


def recorded_ranks(target: Path) -> set[str]:
    """Names of the records of a conversion under way."""
    return {path.name for path in partial(target).glob(".reshard/records/rank_*.json")}


def check_nothing_looks_whole_that_is_not(target: Path, wanted: Files, former: Files, context: str) -> None:
    """What a run that was killed may leave: the former target (if any) or the new one, and files that are whole."""
    if target.exists():
        assert files_of(target) in (wanted, former), f"{context}: the target is half-written"
    elif former:
        assert files_of(replaced(target)) == former, f"{context}: the former target is gone"
    for name, content in files_of(partial(target)).items():
        assert is_temporary(Path(name)) or content == wanted[name], (
            f"{context}: {name} has its name, but not its content"
        )
    for directory in (target, partial(target)):
        if (directory / ".reshard" / "manifest.json").exists():
            assert run(["verify", str(directory)]) == 0, (
                f"{context}: {directory.name} has a manifest, but does not verify"
            )


def check_finished(target: Path, wanted: Files, context: str) -> None:
    """The target is the wanted one, byte for byte, it verifies, and nothing else is left of the way there."""
    assert files_of(target) == wanted, f"{context}: the target is not that of an undisturbed run"
    assert run(["verify", str(target)]) == 0, context
    left = [path.name for path in (partial(target), replaced(target)) if path.exists()]
    left += [path.name for path in target.rglob("*") if is_temporary(path)]
    assert not left, f"{context}: {left} is left"


def is_temporary(path: Path) -> bool:
    """Whether a file never got its name."""
    return path.name.endswith(".tmp")


def clear(target: Path) -> None:
    """Removes a target and what belongs to it."""
    for directory in (target, partial(target), replaced(target)):
        shutil.rmtree(directory, ignore_errors=True)

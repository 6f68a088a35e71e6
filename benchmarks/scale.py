"""What is too large for `make bench`: `python -m benchmarks.scale disk|ranks --directory DIR`, on a quiet machine.

`disk`: a checkpoint larger than the machine's memory, on a real disk, beside `cp -a` of its source. Before each command
the source is dropped from the page cache; a command ends when what it wrote is on the disk.

`ranks`: a thousand ranks and more of many small parameters, where files and plans cost more than bytes.

Prints a line for each command: seconds to wait for, those beside `cp`, peak memory. What was written in the first round
is compared with what it has to be. The files are removed at the end.
"""

import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import measure
from benchmarks.contenders import CHECKSUM, CONTENT, NONE, Job
from benchmarks.files import check_target, write_checkpoint, write_strategies
from benchmarks.models import Model, Side, cut_by, matrices, transformer
from reshard.core.files.model import CheckpointFormat
from reshard.core.runtime.wording import size_text

_VOCABULARY = 32_000
_FEED_FORWARD = 43 / 16
"""Times the hidden size, as in Llama 7B; a multiple of 8 for hidden sizes that are multiples of 128."""
_CONVERSIONS = (NONE, CHECKSUM, CONTENT)
"""Named by what is verified."""

_directory = click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    required=True,
    help="Where a directory of this run is made, and removed at the end.",
)
_rounds = click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)


@click.group(help=__doc__)
def commands() -> None:
    """The commands."""


@commands.command()
@_directory
@_rounds
@click.option("--hidden", default=4096, show_default=True, help="Hidden size; a multiple of 128.")
@click.option("--layers", default=8, show_default=True, help="2.3 GiB each with the default hidden size, and 2.9 GiB.")
def disk(directory: Path, rounds: int, hidden: int, layers: int) -> None:
    """Convert a Llama with its moments, 8 ranks to 4; needs room for it twice."""
    model = transformer(hidden, layers, int(hidden * _FEED_FORWARD), _VOCABULARY)
    _measure(model, directory, rounds)


@commands.command()
@_directory
@_rounds
@click.option("--source", default=1024, show_default=True, help="Ranks of the source.")
@click.option("--target", default=768, show_default=True, help="Ranks of the target.")
@click.option("--parameters", default=300, show_default=True)
def ranks(directory: Path, rounds: int, source: int, target: int, parameters: int) -> None:
    """Convert many small parameters, rows cut over all ranks; each is a row of 64 numbers for each rank, or more."""
    model = matrices(parameters, (math.lcm(source, target), 64), cut_by(0, source), cut_by(0, target))
    _measure(model, directory, rounds)


def _measure(model: Model, directory: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="reshard-scale-", dir=directory) as place:
        job = Job(Path(place), model.first_with_same_content(Side.SOURCE), copies_source=True)
        write_checkpoint(model, CheckpointFormat.CKPT, job.copied)
        write_strategies(model, job.directory)
        job.target.parent.mkdir()
        sides = " -> ".join(str(len(model.ranks(side))) for side in Side)
        click.echo(f"{size_text(model.size_bytes)}, {sides} ranks")
        for number in range(rounds):
            copied = _run(job, ["cp", "-a", str(job.copied), str(job.target)])
            _print("cp -a", copied, copied.seconds)
            for contender in _CONVERSIONS:
                _print(contender.name, _run(job, contender.command(job)), copied.seconds)
                if not number:
                    check_target(model, job.target)


def _run(job: Job, command: Sequence[str]) -> measure.Measurement:
    shutil.rmtree(job.target, ignore_errors=True)
    _forget(job.copied)
    flushed = f"{shlex.join(command)} && sync -f {shlex.quote(str(job.target.parent))}"
    return measure.run(["sh", "-c", flushed])


def _forget(directory: Path) -> None:
    """Have the page cache drop the files of a directory."""
    os.sync()  # only what is on the disk can be dropped
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _print(name: str, measured: measure.Measurement, copy_seconds: float) -> None:
    ratio = measured.seconds / copy_seconds
    click.echo(f"  {name:14} {measured.seconds:8.1f} s {ratio:6.2f} x cp {measured.peak_bytes / 2**20:8.0f} MiB")


if __name__ == "__main__":
    commands()

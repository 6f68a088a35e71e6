"""`make fuzz`: hostile files for every parser, for as long as one likes."""

import faulthandler
import random
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.fuzz import (
    adapters,
    changes,
    checkpoints,
    fsdp,
    iterations,
    megatron,
    presets,
    records,
    signatures,
    strategies,
    texts,
    torch_plain,
    universal,
    zero,
)
from tests.fuzz.engine import Failure, Tally, run
from tests.fuzz.parsers import Parser

PARSERS: tuple[Parser, ...] = (
    strategies.PROTOBUF,
    strategies.JSON,
    strategies.GROUPS,
    strategies.DCP_METADATA,
    changes.DOCUMENT,
    adapters.ADAPTER,
    iterations.METADATA,
    iterations.COMMON,
    iterations.TRACKER,
    iterations.SAVED_STEP,
    checkpoints.CKPT,
    checkpoints.CKPT_REMOTE,
    checkpoints.CKPT_AMONG_OTHERS,
    checkpoints.SAFETENSORS,
    checkpoints.TORCH_ARCHIVE,
    checkpoints.TORCH_FILE,
    megatron.RANK,
    fsdp.RANK,
    zero.RANK,
    torch_plain.STATE_DICT,
    universal.FILE,
    checkpoints.ENCRYPTED,
    checkpoints.MAP_PARAMETER,
    records.MANIFEST,
    records.STATEMENT,
    records.RECORD,
    records.PLAN,
    records.SEALED,
    records.WEIGHT_MAP,
    records.LEASE,
    records.FAULT_LIST,
    signatures.BUNDLE,
    signatures.STATEMENT,
    signatures.ENVELOPE,
    signatures.TRUSTED,
    presets.PRESET,
    texts.REQUEST,
    texts.TEXT,
    texts.STORAGE_OPTIONS,
    texts.ANSWER,
    texts.SCRUBBED,
)

_MOST_MEMORY_BYTES = 4 << 30
"""Of the process's address space: what libraries allocate outside Python is not measured, but ends there."""
_SHOWN_BYTES = 200


@click.command()
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="In all.")
@click.option("--seed", type=int, help="The same damage each time; random if not given.")
@click.option("--only", type=click.Choice([parser.name for parser in PARSERS]), help="Just this parser.")
def main(seconds: float, seed: int | None, only: str | None) -> None:
    """Feeds parsers with damaged files, and keeps those that they do not survive.

    A file has to be read or refused with a message that names it: without any other exception, within seconds, and in
    memory that its size bounds.
    """
    seed = random.randrange(2**32) if seed is None else seed
    chosen = [parser for parser in PARSERS if only in (None, parser.name)]
    directory = Path(tempfile.mkdtemp(prefix="reshard-fuzz-found-"))
    at_hand = directory / "at-hand"
    click.echo(f"{len(chosen)} parsers, {seconds:g} s, seed {seed}; should this process die: see {at_hand}")
    failures: list[Failure] = []
    for parser in chosen:
        dice = random.Random(f"{seed} {parser.name}")
        tally = run(parser, dice, seconds=seconds / len(chosen), note=at_hand.write_bytes)
        click.echo(_line(parser, tally))
        failures += tally.failures.values()
    shutil.rmtree(directory)
    if failures:
        directory.mkdir()
        for number, failure in enumerate(failures):
            path = directory / f"{failure.parser}-{number}"
            path.write_bytes(failure.data)
            click.echo(f"\n{failure.parser}: {failure.what}\n    {path}, {len(failure.data)} bytes")
            click.echo(f"    {failure.data[:_SHOWN_BYTES]!r}{' …' if len(failure.data) > _SHOWN_BYTES else ''}")
        sys.exit(1)


def _line(parser: Parser, tally: Tally) -> str:
    rate = tally.count / max(tally.seconds, 1e-9)
    return (
        f"{parser.name:18} {tally.count:8} inputs, {rate:6.0f}/s, {tally.accepted / tally.count:4.0%} accepted, "
        f"slowest {tally.slowest_seconds:.2f} s, {len(tally.failures)} failures"
    )


if __name__ == "__main__":
    faulthandler.enable()
    # what C code allocates, or how long it runs, is seen by nobody inside the process
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    main()

"""`reshard clean`."""

import sys
from typing import TYPE_CHECKING

import click

from reshard.cli.logs import Command
from reshard.cli.output import print_blocks, print_json, print_line
from reshard.cli.parameters import DIRECTORY
from reshard.cli.progress import shown_progress
from reshard.cli.storages import key_named, key_options, storage_named, storage_option
from reshard.core.runtime.progress import reporting_to
from reshard.core.runtime.wording import size_text

if TYPE_CHECKING:
    from reshard.core.target.leftovers import CleanReport


@click.command("clean", cls=Command)
@click.argument("target", type=DIRECTORY)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; removes only with --yes.")
def command(target: str, yes: bool, decrypt_key: str, decrypt_mode: str, storage: str, as_json: bool) -> int:
    """Remove unfinished work at TARGET: unfinished conversions, multipart uploads, replaced checkpoints, leases.

    Lists what it would remove and, on a terminal, asks before removing it. A conversion whose remaining ranks are left
    to other machines is also unfinished: the list says how many ranks are done. Repeating a conversion would resume
    from what is listed, so remove only what you do not want to finish. Stops if a run is working on TARGET.

    TARGET is the directory given to 'reshard convert'; all iterations in it are cleaned.

    Never removes a finished conversion, or a complete one that only lacks its final name. On object stores, removes
    only files that the unfinished conversion wrote, according to its records and plan. On disks, recognizes files by
    name: stops at any that conversions do not write, but removes .ckpt and .safetensors files that somebody else put
    into its rank folders.

    Exits with 0 if no unfinished work is left, with 1 if some is, and with 2 if TARGET does not exist.

    \b
    Examples:
      reshard clean out
      reshard clean s3://bucket/out --yes
    """
    from reshard.core.target.cleaning import clean

    with storage_named(storage, target), key_named(decrypt_key, decrypt_mode):
        with shown_progress() as progress, reporting_to(progress):
            report = clean(target, remove=yes)
        if not as_json:
            print_blocks(report.blocks())
        if report.found and not report.removed and not as_json and _is_asked(report):
            with shown_progress() as progress, reporting_to(progress):
                report = clean(target, remove=True)
            print_blocks(report.removal_blocks())
    if as_json:
        print_json(report)
    return 1 if report.found and not report.removed else 0


def _is_asked(report: "CleanReport") -> bool:
    """Ask whether to remove what was found; without a terminal the answer is no."""
    if not _is_terminal():
        print_line("nothing was removed: use --yes to remove all of it", err=True)
        return False
    size_bytes = sum(each.size_bytes for each in report.found)
    try:
        return click.confirm(f"\nRemove all of it, {size_text(size_bytes)}?")
    except click.Abort:  # Ctrl-C, or the end of the input
        click.echo()
        return False


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()

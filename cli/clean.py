"""`reshard clean`."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from reshard.cli.logs import Command
from reshard.cli.output import print_facts, print_json, print_line, print_table
from reshard.cli.parameters import DIRECTORY
from reshard.cli.progress import shown_progress
from reshard.cli.storages import key_named, key_options, storage_named, storage_option
from reshard.core.runtime.progress import reporting_to
from reshard.core.runtime.wording import counted, seconds_text, size_text

if TYPE_CHECKING:
    from reshard.core.target.cleaning import CleanReport, Leftover


@click.command("clean", cls=Command)
@click.argument("target", type=DIRECTORY)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; removes only with --yes.")
def command(target: str, yes: bool, decrypt_key: str, decrypt_mode: str, storage: str, as_json: bool) -> int:
    """Remove what killed runs left at TARGET: unfinished work, uploads in parts, replaced checkpoints, leases.

    Lists what it would remove, and asks before removing it on a terminal. Never removes a finished conversion, a
    complete one that only lacks its final name, or files that no conversion wrote. Stops if a run is working on TARGET.
    The same conversion would resume from what is listed: remove only what you do not want to finish.

    Exits with 0 if nothing is left, or all of it was removed, and with 1 if something is left.

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
            _print_report(report)
        if report.found and not report.removed and not as_json and _is_asked(report):
            with shown_progress() as progress, reporting_to(progress):
                report = clean(target, remove=True)
            print_line("removed")
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


def _print_report(report: "CleanReport") -> None:
    if not report.found:
        print_line(f"{report.target}: killed runs left nothing to remove")
    else:
        print_table(
            ("left by killed runs", "where", "files", "size", "last change"),
            [(each.kind, each.url, each.files, size_text(each.size_bytes), _age_text(each)) for each in report.found],
            right=("files", "size", "last change"),
            optional=("files",),
        )
    if report.kept:
        print_facts(("kept", text) for text in report.kept)
    if report.removed:
        print_line(f"{report.target}: removed {counted(len(report.found), 'leftover')}")


def _age_text(leftover: "Leftover") -> str:
    if leftover.changed is None:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(leftover.changed)
    return f"{seconds_text(max(0.0, age.total_seconds()))} ago"

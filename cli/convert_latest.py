"""`reshard convert-latest`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.convert import log_report, print_report
from reshard.cli.engine import DRY_RUN, Engine, choose_engine, convert_by, engine_option, report_document
from reshard.cli.field_options import field_options
from reshard.cli.logs import is_quiet, log_facts
from reshard.cli.options import CONVERTING_LATEST, GroupedCommand
from reshard.cli.output import print_facts, print_json
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.progress import shown_progress
from reshard.cli.storages import check_output
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.progress import Progress
from reshard.core.runtime.wording import counted

if TYPE_CHECKING:
    from reshard.core.conversion.latest import LatestReport


@click.command("convert-latest", cls=GroupedCommand, request=LatestConversionRequest)
@click.argument("source", type=PATH)
@click.argument("target", type=DIRECTORY)
@field_options(CONVERTING_LATEST, LatestConversionRequest)
@engine_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: LatestConversionRequest, engine: str, as_json: bool) -> None:
    """Convert the newest step that training has saved completely in SOURCE, into TARGET/{epoch}_{step}.

    SOURCE is a directory with rank_0, rank_1, …, or a pattern with {rank} in it. The command waits for a step that is
    being written, and does nothing if the newest one was converted before; so it can be run regularly, for example by
    cron. Earlier conversions are kept unless an option limits them. Files that reshard did not write are never removed,
    but programs that are reading a removed conversion lose it.

    \b
    Examples:
      show what would be done now:
        reshard convert-latest ckpt converted --source-strategy strategy --dry-run
      every ten minutes, keeping the five newest:
        */10 * * * *  reshard convert-latest ckpt converted --source-strategy strategy --keep-checkpoint-max 5
    """
    check_output(request.target)
    chosen = DRY_RUN if request.dry_run else choose_engine(engine, request)
    with shown_progress() as progress:
        report = convert_by(chosen, request, progress, _convert_here)
    if as_json:
        print_json(report_document(report, chosen))
    elif request.dry_run or not is_quiet():
        _print_latest(report, request.dry_run, chosen)
    _log_latest(report, request.dry_run, chosen)


def _convert_here(request: LatestConversionRequest, progress: Progress) -> "LatestReport":
    from reshard.core.conversion.latest import convert_latest

    return convert_latest(request, progress)


def _print_latest(report: "LatestReport", dry_run: bool, engine: Engine) -> None:
    if report.conversion:
        print_report(report.conversion, engine)
        click.echo()
    print_facts(_facts(report, dry_run))


def _log_latest(report: "LatestReport", dry_run: bool, engine: Engine) -> None:
    if report.conversion:
        log_report(report.conversion, engine)
    log_facts(_facts(report, dry_run))


def _facts(report: "LatestReport", dry_run: bool) -> list[tuple[str, str]]:
    removed = "would be removed" if dry_run else "removed"
    return [
        ("outcome", report.message),
        *([(removed, ", ".join(report.removed))] if report.removed else []),
        *([("kept", counted(len(report.kept), "conversion"))] if report.kept else []),
        *(("note", note) for note in report.notes),
    ]

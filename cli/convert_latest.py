"""`reshard convert-latest`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.convert import log_report
from reshard.cli.engine import DRY_RUN, choose_engine, convert_by, engine_option, report_document
from reshard.cli.field_options import field_options
from reshard.cli.logs import is_quiet, log_facts
from reshard.cli.options import CONVERTING_LATEST, GroupedCommand
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.progress import shown_progress
from reshard.cli.storages import check_output
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.progress import Progress

if TYPE_CHECKING:
    from reshard.core.conversion.latest import LatestReport


@click.command("convert-latest", cls=GroupedCommand, request=LatestConversionRequest)
@click.argument("source", type=PATH)
@click.argument("target", type=DIRECTORY)
@field_options(CONVERTING_LATEST, LatestConversionRequest)
@engine_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: LatestConversionRequest, engine: str, as_json: bool) -> None:
    """Convert the newest completely saved step in SOURCE, into TARGET/{epoch}_{step}.

    SOURCE is a directory with rank_0, rank_1, …, or a pattern with {rank} in it. The command waits for a step that is
    being written, and does nothing if the newest step has already been converted, so it can be run regularly, for
    example by cron. Earlier conversions are kept unless an option limits their number. Removal never touches files that
    reshard did not write, but does not wait for programs that are reading a conversion.

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
        print_blocks(report.blocks(chosen.text))
    if report.conversion:
        log_report(report.conversion, chosen)
    log_facts(report.facts)


def _convert_here(request: LatestConversionRequest, progress: Progress) -> "LatestReport":
    from reshard.core.conversion.latest import convert_latest

    return convert_latest(request, progress)

"""`reshard history`."""

from datetime import UTC, datetime
from itertools import islice

import click

from reshard.cli.logs import Command, is_quiet
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import DIRECTORY, PATH, Choice
from reshard.cli.storages import storage_option

_STATES = (
    *("committed", "unfinished", "queued", "running", "waiting"),
    *("refused", "cancelled", "failed", "crashed", "unreadable"),
)
"""ConversionState's words: `--help` does not load its module."""


@click.command("history", cls=Command)
@click.argument("places", metavar="[PLACE]...", nargs=-1, type=DIRECTORY)
@click.option(
    "--server", metavar="URL", default="", help="Ask this Prefect server instead of the one in PREFECT_API_URL."
)
@click.option(
    "--since",
    metavar="TIME",
    default="",
    help="Only conversions that began since then: 90m, 12h, 7d or 4w ago, or a date or time in UTC.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show this many conversions, the latest; 0: all.",
)
@click.option(
    "--state",
    "states",
    type=Choice(_STATES),
    multiple=True,
    help="Only conversions in this state. May be given several times.",
)
@click.option(
    "--source",
    metavar="PATTERN",
    default="",
    help="Only sources that contain this text, or match it if it has *, ? or […].",
)
@click.option(
    "--target",
    metavar="PATTERN",
    default="",
    help="Only targets that contain this text, or match it if it has *, ? or […].",
)
@click.option(
    "--signed-by",
    metavar="FILE",
    type=PATH,
    default="",
    help="Check that the statements of every step of a single target are signed by one of these public keys, or by a "
    "certificate that one of these CAs issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME.",
)
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    places: tuple[str, ...],
    server: str,
    since: str,
    limit: int,
    states: tuple[str, ...],
    source: str,
    target: str,
    signed_by: str,
    storage: str,
    as_json: bool,
) -> int:
    """List conversions: when, by whom, source and target, bytes, duration, verification, cost.

    Without a PLACE, lists the conversions of a Prefect server, including those that failed, were cancelled, are in
    progress or wait for approval. Each PLACE is a target, or a directory of targets: lists what their manifests record,
    and unfinished work. Changes nothing. Fields that were not recorded are blank.

    Of a single finished conversion that has statements (--sha256, --sign), also shows the way from training to it, and
    exits with 1 if a statement is missing, changed, or not signed as --signed-by asks.

    The cost is the peak memory of the conversion's process, or its memory limit if the peak was not measured,
    multiplied by its running time. Times are in UTC.

    \b
    Examples:
      reshard history --since 7d                      of the server named by PREFECT_API_URL
      reshard history --state failed --state crashed --json
      reshard history /data/llama/serving s3://bucket/serving
      reshard history out --signed-by release.pub     the way from training to one target
    """
    from reshard.core.conversion.history import ConversionState, HistoryFilter, parse_since
    from reshard.deployments.history import history_of_places, history_of_server

    begin = parse_since(since, datetime.now(UTC)) if since else None
    wanted = HistoryFilter(begin, frozenset(map(ConversionState, states)), source, target)
    if places and server:
        raise click.UsageError("--server and PLACE cannot be combined: leave one out")
    if storage and not places:
        raise click.UsageError("--storage: only valid with a PLACE")
    if signed_by and len(places) != 1:
        raise click.UsageError("--signed-by: only valid with one PLACE")
    history = (
        history_of_places(places, wanted, limit, storage=storage, signed_by=signed_by)
        if places
        else history_of_server(server, wanted, limit)
    )
    if as_json:
        print_json(history)
    else:
        print_blocks(islice(history.blocks(), 1 if is_quiet() else None))
    return 0 if history.lineage is None or history.lineage.intact else 1

"""`reshard history`."""

from datetime import UTC, datetime
from itertools import islice

import click

from reshard.cli.logs import Command, is_quiet
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import DIRECTORY, Choice
from reshard.cli.storages import storage_option

_STATES = (
    *("committed", "unfinished", "queued", "running", "waiting"),
    *("refused", "cancelled", "failed", "crashed", "unreadable"),
)
"""ConversionState's words: `--help` does not load its module."""


@click.command("history", cls=Command)
@click.argument("places", metavar="[PLACE]...", nargs=-1, type=DIRECTORY)
@click.option("--server", metavar="URL", default="", help="The Prefect server to ask, instead of PREFECT_API_URL's.")
@click.option(
    "--since",
    metavar="TIME",
    default="",
    help="Only conversions that began since then: 90m, 12h, 7d or 4w before now, or a date or time, UTC.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="The number of conversions to show, those that began last; 0: all.",
)
@click.option("--state", "states", type=Choice(_STATES), multiple=True, help="Only these; may be repeated.")
@click.option("--source", metavar="PATTERN", default="", help="Only sources that contain this, or match *, ? and […].")
@click.option("--target", metavar="PATTERN", default="", help="Only targets that contain this, or match *, ? and […].")
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
    storage: str,
    as_json: bool,
) -> None:
    """List conversions: when, who, from where to where, how much, how long, how verified, at what cost.

    Without a PLACE, those of a Prefect server: also what failed, was cancelled, is in progress or waits for approval.
    Each PLACE is a target, or a directory of targets: what is known from the manifests beside them, and what is
    unfinished there. Nothing is changed, and what was not recorded is left blank.

    The cost is the peak memory of the conversion's process, or its memory limit if that was not measured, times the
    time that it ran. Times are UTC.

    \b
    Examples:
      reshard history --since 7d                      of the server named by PREFECT_API_URL
      reshard history --state failed --state crashed --json
      reshard history /data/llama/serving s3://bucket/serving
    """
    from reshard.core.conversion.history import ConversionState, HistoryFilter, parse_since
    from reshard.deployments.history import history_of_places, history_of_server

    begin = parse_since(since, datetime.now(UTC)) if since else None
    wanted = HistoryFilter(begin, frozenset(map(ConversionState, states)), source, target)
    if places and server:
        raise click.UsageError("--server and a PLACE exclude each other: leave out one of them")
    if storage and not places:
        raise click.UsageError("--storage is for a PLACE: name one")
    history = (
        history_of_places(places, wanted, limit, storage=storage)
        if places
        else history_of_server(server, wanted, limit)
    )
    if as_json:
        print_json(history)
    else:
        print_blocks(islice(history.blocks(), 1 if is_quiet() else None))

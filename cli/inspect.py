"""`reshard inspect`."""

import click

from cli.output import print_json
from cli.storages import storage_named, storage_option


@click.command("inspect")
@click.argument("what", metavar="FILE|DIR|STRATEGY")
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(what: str, storage: str, as_json: bool) -> None:
    """Shows what is in a checkpoint file, a checkpoint or a strategy; which of these it is, is found out.

    A checkpoint file: its parameters with dtype, shape and size. A checkpoint (a directory, or a pattern with {rank}):
    its ranks, and the steps that they have. A converted checkpoint: its manifest. A strategy (a file, or a directory of
    the ranks' files): its stages, and how each parameter is cut. Contents are not read.

    \b
    Examples:
      reshard inspect checkpoint/rank_0/net-10_5.ckpt
      reshard inspect checkpoint
      reshard inspect strategy/strategy_0.ckpt --json
    """
    from cli.contents import describe, print_description

    with storage_named(storage, what):
        description = describe(what)
    if as_json:
        print_json(description)
    else:
        print_description(description)

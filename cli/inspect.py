"""`reshard inspect`."""

import click

from reshard.cli.logs import Command
from reshard.cli.output import print_json
from reshard.cli.parameters import PATH
from reshard.cli.storages import key_named, key_options, storage_named, storage_option


@click.command("inspect", cls=Command)
@click.argument("what", type=PATH, metavar="FILE|DIR|STRATEGY")
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def command(what: str, decrypt_key: str, decrypt_mode: str, storage: str, as_json: bool) -> None:
    """Show the content of a checkpoint file, a checkpoint or a strategy; its kind is detected.

    A checkpoint file: its parameters with dtype, shape and size, and the values of single numbers and texts, such as
    epoch_num. A checkpoint (a directory, or a pattern with {rank}): its ranks and their steps. A converted checkpoint:
    its manifest. A strategy (a file, or a directory of the ranks' files): its stages and the layout of each parameter.
    Other contents are not read.

    \b
    Examples:
      reshard inspect checkpoint/rank_0/net-10_5.ckpt
      reshard inspect checkpoint
      reshard inspect strategy/strategy_0.ckpt --json
    """
    from reshard.cli.contents import print_description
    from reshard.core.source.description import describe

    with storage_named(storage, what), key_named(decrypt_key, decrypt_mode):
        description = describe(what)
    if as_json:
        print_json(description)
    else:
        print_description(description)

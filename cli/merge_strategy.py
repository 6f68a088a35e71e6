"""`reshard merge-strategy`."""

import click

from reshard.cli.logs import Command, is_quiet
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import PATH
from reshard.cli.storages import check_output, storage_named, storage_option


@click.command("merge-strategy", cls=Command)
@click.argument("directory", type=PATH, metavar="DIR")
@click.argument("out", type=PATH)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(directory: str, out: str, overwrite: bool, storage: str, as_json: bool) -> None:
    """Merge the strategy files that a job's ranks wrote into DIR into one file, OUT.

    File names do not matter, and several files of one pipeline stage are accepted if they agree. OUT is JSON if its
    name ends in .json, else protobuf. DIR may also be a single strategy file, to write it in the other format.

    \b
    Examples:
      reshard merge-strategy strategy merged.ckpt
      reshard merge-strategy strategy merged.json --overwrite
    """
    from reshard.core.conversion.merge_strategy import merge_files

    check_output(out)
    with storage_named(storage, directory, out):
        report = merge_files(directory, out, overwrite)
    if as_json:
        print_json(report)
    elif not is_quiet():
        print_blocks(report.blocks())

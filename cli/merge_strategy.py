"""`reshard merge-strategy`."""

from typing import TYPE_CHECKING

import click

from cli.output import counted, print_json
from cli.storages import storage_named, storage_option
from core.errors import InputError

if TYPE_CHECKING:
    from core.storage.urls import Location
    from core.strategy.model import Strategy


@click.command("merge-strategy")
@click.argument("directory", metavar="DIR")
@click.argument("out")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(directory: str, out: str, overwrite: bool, storage: str, as_json: bool) -> None:
    """Merges the strategy files in DIR, which the ranks of one job wrote, into the one file OUT.

    Their names do not matter, and files of the same pipeline stage may be there several times as long as they agree.
    OUT is JSON if its name ends in .json, else protobuf. DIR may also be a strategy file, to be written in the other
    format.

    \b
    Examples:
      reshard merge-strategy strategy merged.ckpt
      reshard merge-strategy strategy merged.json --overwrite
    """
    with storage_named(storage, directory, out):
        location, strategy = _merge(directory, out, overwrite)
    stages, devices, parameters = len(strategy.stages), strategy.devices_per_stage, len(strategy.parameters)
    if as_json:
        document = {"url": str(location), "stages": stages, "devices_per_stage": devices, "parameters": parameters}
        print_json(document)
        return
    of_stages = f"{counted(stages, 'stage')} of {counted(devices, 'device')}"
    click.echo(f"{location}: {of_stages}, {counted(parameters, 'parameter')}")


def _merge(directory: str, out: str, overwrite: bool) -> "tuple[Location, Strategy]":
    from core.storage.files import kind_of
    from core.storage.urls import parse_url
    from core.strategy.files import read_strategy, write_strategy
    from core.target import check_apart

    location = parse_url(out)
    # inside, it would be taken for one more rank's file next time
    check_apart(parse_url(directory), location)
    kind = kind_of(location)
    if kind == "directory":
        raise InputError(f"{location}: is a directory; name the file to be written")
    if not overwrite and kind is not None:
        raise InputError(f"{location}: is there already. Name another file, or pass --overwrite to replace it")
    strategy = read_strategy(directory)
    write_strategy(strategy, out)
    return location, strategy

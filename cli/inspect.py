"""`reshard inspect`."""

from typing import Any

import click

from reshard.cli.logs import Command
from reshard.cli.options import conversion_options
from reshard.cli.output import print_json, print_report
from reshard.cli.parameters import PATH, Choice
from reshard.cli.progress import shown_progress
from reshard.cli.spelling import flag
from reshard.cli.storages import key_named, key_options, storage_named, storage_option
from reshard.core.options.validation import build_options
from reshard.core.request.source import INSPECTION_OPTIONS
from reshard.core.runtime.progress import reporting_to
from reshard.core.text.options import Option


@click.command("inspect", cls=Command)
@click.argument("what", type=PATH, metavar="FILE|DIR|STRATEGY")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--extract",
    nargs=2,
    type=(str, PATH),
    metavar="NAME FILE.npy",
    default=None,
    help="Write this parameter to a .npy file, block by block, whatever its size.",
)
@click.option("--rank", metavar="N", type=click.INT, help="Read this rank's shard instead of the whole tensor.")
@click.option(
    "--cast",
    type=Choice(["float32"]),
    help="With --extract: write 16-bit and 8-bit floats as float32, because numpy has no dtype for most of them.",
)
@click.option("--overwrite", is_flag=True, help="With --extract: replace the file.")
@conversion_options(INSPECTION_OPTIONS)
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Show the contents of a checkpoint file, a checkpoint or a strategy.

    For a checkpoint file, shows its parameters with dtype, shape and size, and the values of scalars and texts, such as
    epoch_num. For a checkpoint (a directory, or a pattern with {rank}), its ranks and their steps. For a converted
    checkpoint, its manifest. For a strategy (a file, or a directory of the ranks' files), its stages and the layout of
    each parameter. No other contents are read.

    With NAME, a parameter or a pattern, reads contents and shows minimum, maximum, mean, standard deviation, the
    numbers of NaN, Inf and zeros, the first values, and the files that hold them: for the whole tensor if its sharding
    is known, otherwise for each rank's shard. --extract writes a parameter to a .npy file.

    \b
    Examples:
      reshard inspect checkpoint/rank_0/net-10_5.ckpt
      reshard inspect checkpoint
      reshard inspect strategy/strategy_0.ckpt --json
      reshard inspect checkpoint embedding.weight --source-strategy strategy
      reshard inspect checkpoint 'layers.0.*' --rank 3
      reshard inspect model --extract lm_head.weight head.npy
    """
    names, extract = given["names"], given["extract"]
    if names and extract:
        raise click.UsageError("--extract takes the parameter's name itself: leave out NAME", context)
    if not extract and (given["cast"] or given["overwrite"]):
        raise click.UsageError("--cast and --overwrite: only valid with --extract", context)
    if not (names or extract):
        _describe(context, given)
        return
    if extract:
        _extract(given)
    else:
        _inspect(given)


def _describe(context: click.Context, given: dict[str, Any]) -> None:
    from reshard.cli.contents import print_description
    from reshard.core.source.description import describe

    without_effect = [name for name in ("rank", *INSPECTION_OPTIONS) if name != "root" and _is_given(context, name)]
    if without_effect:
        flags = ", ".join(flag(Option(name)) for name in without_effect)
        raise click.UsageError(f"{flags}: only valid with NAME or --extract", context)
    with storage_named(given["storage"], given["what"]), key_named(given["decrypt_key"], given["decrypt_mode"]):
        description = describe(given["what"], given["root"])
    if given["as_json"]:
        print_json(description)
    else:
        print_description(description)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _inspect(given: dict[str, Any]) -> None:
    from reshard.cli.storages import resources_named_in
    from reshard.core.conversion.inspection import inspect_parameters

    request = _request(given)
    with shown_progress() as progress, reporting_to(progress), resources_named_in(request):
        report = inspect_parameters(request, given["names"], given["rank"])
    print_report(report, as_json=given["as_json"])


def _extract(given: dict[str, Any]) -> None:
    from reshard.cli.storages import check_output, resources_named_in
    from reshard.core.conversion.extraction import extract_parameter

    name, file = given["extract"]
    check_output(file)
    request = _request(given)
    with shown_progress() as progress, reporting_to(progress), resources_named_in(request):
        written = extract_parameter(
            request, name, file, rank=given["rank"], overwrite=given["overwrite"], cast=given["cast"] or ""
        )
    print_report(written, as_json=given["as_json"])


def _request(given: dict[str, Any]) -> Any:
    """The request that opens the checkpoint."""
    from reshard.core.request.source import OpenRequest

    options = {name: given[name] for name in (*INSPECTION_OPTIONS, "decrypt_key", "decrypt_mode")}
    named = {"source": given["what"], "source_storage": given["storage"]}
    return build_options(OpenRequest, lambda name: flag(Option(name)), **named, **options)

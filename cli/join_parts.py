"""`reshard join-parts`."""

import click

from reshard.cli.logs import Command, is_quiet
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.progress import shown_progress
from reshard.cli.storages import check_output, storage_named, storage_option


@click.command("join-parts", cls=Command)
@click.argument("parts", type=PATH, metavar="PART...", nargs=-1, required=True)
@click.argument("target", type=DIRECTORY)
@click.option(
    "--shared-parameters",
    metavar="first|fail|STAGE",
    default="fail",
    show_default=True,
    help="If copies of a tied parameter, such as an embedding, differ between parts, which one to use. first: the "
    "first stage's; a number: that stage's; fail: stop.",
)
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(parts: tuple[str, ...], target: str, shared_parameters: str, storage: str, as_json: bool) -> None:
    """Join pipeline stages that were converted separately into one checkpoint, TARGET.

    Each PART is a directory that 'reshard convert' made from one stage, perhaps on another machine, with that stage's
    own strategy as the source strategy. Together, the parts must hold all parameters of their target strategy;
    parameters in several parts are compared, and written once. Files are copied side by side
    (rank_0/checkpoint_0_part0.ckpt, rank_0/checkpoint_0_part1.ckpt) and checked; TARGET appears once all are correct.
    MindSpore's load_segmented_checkpoints and all reshard commands can read its rank folders.

    \b
    Examples:
      reshard join-parts stage0 stage1 whole
      reshard join-parts s3://bucket/stage0 s3://bucket/stage1 s3://bucket/whole
    """
    from reshard.core.conversion.join_stages import join_parts

    check_output(target)
    with storage_named(storage, *parts, target), shown_progress() as progress:
        report = join_parts(parts, target, progress, shared_parameters=shared_parameters)
    if as_json:
        print_json(report)
    elif not is_quiet():
        print_blocks(report.blocks())

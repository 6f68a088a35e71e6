"""`reshard join-parts`."""

import click

from reshard.cli.field_options import field_options
from reshard.cli.logs import Command, is_quiet
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.progress import shown_progress
from reshard.cli.spelling import flag
from reshard.cli.storages import check_output
from reshard.core.options.validation import build_options
from reshard.core.request.joining import JoinRequest
from reshard.core.text.options import Option
from reshard.flows.blocks import resolvers_for

_SIGNATURES = ("sign", "sign_passphrase", "sign_certificate", "require_signed_by")
_OPTIONS = ("shared_parameters", "sha256", *_SIGNATURES, "storage")


@click.command("join-parts", cls=Command)
@click.argument("parts", type=PATH, metavar="PART...", nargs=-1, required=True)
@click.argument("target", type=DIRECTORY)
@field_options(_OPTIONS, JoinRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(as_json: bool, **options: object) -> None:
    """Join pipeline stages that were converted separately into one checkpoint, TARGET.

    Each PART is a directory that 'reshard convert' made from one stage, perhaps on another machine, with that stage's
    own strategy as the source strategy. Together, the parts must hold all parameters of their target strategy;
    parameters in several parts are compared, and written once. Files are copied side by side
    (rank_0/checkpoint_0_part0.ckpt, rank_0/checkpoint_0_part1.ckpt) and checked; TARGET appears once all are correct.
    MindSpore's load_segmented_checkpoints and all reshard commands can read its rank folders.

    A signed PART must be unchanged since it was signed. With --sha256 target or --sign, TARGET gets statements that
    continue those of all parts: 'reshard history' shows the way of each.

    \b
    Examples:
      reshard join-parts stage0 stage1 whole
      reshard join-parts stage0 stage1 whole --require-signed-by team.pub --sign file:team.key
      reshard join-parts s3://bucket/stage0 s3://bucket/stage1 s3://bucket/whole
    """
    from reshard.core.conversion.join_stages import join_parts, resources_to_join

    given = {name: value for name, value in options.items() if value is not None}
    request = build_options(JoinRequest, lambda name: flag(Option(name)), **given)
    check_output(request.target)
    resolvers = resolvers_for(request.storage, request.sign, request.sign_passphrase, request.require_signed_by)
    with resources_to_join(request, resolvers), shown_progress() as progress:
        report = join_parts(request, progress)
    if as_json:
        print_json(report)
    elif not is_quiet():
        print_blocks(report.blocks())

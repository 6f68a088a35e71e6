"""`reshard recover`."""

import click

from reshard.cli.options import conversion_options
from reshard.cli.output import print_report
from reshard.cli.parameters import PATH
from reshard.cli.requests import RequestCommand
from reshard.cli.storages import resources_named_in
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.source import RECOVERY_OPTIONS, SourceRequest

_OPTIONS = tuple(name for name in RECOVERY_OPTIONS if name != "fault_ranks")


@click.command(
    "recover",
    cls=RequestCommand,
    request=SourceRequest,
    fixed={"recover": True},
    passed_over=ConversionRequest.model_fields,
)
@click.argument("source", type=PATH)
@conversion_options(_OPTIONS)
@click.option("--fault-ranks", metavar="3,7", default="", help="Source ranks whose files to ignore.")
@click.option(
    "--group-info",
    metavar="URL",
    type=PATH,
    multiple=True,
    help="Groups of ranks that hold the same, if there is no strategy: a JSON list of lists of ranks, or a rank's "
    "MindSpore group file. May be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: SourceRequest, group_info: tuple[str, ...], as_json: bool) -> int:
    """Check whether a damaged checkpoint SOURCE can be recovered, and from which ranks; write nothing.

    Files that are missing, truncated or fail their CRC, and those of --fault-ranks, count as lost. Their slices are
    recoverable if other ranks hold the same. If all are, exits with 0, and 'reshard convert --recover' recovers them.
    Otherwise, lists every lost parameter and box, and the newest older step that is recoverable, and exits with 1.

    \b
    Examples:
      reshard recover ckpt --source-strategy strategy
      reshard recover ckpt --source-strategy strategy --fault-ranks 3,7 --json
      reshard recover ckpt --group-info group_info.json --step 10_5
    """
    from reshard.core.source.recovery import assess_recovery

    with resources_named_in(request):
        report = assess_recovery(request, group_info)
    print_report(report, as_json=as_json)
    return 0 if report.recoverable else 1

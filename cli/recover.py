"""`reshard recover`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.options import conversion_options
from reshard.cli.output import print_facts, print_json, print_more, print_table
from reshard.cli.parameters import PATH
from reshard.cli.rank_tables import Column, print_rank_table, rank_column, ranks_column
from reshard.cli.requests import RequestCommand
from reshard.cli.storages import resources_named_in
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.source import RECOVERY_OPTIONS, SourceRequest
from reshard.core.runtime.wording import counted, ranks_text

if TYPE_CHECKING:
    from reshard.core.source.damage import Substitute
    from reshard.core.source.recovery import LostRank, RecoveryReport

_OPTIONS = tuple(name for name in RECOVERY_OPTIONS if name != "fault_ranks")
_MAX_LISTED = 200


@click.command(
    "recover",
    cls=RequestCommand,
    request=SourceRequest,
    fixed={"recover": True},
    passed_over=ConversionRequest.model_fields,
)
@click.argument("source", type=PATH)
@conversion_options(_OPTIONS)
@click.option("--fault-ranks", metavar="3,7", default="", help="Source ranks whose files are ignored.")
@click.option(
    "--group-info",
    metavar="URL",
    type=PATH,
    multiple=True,
    help="Ranks that hold the same, if there is no strategy: a JSON list of lists of ranks, or MindSpore's group file "
    "of a rank. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: SourceRequest, group_info: tuple[str, ...], as_json: bool) -> int:
    """Check whether a damaged checkpoint SOURCE can be recovered, and from which ranks; write nothing.

    Files that are missing, truncated or fail their CRC, and those of --fault-ranks, count as lost. Their slices are
    recoverable if other ranks hold the same. Exits with 0 if all are: 'reshard convert --recover' recovers them. Exits
    with 1 if not, and lists every lost parameter and box, and the newest older step that is recoverable.

    \b
    Examples:
      reshard recover ckpt --source-strategy strategy
      reshard recover ckpt --source-strategy strategy --fault-ranks 3,7 --json
      reshard recover ckpt --group-info group_info.json --step 10_5
    """
    from reshard.core.source.recovery import assess_recovery

    with resources_named_in(request):
        report = assess_recovery(request, group_info)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 0 if report.recoverable else 1


def _print_report(report: "RecoveryReport") -> None:
    from reshard.core.source.recovery import StepState

    answers = {
        StepState.WHOLE: "WHOLE: every rank has its file",
        StepState.RECOVERABLE: "RECOVERABLE: other ranks hold all that the lost ones held; convert with --recover",
        StepState.LOST: f"NOT RECOVERABLE: {counted(len(report.lost), 'part')} no longer on any rank",
    }
    step = f", step {report.step}" if report.step else ""
    print_facts(
        [
            ("source", f"{report.source}{step}"),
            ("ranks", f"{report.world_size}, {len(report.lost_ranks)} of them lost"),
            ("answer", answers[report.state]),
            *(("note", note) for note in report.notes),
        ]
    )
    if report.lost_ranks:
        click.echo()
        lost_columns: list[Column[LostRank]] = [
            rank_column(lambda lost: lost.rank, "lost rank"),
            Column("why", lambda lost: lost.why),
        ]
        print_rank_table(lost_columns, report.lost_ranks, noun="lost rank")
    if report.stand_ins:
        click.echo()
        columns: list[Column[Substitute]] = [
            rank_column(lambda each: each.rank, "lost rank"),
            ranks_column("substitute", lambda each: (each.stand_in,), right=True),
            Column("slices", lambda each: each.slices, right=True),
        ]
        print_rank_table(columns, report.stand_ins, noun="lost rank")
    if report.lost:
        click.echo()
        print_table(
            ("lost parameter", "box", "should be on"),
            [
                (lost.parameter or "all that these ranks held", lost.box or "all of it", ranks_text(lost.ranks))
                for lost in report.lost[:_MAX_LISTED]
            ],
        )
        print_more(len(report.lost) - _MAX_LISTED)
    if report.other_steps:
        click.echo()
        print_table(
            ("other step", "state", "details"),
            [(other.step, other.state, other.message) for other in report.other_steps],
        )

"""`reshard plan`."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from reshard.cli.logs import print_note
from reshard.cli.options import PLANNING, GroupedCommand, conversion_options
from reshard.cli.output import print_blocks, print_facts, print_json, print_table
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.storages import check_output, resources_named_in
from reshard.core.options.fields import parse_size
from reshard.core.request.planning import ASSUMED_RATE_BYTES, PlanRequest
from reshard.core.runtime.wording import size_text

RATE_OPTION = "plan --rate"
"""What sets the rate of a plan's estimate."""


def _parse_rate(text: str) -> int:
    try:
        rate = parse_size(text.removesuffix("/s"))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not rate:
        raise click.BadParameter("must be greater than 0")
    return rate


@click.command("plan", cls=GroupedCommand, request=PlanRequest)
@click.argument("source", type=PATH)
@click.argument("target", type=DIRECTORY, required=False)
@conversion_options(PLANNING)
@click.option("--param", metavar="NAME", help="Show how source and target shards of this parameter overlap.")
@click.option(
    "--rank", type=click.INT, metavar="R", help="With --param: show the reads that fill it on this target rank."
)
@click.option(
    "--picture/--no-picture",
    default=None,
    help="Draw which source ranks feed which target ranks. Default: only on a terminal.",
)
@click.option("--html", metavar="FILE", type=PATH, help="Also write the plan, with pictures, to this web page.")
@click.option(
    "--rate",
    metavar="SIZE",
    default=size_text(ASSUMED_RATE_BYTES),
    show_default=True,
    callback=lambda ctx, param, value: _parse_rate(value),
    help="Bytes read or written per second, to estimate the time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    request: PlanRequest,
    rank: int | None,
    param: str | None,
    picture: bool | None,
    html: str | None,
    rate: int,
    as_json: bool,
) -> None:
    """Show what converting the checkpoint SOURCE would read and write.

    Writes nothing except the page of --html. Shows the size and source ranks of each target rank, or the rank that it
    is a copy of, and then a picture of which ranks feed which. With --param, shows the shards of one parameter on both
    sides and how they overlap. With --param and --rank, shows the boxes that fill it on that rank, and their offsets in
    the source files. TARGET is optional.

    \b
    Examples:
      reshard plan ckpt --source-strategy strategy --target-strategy new_strategy.ckpt --html plan.html
      reshard plan ckpt --source-strategy strategy --json
      reshard plan ckpt --source-strategy strategy --target-strategy new.ckpt --param embed.weight
      reshard plan ckpt --source-strategy strategy --target-strategy new.ckpt --param embed.weight --rank 3
    """
    if rank is not None and param is None:
        raise click.UsageError("--rank: only valid with --param")
    if rank is not None and html:
        raise click.UsageError("--html and --rank cannot be combined: --html shows all ranks")
    check_output(html or "")
    from reshard.core.conversion.planning import describe_plan
    from reshard.core.conversion.report import with_estimate
    from reshard.core.conversion.views.parameter import describe_overlaps, describe_reads, find_overlaps

    with resources_named_in(request):
        plan, summary = describe_plan(request)
    summary = with_estimate(summary, rate)
    if rank is not None and param is not None:
        reads = describe_reads(plan, rank, param)
        if as_json:
            print_json(reads)
        else:
            _print_reads(reads)
        return
    overlaps = find_overlaps(plan, param) if param is not None else None
    if html:
        from reshard.core.conversion.views.page import plan_page, write_page

        write_page(html, plan_page(plan, summary, overlaps))
        print_note(f"reshard: the plan is shown in {html}")
    if as_json:
        print_json(summary if overlaps is None else describe_overlaps(overlaps))
    elif overlaps is not None:
        from reshard.cli.overlaps import print_overlaps

        print_overlaps(overlaps)
    else:
        print_blocks(summary.blocks(RATE_OPTION))
        if picture or (picture is None and _is_terminal()):
            from reshard.cli.heatmap import print_feeds

            click.echo()
            print_feeds(plan)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _with_axes(box: str, axes: Sequence[int] | None) -> str:
    return box if axes is None else f"{box}, axes {', '.join(map(str, axes))}"


def _print_reads(reads: dict[str, Any]) -> None:
    facts = [
        ("parameter", f"{reads['parameter']}, {reads['dtype']} {reads['shape']}"),
        ("of rank", f"{reads['rank']}, {reads['file']}"),
        ("box", f"{reads['box']} of the whole tensor, {reads['size_bytes']} bytes"),
    ]
    if reads["copy_of"] is not None:
        facts.append(("copy of", f"rank {reads['copy_of']}: its file is copied, and nothing is read for this one"))
    print_facts(facts)
    click.echo()
    print_table(
        ("source rank", "of", "source box", "target box", "bytes", "runs", "from offset", "to offset"),
        [
            (
                read["source_rank"],
                read["source_parameter"],
                read["source_box"],
                _with_axes(read["target_box"], read["axes"]),
                read["size_bytes"],
                read["runs"],
                *(read["file_offsets"] or ("", "")),
            )
            for read in reads["reads"]
        ],
        right=("source rank", "bytes", "runs", "from offset", "to offset"),
        optional=("of", "runs", "bytes", "target box"),
    )

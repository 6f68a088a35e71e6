"""`reshard plan`."""

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from reshard.cli.logs import print_note
from reshard.cli.options import PLANNING, GroupedCommand, conversion_options
from reshard.cli.output import print_facts, print_json, print_more, print_table
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.rank_tables import Column, file_column, print_rank_table, rank_column, ranks_column
from reshard.cli.storages import check_output, resources_named_in
from reshard.core.options.fields import parse_size
from reshard.core.request.planning import ASSUMED_RATE_BYTES, PlanRequest
from reshard.core.runtime.wording import listed, seconds_text, size_text

if TYPE_CHECKING:
    from reshard.core.conversion.report import PlannedRank, PlanSummary

_MAX_CHANGES = 16
"""Rows shown of changed parameters, and of excluded ones."""
_MAX_SOURCES = 4


def _parse_rate(text: str) -> int:
    try:
        rate = parse_size(text.removesuffix("/s"))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not rate:
        raise click.BadParameter("must be more than nothing")
    return rate


@click.command("plan", cls=GroupedCommand, request=PlanRequest)
@click.argument("source", type=PATH)
@click.argument("target", type=DIRECTORY, required=False)
@conversion_options(PLANNING)
@click.option("--param", metavar="NAME", help="Show how the source and target shards of this parameter overlap.")
@click.option("--rank", type=click.INT, metavar="R", help="With --param: the reads that fill it on this target rank.")
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
    help="Bytes that are read or written in a second, from which the time is estimated.",
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

    Writes nothing but the page of --html. Shows for each target rank its size, its source ranks, and the rank that it
    is a copy of; then a picture of which ranks feed which. With --param: the shards of one parameter on both sides, and
    how they overlap. With --param and --rank: the boxes that fill it on that rank, and their offsets in the source's
    files. TARGET is optional.

    \b
    Examples:
      reshard plan ckpt --source-strategy strategy --target-strategy new_strategy.ckpt --html plan.html
      reshard plan ckpt --source-strategy strategy --json
      reshard plan ckpt --source-strategy strategy --target-strategy new.ckpt --param embed.weight
      reshard plan ckpt --source-strategy strategy --target-strategy new.ckpt --param embed.weight --rank 3
    """
    if rank is not None and param is None:
        raise click.UsageError("--rank goes with --param, which names a parameter of the rank")
    if rank is not None and html:
        raise click.UsageError("--html shows a parameter on all ranks: leave out --rank, or --html")
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
        print_plan(summary, request.chosen_ranks(plan.target_ranks))
        if picture or (picture is None and _is_terminal()):
            from reshard.cli.heatmap import print_feeds

            click.echo()
            print_feeds(plan)


def print_plan(summary: "PlanSummary", ranks: Collection[int]) -> None:
    """Print a plan's summary, and a table of its `ranks`."""
    from reshard.core.conversion.plan_notes import substitutes_text
    from reshard.core.conversion.report import shapes_facts, worlds_text
    from reshard.core.runtime.summary import FILE

    classes = f"{summary.layout_classes} layout class{'' if summary.layout_classes == 1 else 'es'}"
    resharded = f"resharded, in {classes}; {len(summary.carried)} copied unchanged"
    print_facts(
        [
            ("source", f"{summary.source}, step {summary.step}" if summary.step else summary.source),
            ("ranks", worlds_text(summary)),
            ("format", summary.format),
            ("parameters", f"{summary.parameters} {'made whole' if summary.is_whole else resharded}"),
            *shapes_facts(summary),
            ("to read", f"{size_text(summary.read_bytes)} of the source, plus small gaps"),
            ("to write", size_text(summary.written_bytes)),
            ("time", _time_text(summary)),
            *([] if summary.free_bytes is None else [_room_fact(summary.needed_bytes or 0, summary.free_bytes)]),
            ("buffers", f"{size_text(summary.buffer_bytes)}, for {summary.workers} at once"),
            *([("RECOVERED", substitutes_text(summary.stand_ins))] if summary.stand_ins else []),
            *(("note", note) for note in summary.notes),
        ]
    )
    _print_changes(summary)
    click.echo()
    columns: list[Column[PlannedRank]] = [
        rank_column(lambda rank: rank.rank, "number" if summary.target_kind == FILE else "rank"),
        file_column(lambda rank: rank.rank, lambda rank: rank.file),
        Column("shards", lambda rank: size_text(rank.shard_bytes), right=True),
        ranks_column("source ranks", lambda rank: rank.source_ranks),
        ranks_column("copy of", lambda rank: () if rank.copy_of is None else (rank.copy_of,), right=True),
    ]
    print_rank_table(columns, [rank for rank in summary.ranks if rank.rank in ranks], noun=summary.target_kind)


def _time_text(summary: "PlanSummary") -> str:
    rate = f"{size_text(summary.assumed_rate_bytes or 0)}/s"
    return f"about {seconds_text(summary.estimated_seconds or 0)} at {rate} (plan --rate): {summary.traffic}"


def _room_fact(needed_bytes: int, free_bytes: int) -> tuple[str, str]:
    from reshard.core.storage.publishing import no_room_text

    if needed_bytes > free_bytes:
        return ("WARNING", f"the target {no_room_text(needed_bytes, free_bytes)}; the conversion would stop at once")
    return ("room", f"{size_text(needed_bytes)} needed, {size_text(free_bytes)} free")


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _print_changes(summary: "PlanSummary") -> None:
    """Print tables of changed and of excluded parameters; rows beyond a limit are counted."""
    if summary.effects:
        click.echo()
        print_table(
            ("parameter", "made from", "how", "dtype", "shape"),
            [
                (
                    effect.parameter,
                    _joined(effect.sources),
                    ", ".join(effect.how),
                    _from_to(_joined(effect.source_dtypes), effect.dtype),
                    _from_to(_joined([str(list(shape)) for shape in effect.source_shapes]), str(list(effect.shape))),
                )
                for effect in summary.effects[:_MAX_CHANGES]
            ],
            optional=("made from", "shape", "dtype"),
        )
        print_more(len(summary.effects) - _MAX_CHANGES, " changed")
    if summary.excluded:
        click.echo()
        print_table(("left out", "by"), [(each.parameter, each.by) for each in summary.excluded[:_MAX_CHANGES]])
        print_more(len(summary.excluded) - _MAX_CHANGES, " left out")


def _joined(names: Sequence[str]) -> str:
    return listed(names, _MAX_SOURCES, " + ")


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


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

"""`reshard plan`."""

import math
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from reshard.cli.options import PLANNING, GroupedCommand, conversion_options
from reshard.cli.output import print_facts, print_json, print_line, print_table
from reshard.cli.storages import check_output, resources_named_in
from reshard.core.errors import InputError
from reshard.core.request.planning import PlanRequest
from reshard.core.request.validation import build_options
from reshard.core.runtime.wording import ranks_text, size_text

if TYPE_CHECKING:
    from reshard.core.conversion.report import PlanSummary
    from reshard.core.plan.model import ParameterPlan, ReadItem
    from reshard.core.plan.overlaps import ParameterOverlaps
    from reshard.core.plan.plan import ConversionPlan
    from reshard.core.tensor.slices import Extent

_MOST_EFFECTS = 16
"""Of changed parameters, and of those that are left out, that are shown."""
_MOST_SOURCES = 4


@click.command("plan", cls=GroupedCommand)
@click.argument("source")
@click.argument("target", required=False)
@conversion_options(PLANNING)
@click.option(
    "--param",
    metavar="NAME",
    help="Show how the cells of this parameter, the source's and the target's, lie over each other.",
)
@click.option("--rank", type=click.INT, metavar="R", help="With --param: what fills it on this target rank, in bytes.")
@click.option(
    "--picture/--no-picture",
    default=None,
    help="Draw which source ranks feed which target ranks, or do not. By default that is done on a terminal.",
)
@click.option("--html", metavar="FILE", help="Write the plan, with pictures, to this web page as well.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    source: str,
    target: str | None,
    rank: int | None,
    param: str | None,
    picture: bool | None,
    html: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Shows what converting the checkpoint SOURCE would read and write; writes nothing but the page of --html.

    For every target rank: its size, the source ranks that it is made from, and the rank that it is a copy of; then a
    picture of which ranks feed which. With --param: how one parameter is cut on both sides, and what is taken from
    where; with --rank as well: the boxes that fill it there, and where they lie in the source's files. TARGET may be
    left out.

    \b
    Examples:
      reshard plan ckpt --source-strategy strategy --target-strategy new_strategy.ckpt --html plan.html
      reshard plan ckpt --source-strategy strategy --json
      reshard plan ckpt --source-strategy strategy --target-strategy new.ckpt --param model.embed.weight
      reshard plan ckpt --source-strategy strategy --target-strategy new.ckpt --param model.embed.weight --rank 3
    """
    if rank is not None and param is None:
        raise click.UsageError("--rank goes with --param, which says which parameter of the rank")
    if rank is not None and html:
        raise click.UsageError("--html shows a parameter on all ranks: leave out --rank, or --html")
    check_output(html or "")
    request = build_options(PlanRequest, source=source, target=target or "", **options)
    from reshard.core.conversion.planning import describe_plan

    with resources_named_in(request):
        plan, summary = describe_plan(request)
    if rank is not None and param is not None:
        reads = describe_reads(plan, rank, param)
        if as_json:
            print_json(reads)
        else:
            _print_reads(reads)
        return
    overlaps = _overlaps(plan, param) if param is not None else None
    if html:
        _write_page(html, plan, summary, overlaps)
    if overlaps is not None:
        _show_overlaps(overlaps, as_json)
    elif as_json:
        print_json(summary)
    else:
        print_plan(summary, request.chosen_ranks(plan.target_ranks))
        if picture or (picture is None and _is_terminal()):
            _draw(plan)


def print_plan(summary: "PlanSummary", ranks: Collection[int]) -> None:
    """A plan's summary, and a table of those ranks."""
    from reshard.core.conversion.plan_notes import substitutes_text
    from reshard.core.conversion.report import worlds_text
    from reshard.core.runtime.summary import FILE

    unified = summary.target_kind == FILE
    step = f", step {summary.step}" if summary.step else ""
    classes = f"{summary.layout_classes} different pair{'' if summary.layout_classes == 1 else 's'} of cuts"
    cut_anew = f"cut anew, by {classes}; {len(summary.carried)} copied as they are"
    print_facts(
        [
            ("source", f"{summary.source}{step}"),
            ("ranks", worlds_text(summary)),
            ("format", summary.format),
            ("parameters", f"{summary.parameters} {'made whole' if unified else cut_anew}"),
            ("needed", f"{size_text(summary.read_bytes)} of the source; small gaps are read as well"),
            ("to write", size_text(summary.written_bytes)),
            ("buffers", f"{size_text(summary.buffer_bytes)}, for {summary.workers} at once"),
            *([("RECOVERED", substitutes_text(summary.stand_ins))] if summary.stand_ins else []),
            *(("note", note) for note in summary.notes),
        ]
    )
    _print_effects(summary)
    click.echo()
    print_table(
        ("number" if unified else "rank", "file", "shards", "source ranks", "copy of"),
        [
            (
                rank.rank,
                rank.file,
                size_text(rank.shard_bytes),
                ranks_text(rank.source_ranks),
                "" if rank.copy_of is None else rank.copy_of,
            )
            for rank in summary.ranks
            if rank.rank in ranks
        ],
        right=("number", "rank", "shards", "copy of"),
    )


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _draw(plan: "ConversionPlan") -> None:
    from reshard.cli.heatmap import print_feeds

    click.echo()
    print_feeds(plan)


def _overlaps(plan: "ConversionPlan", name: str) -> "ParameterOverlaps":
    """How the cells of a parameter lie over each other.

    Raises:
        InputError: there is no such parameter, or it is not cut.
    """
    from reshard.core.plan.overlaps import overlaps_of

    parameter = next((found for found in plan.match.resharded if found.name == name), None)
    if parameter is not None:
        return overlaps_of(plan, parameter)
    if any(carried.name == name for carried in plan.match.passed_through):
        raise InputError(f"no strategy knows {name!r}: every target rank gets a whole copy; --rank R shows from where")
    if any(appended.name == name for appended in plan.match.appended):
        raise InputError(f"{name!r} is appended to every target file, and from no source rank")
    if name in plan.match.dropped:
        raise InputError(f"{name!r} is dropped: the target's strategy does not have it")
    if name in plan.match.excluded:
        raise InputError(f"{name!r} is left out by {plan.match.excluded[name]}")
    raise InputError(f"the target has no parameter {name!r}{_near(name, [each.name for each in plan.match.resharded])}")


def _show_overlaps(overlaps: "ParameterOverlaps", as_json: bool) -> None:
    from reshard.cli.overlaps import describe_overlaps, print_overlaps

    if as_json:
        print_json(describe_overlaps(overlaps))
    else:
        print_overlaps(overlaps)


def _write_page(
    path: str, plan: "ConversionPlan", summary: "PlanSummary", overlaps: "ParameterOverlaps | None"
) -> None:
    from reshard.core.conversion.views.page import plan_page, write_page

    write_page(path, plan_page(plan, summary, overlaps))
    print_line(f"reshard: the plan is shown in {path}", err=True)


def _print_effects(summary: "PlanSummary") -> None:
    """Tables of what changes do, and of what they leave out; the rest is counted."""
    if summary.effects:
        click.echo()
        print_table(
            ("parameter", "made from", "how", "dtype", "shape"),
            [
                (
                    effect.parameter,
                    _first_few(effect.sources),
                    ", ".join(effect.how),
                    _from_to(_first_few(effect.source_dtypes), effect.dtype),
                    _from_to(_first_few([str(list(shape)) for shape in effect.source_shapes]), str(list(effect.shape))),
                )
                for effect in summary.effects[:_MOST_EFFECTS]
            ],
        )
        _print_rest(len(summary.effects), "changed")
    if summary.excluded:
        click.echo()
        print_table(("left out", "by"), [(each.parameter, each.by) for each in summary.excluded[:_MOST_EFFECTS]])
        _print_rest(len(summary.excluded), "left out")


def _print_rest(count: int, what: str) -> None:
    if count > _MOST_EFFECTS:
        click.echo(f"and {count - _MOST_EFFECTS} more {what}; --json has all")


def _first_few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SOURCES
    return " + ".join([*names[:_MOST_SOURCES], *([f"{more} more"] if more > 0 else [])])


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def describe_reads(plan: "ConversionPlan", rank: int, name: str) -> dict[str, Any]:
    """What fills one parameter of one target rank, as JSON.

    Boxes are in the coordinates of the shards; where there are `axes`, target axis i is source axis `axes[i]`. Of each
    read `file_offsets` are its first byte in the source file and the byte after its last, and it consists of `runs`
    contiguous runs of equal length.

    Raises:
        InputError: there is no such rank, or it has no such parameter.
    """
    rank_plan = plan.rank_plan(rank)
    parameter = next((found for found in rank_plan.parameters if found.name == name), None)
    if parameter is None:
        raise InputError(
            f"target rank {rank} has no parameter {name!r}{_near(name, [each.name for each in rank_plan.parameters])}"
        )
    return {
        "rank": rank,
        "file": plan.file_name(rank),
        "copy_of": rank_plan.copy_of,
        "parameter": name,
        "dtype": parameter.dtype.name,
        "shape": list(parameter.box.shape),
        "box": str(parameter.box),
        "size_bytes": parameter.size_bytes,
        "reads": [_describe_read(plan, parameter, read) for read in parameter.reads],
    }


def _describe_read(plan: "ConversionPlan", parameter: "ParameterPlan", read: "ReadItem") -> dict[str, Any]:
    from reshard.core.tensor.slices import bounding_extent, contiguous_axis

    entry = plan.source_entry(read.source_rank, parameter.sources[read.source].name)
    described = {
        "source_rank": read.source_rank,
        "source_file": plan.inputs.catalog.records[read.source_rank].location,
        "source_parameter": parameter.sources[read.source].name,
        "source_box": str(read.source_box),
        "target_box": str(read.target_box),
        "axes": None if read.axes is None else list(read.axes),
        "size_bytes": read.source_box.size * entry.dtype.itemsize,
    }
    if not entry.extents or not read.source_box.size:
        # a text stands in the header, and what is empty is nowhere
        return described | {"runs": 0, "file_offsets": None}
    span = bounding_extent(read.source_box, entry.shape, entry.dtype.itemsize)
    axis = contiguous_axis(read.source_box, entry.shape)
    last = span.offset + span.length - 1
    return described | {
        "runs": math.prod(read.source_box.shape[:axis]),
        "file_offsets": [_file_offset(entry.extents, span.offset), _file_offset(entry.extents, last) + 1],
    }


def _file_offset(extents: "Sequence[Extent]", position: int) -> int:
    """Where byte `position` of a shard is in its file."""
    for extent in extents:
        if position < extent.length:
            return extent.offset + position
        position -= extent.length
    raise ValueError(f"{position} bytes beyond the end of the shard")


def _near(name: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, names, 3)
    return f"; is it one of {', '.join(near)}?" if near else ""


def _turned(box: str, axes: Sequence[int] | None) -> str:
    return box if axes is None else f"{box}, axes {', '.join(map(str, axes))}"


def _print_reads(reads: dict[str, Any]) -> None:
    facts = [
        ("parameter", f"{reads['parameter']}, {reads['dtype']} {reads['shape']}"),
        ("of rank", f"{reads['rank']}, {reads['file']}"),
        ("box", f"{reads['box']} of the whole tensor, {reads['size_bytes']} bytes"),
    ]
    if reads["copy_of"] is not None:
        facts.append(("copy of", f"rank {reads['copy_of']}: that one's file is copied, so nothing is read for this"))
    print_facts(facts)
    click.echo()
    print_table(
        ("source rank", "of", "source box", "target box", "bytes", "runs", "from offset", "to offset"),
        [
            (
                read["source_rank"],
                read["source_parameter"],
                read["source_box"],
                _turned(read["target_box"], read["axes"]),
                read["size_bytes"],
                read["runs"],
                *(read["file_offsets"] or ("", "")),
            )
            for read in reads["reads"]
        ],
        right=("source rank", "bytes", "runs", "from offset", "to offset"),
    )

"""How the shards of one parameter overlap, as tables and as JSON."""

from collections.abc import Iterator

import click

from reshard.cli.output import print_facts, print_line, print_table
from reshard.core.plan.overlaps import ParameterOverlaps, TargetCell
from reshard.core.runtime.wording import counted, ranks_text, size_text


def print_overlaps(overlaps: ParameterOverlaps) -> None:
    """Print tables of the source shards, and of the overlaps that fill each target shard."""
    parameter = overlaps.parameter
    print_facts([("parameter", f"{parameter.name}, {parameter.dtype} {list(parameter.shape)}")])
    for number, source in enumerate(parameter.sources):
        cells = [cell for cell in overlaps.source_cells if cell.source == number]
        click.echo()
        print_line(f"source: {source.name}, {source.dtype} {list(source.shape)}, {counted(len(cells), 'shard')}")
        print_table(("ranks", "shard"), [(ranks_text(cell.ranks) or "lost", cell.box) for cell in cells])
    several = len(parameter.sources) > 1
    # elements have the same place on both sides, unless declared changes moved them
    boxes = ("box",) if parameter.is_whole else ("source box", "target box")
    headers = ("ranks", "shard", "from rank", *(("of",) if several else ()), *boxes, "size")
    for stage, target_cells in overlaps.target_cells.items():
        click.echo(f"\ntarget: {overlaps.place(stage)}, {counted(len(target_cells), 'shard')}")
        rows = [row for cell in target_cells for row in _rows(overlaps, cell, several)]
        print_table(headers, rows, right=("from rank", "size"))


def _rows(overlaps: ParameterOverlaps, cell: TargetCell, several: bool) -> Iterator[tuple[object, ...]]:
    """A row for each overlap; only the first shows the shard."""
    parameter = overlaps.parameter
    head: tuple[object, object] = (ranks_text(cell.ranks), cell.box)
    for overlap in cell.overlaps:
        name = (parameter.sources[overlap.source].name,) if several else ()
        boxes = (overlap.source_box,) if parameter.is_whole else (overlap.source_box, overlap.target_box)
        yield (*head, overlap.source_rank, *name, *boxes, size_text(overlaps.size_bytes(overlap)))
        head = ("", "")

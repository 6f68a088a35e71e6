"""`reshard diff`."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from reshard.cli.options import conversion_options
from reshard.cli.output import print_json, print_line, print_table
from reshard.cli.progress import shown_progress
from reshard.core.request.comparison import ComparisonRequest, build_comparison
from reshard.core.runtime.wording import seconds_text, size_text
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.verification.comparison_report import ComparisonReport

_Row = tuple[str, str, str]
_MOST_LISTED = 50
_OPTIONS = tuple(name for name in ComparisonRequest.model_fields if name not in ("a", "b"))


@click.command("diff")
@click.argument("a")
@click.argument("b")
@conversion_options(_OPTIONS, ComparisonRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(as_json: bool, **options: Any) -> int:
    """Tells whether the checkpoints A and B are the same model, whatever their strategies and formats; writes nothing.

    Every copy of every slice is read on both sides. Listed are parameters that only one side has, and those that differ
    in shape, dtype or content: how many elements, and of floating-point numbers the largest difference and where it is.
    Ends with 0 if they are the same, with 1 if not.

    A side may also be what 'reshard fingerprint --json' told of a checkpoint that is elsewhere.

    \b
    Examples:
      reshard diff ckpt out --strategy-a strategy --strategy-b new_strategy.ckpt
      reshard diff ckpt export.safetensors --strategy-a strategy --select weights-only --ignore-dtype
      reshard diff ckpt there.json --strategy-a strategy
    """
    request = build_comparison(**options)
    from reshard.core.verification.compare import compare_checkpoints

    names = (request.storage_a, request.storage_b, request.decrypt_key_a, request.decrypt_key_b)
    with shown_progress("comparing") as progress:
        report = compare_checkpoints(request, progress, resolvers_for(*names))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 0 if report.same else 1


def _listed(rows: Sequence[_Row]) -> list[_Row]:
    """As many rows as are shown: some of each way to differ, so that none hides behind another."""
    ways = Counter(differs_in for _, differs_in, _ in rows)
    room = _MOST_LISTED
    shares = {}
    for place, (way, count) in enumerate(sorted(ways.items(), key=lambda item: item[1])):
        shares[way] = min(count, room // (len(ways) - place))
        room -= shares[way]
    return [row for way in ways for row in [row for row in rows if row[1] == way][: shares[way]]]


def _print_report(report: "ComparisonReport") -> None:
    print_line(report.verdict)
    if report.rows:
        click.echo()
        print_table(("parameter", "differs in", "what"), _listed(report.rows))
        if len(report.rows) > _MOST_LISTED:
            click.echo(f"… and {len(report.rows) - _MOST_LISTED} more; --json lists all")
    for letter, side in (("A", report.a), ("B", report.b)):
        for note in side.notes:
            print_line(f"note on {letter}: {note}")
    for note in report.notes:
        print_line(f"note: {note}")
    rate = report.read_bytes / report.seconds if report.seconds else 0.0
    read = f"{size_text(report.read_bytes)} of contents read in {seconds_text(report.seconds)}"
    click.echo(f"{read}, {size_text(rate)}/s", err=True)

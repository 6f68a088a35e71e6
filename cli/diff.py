"""`reshard diff`."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from reshard.cli.field_options import field_options
from reshard.cli.logs import print_note
from reshard.cli.output import print_json, print_line, print_more, print_table
from reshard.cli.parameters import PATH
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.runtime.wording import seconds_text, size_text
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.verification.comparison_report import ComparisonReport

_Row = tuple[str, str, str]
_MAX_LISTED = 50
_OPTIONS = tuple(name for name in ComparisonRequest.model_fields if name not in ("a", "b"))


@click.command("diff", cls=RequestCommand, request=ComparisonRequest)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@field_options(_OPTIONS, ComparisonRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(request: ComparisonRequest, as_json: bool) -> int:
    """Compare the checkpoints A and B: are they the same model, whatever their strategies and formats?

    Reads all replicas of every slice on both sides; writes nothing. Lists parameters that only one side has, and those
    that differ in shape, dtype or content, with the number of elements and, of floating-point numbers, the largest
    difference and its place. Exits with 0 if the models are the same, with 1 if not.

    A side may also be the output of 'reshard fingerprint --json' for a checkpoint on another machine.

    \b
    Examples:
      reshard diff ckpt out --strategy-a strategy --strategy-b new_strategy.ckpt
      reshard diff ckpt export.safetensors --strategy-a strategy --select weights-only --ignore-dtype
      reshard diff ckpt there.json --strategy-a strategy
      reshard diff ckpt out --strategy-a strategy --changes changes.yaml
    """
    request.side("a")  # checks the options that both sides share
    from reshard.core.verification.compare import compare_checkpoints

    names = (request.storage_a, request.storage_b, request.decrypt_key_a, request.decrypt_key_b)
    with shown_progress() as progress:
        report = compare_checkpoints(request, progress, resolvers_for(*names))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 0 if report.same else 1


def _listed(rows: Sequence[_Row]) -> list[_Row]:
    """The rows to show: some of each kind of difference, so that none hides another."""
    kinds = Counter(differs_in for _, differs_in, _ in rows)
    room = _MAX_LISTED
    shares = {}
    for place, (kind, count) in enumerate(sorted(kinds.items(), key=lambda item: item[1])):
        shares[kind] = min(count, room // (len(kinds) - place))
        room -= shares[kind]
    return [row for kind in kinds for row in [row for row in rows if row[1] == kind][: shares[kind]]]


def _print_report(report: "ComparisonReport") -> None:
    print_line(report.verdict)
    if report.rows:
        click.echo()
        print_table(("parameter", "differs in", "what"), _listed(report.rows))
        print_more(len(report.rows) - _MAX_LISTED)
    for letter, side in (("A", report.a), ("B", report.b)):
        for note in side.notes:
            print_line(f"note on {letter}: {note}")
    for note in report.notes:
        print_line(f"note: {note}")
    rate = report.read_bytes / report.seconds if report.seconds else 0.0
    read = f"{size_text(report.read_bytes)} of contents read in {seconds_text(report.seconds)}"
    print_note(f"{read}, {size_text(rate)}/s")

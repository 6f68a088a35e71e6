"""`reshard diff`."""

import click

from reshard.cli.field_options import field_options
from reshard.cli.logs import print_note
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import PATH
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.runtime.wording import seconds_text, size_text
from reshard.flows.blocks import resolvers_for

_OPTIONS = tuple(name for name in ComparisonRequest.model_fields if name not in ("a", "b"))


@click.command("diff", cls=RequestCommand, request=ComparisonRequest)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@field_options(_OPTIONS, ComparisonRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(request: ComparisonRequest, as_json: bool) -> int:
    """Check whether the checkpoints A and B hold the same model, whatever their strategies and formats.

    Reads all replicas of every slice on both sides; writes nothing. Lists parameters that only one side has, and those
    that differ in shape, dtype or content, with the number of differing elements and, for floating-point parameters,
    the largest difference and its index. Exits with 0 if the models are the same, with 1 if not.

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
        print_blocks(report.blocks())
        rate = report.read_bytes / report.seconds if report.seconds else 0.0
        read = f"{size_text(report.read_bytes)} of contents read in {seconds_text(report.seconds)}"
        print_note(f"{read}, {size_text(rate)}/s")
    return 0 if report.same else 1

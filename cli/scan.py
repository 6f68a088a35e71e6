"""`reshard scan`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.logs import print_note
from reshard.cli.options import conversion_options
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import PATH
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.source import FINGERPRINT_OPTIONS, FingerprintRequest
from reshard.core.runtime.wording import seconds_text, size_text
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.verification.scan_report import ScanReport


@click.command("scan", cls=RequestCommand, request=FingerprintRequest)
@click.argument("source", type=PATH, metavar="CHECKPOINT")
@conversion_options(FINGERPRINT_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(request: FingerprintRequest, as_json: bool) -> int:
    """Look for NaN and Inf in all floating-point parameters of a checkpoint; writes nothing.

    Reads every file once, including replicas, and needs no strategy: it finds a NaN even in a single replica, and names
    the file. With a strategy, or if the checkpoint records its own sharding, also shows the index in the whole tensor.
    Lists parameters that are entirely zero, too. Exits with 0 if all numbers are finite, with 1 if not.

    \b
    Examples:
      reshard scan ckpt
      reshard scan ckpt --source-strategy strategy --select weights-only
      reshard scan s3://bucket/ckpt --step 10_5 --json
    """
    from reshard.core.verification.scan import scan_checkpoint

    with shown_progress() as progress:
        report = scan_checkpoint(request, progress, resolvers_for(request.source_storage, request.decrypt_key))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 0 if report.finite else 1


def _print_report(report: "ScanReport") -> None:
    print_blocks(report.blocks())
    rate = report.read_bytes / report.seconds if report.seconds else 0.0
    print_note(f"{size_text(report.read_bytes)} read in {seconds_text(report.seconds)}, {size_text(rate)}/s")

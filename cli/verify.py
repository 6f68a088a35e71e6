"""`reshard verify`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.field_options import field_options
from reshard.cli.output import print_json, print_line, print_more
from reshard.cli.parameters import DIRECTORY
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.wording import counted, seconds_text, size_text
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.verification.report import VerificationReport

_MAX_PROBLEMS = 50
_OPTIONS = tuple(name for name in VerificationRequest.model_fields if name != "target")


@click.command("verify", cls=RequestCommand, request=VerificationRequest)
@click.argument("target", type=DIRECTORY)
@field_options(_OPTIONS, VerificationRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: VerificationRequest, as_json: bool) -> int:
    """Check the converted checkpoint TARGET against its manifest.

    Compares each file with the record made when it was written. Exits with 0 if all files are right, with 1 if not.
    Needs only TARGET, and its key if it is encrypted; --level content also needs the source. If TARGET holds several
    iterations, the one that its tracker names is checked.

    \b
    Examples:
      reshard verify out
      reshard verify out --level structure      reads headers only
      reshard verify out --level content        reads all of the source again
      reshard verify s3://bucket/out --json
    """
    from reshard.core.verification.published import resources_to_verify, verify_target

    names = (request.storage, request.source_storage, request.decrypt_key, request.source_decrypt_key)
    with resources_to_verify(request, resolvers_for(*names)), shown_progress() as progress:
        report = verify_target(request.target, request.level, progress)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 1 if report.problems else 0


def _print_report(report: "VerificationReport") -> None:
    for text in (*report.notes, *report.problems[:_MAX_PROBLEMS]):
        print_line(text)
    print_more(len(report.problems) - _MAX_PROBLEMS)
    checked = (
        f"{report.target}: {counted(report.ranks, report.kind)} checked ({report.level}), "
        f"{size_text(report.read_bytes)} of contents read in {seconds_text(report.seconds)}"
    )
    if report.compared:
        checked += (
            f"; the values of {counted(report.compared, 'parameter')} compared, {size_text(report.compared_bytes)} of "
            "the source's read"
        )
    verdict = "all is as written, and as in the source" if report.compared else "all is as written"
    print_line(f"{checked}: {counted(len(report.problems), 'problem') if report.problems else verdict}")

"""`reshard verify`."""

import click

from reshard.cli.field_options import field_options
from reshard.cli.output import print_report
from reshard.cli.parameters import DIRECTORY
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.verification import VerificationRequest
from reshard.flows.blocks import resolvers_for

_OPTIONS = tuple(name for name in VerificationRequest.model_fields if name != "target")


@click.command("verify", cls=RequestCommand, request=VerificationRequest)
@click.argument("target", type=DIRECTORY)
@field_options(_OPTIONS, VerificationRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: VerificationRequest, as_json: bool) -> int:
    """Check the converted checkpoint TARGET against its manifest.

    Compares each file with the record made when it was written. Exits with 0 if all files are intact, with 1 if not.
    Needs only TARGET, and its key if it is encrypted; --level content also needs the source. If TARGET has several
    iterations, checks the one in its tracker file.

    \b
    Examples:
      reshard verify out
      reshard verify out --level structure      reads headers only
      reshard verify out --level content        reads all of the source again
      reshard verify out --signed-by team.pub   compares every file with its signature
      reshard verify out --provenance           compares its statements with it, and with the source
      reshard verify s3://bucket/out --json
    """
    from reshard.core.verification.published import resources_to_verify, verify_requested

    names = (request.storage, request.source_storage, request.decrypt_key, request.source_decrypt_key)
    resolvers = resolvers_for(*names, request.signed_by)
    with resources_to_verify(request, resolvers), shown_progress() as progress:
        report = verify_requested(request, progress, resolvers)
    print_report(report, as_json=as_json)
    return 1 if report.problems else 0

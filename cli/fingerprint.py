"""`reshard fingerprint`."""

import click

from reshard.cli.logs import print_note
from reshard.cli.options import conversion_options
from reshard.cli.output import print_line, print_report
from reshard.cli.parameters import PATH
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.source import FINGERPRINT_OPTIONS, FingerprintRequest
from reshard.flows.blocks import resolvers_for


@click.command("fingerprint", cls=RequestCommand, request=FingerprintRequest)
@click.argument("source", type=PATH, metavar="CHECKPOINT")
@conversion_options(FINGERPRINT_OPTIONS)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the fingerprints as JSON, which 'reshard diff' accepts as a side."
)
def command(request: FingerprintRequest, as_json: bool) -> int:
    """Print a fingerprint of each parameter of a checkpoint, and one of the whole model; writes nothing.

    Fingerprints do not depend on sharding or format: equal models have equal lines. To compare a model with one on
    another machine, compare the outputs of both with 'diff', or use --json and 'reshard diff'.

    Reads all replicas of every slice. Exits with 1 if replicas differ, and lists them on stderr.

    \b
    Examples:
      reshard fingerprint ckpt --source-strategy strategy > here.txt
      reshard fingerprint out --source-strategy new_strategy.ckpt | diff here.txt -
      reshard fingerprint ckpt --source-strategy strategy --json > here.json
    """
    from reshard.core.verification.compare import fingerprint_checkpoint

    with shown_progress() as progress:
        document = fingerprint_checkpoint(request, progress, resolvers_for(request.source_storage, request.decrypt_key))
    for note in document.notes:
        print_note(f"note: {note}")
    if request.decrypt_key:
        print_note(
            "note: the fingerprints of this encrypted checkpoint are not encrypted: they can confirm guesses of its "
            "contents"
        )
    print_report(document, as_json=as_json)
    for replicas in document.differing:
        print_line(f"reshard: replicas differ: {replicas}", err=True)
    return 1 if document.differing else 0

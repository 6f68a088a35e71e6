"""`reshard attest`."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import click

from reshard.cli.logs import Command
from reshard.cli.output import print_blocks, print_document, print_json
from reshard.cli.parameters import DIRECTORY, Choice
from reshard.cli.storages import storage_named, storage_option
from reshard.core.errors import SignatureError, VerificationError
from reshard.flows.blocks import resolvers_for

_STATEMENTS = ("provenance", "equivalence")


@click.command("attest", cls=Command)
@click.argument("target", type=DIRECTORY)
@click.option("--statement", type=Choice(_STATEMENTS), help="Print only this statement, as the JSON that was signed.")
@click.option(
    "--signed-by",
    metavar="URL",
    default="",
    help="Check that the statements are signed by one of these public keys, or by a certificate that one of these CAs "
    "issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME.",
)
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print both statements and their signatures as JSON.")
def command(target: str, statement: str | None, signed_by: str, storage: str, as_json: bool) -> None:
    """Show the statements about the converted checkpoint TARGET.

    Provenance: which files it was made from, by which request, program and run. Equivalence: how closely its values
    were compared with the source's, and what was changed or left out by declaration. A conversion with --sha256 writes
    both. What they say is as trustworthy as who signed them: without --signed-by, signatures are not checked; with it,
    exits with 1, and shows nothing, if one is not signed as asked. 'reshard verify --provenance' compares them with the
    files.

    \b
    Examples:
      reshard attest out
      reshard attest out --signed-by release.pub
      reshard attest out --statement provenance > provenance.json
    """
    from reshard.core.custody.attestation import attest, statement_text
    from reshard.core.custody.checking import read_verifier

    with storage_named(storage, target):
        verifier = read_verifier(signed_by, resolvers_for(signed_by)) if signed_by else None
        with _answering_no() if verifier else nullcontext():
            if statement is not None:
                print_document(statement_text(target, statement, verifier))
                return
            report = attest(target, verifier)
    if as_json:
        print_json(report)
    else:
        print_blocks(report.blocks())


@contextmanager
def _answering_no() -> Iterator[None]:
    """Make a signature that is not the one asked for the answer no, as 'reshard verify' does, and not wrong input."""
    try:
        yield
    except SignatureError as error:
        raise VerificationError(error.marked) from error

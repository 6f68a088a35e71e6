"""`reshard sign`."""

import click

from reshard.cli.field_options import field_options
from reshard.cli.output import print_report
from reshard.cli.parameters import DIRECTORY
from reshard.cli.progress import shown_progress
from reshard.cli.requests import RequestCommand
from reshard.core.request.signing import SigningRequest
from reshard.flows.blocks import resolvers_for

_OPTIONS = tuple(name for name in SigningRequest.model_fields if name != "target")


@click.command("sign", cls=RequestCommand, request=SigningRequest)
@click.argument("target", type=DIRECTORY)
@field_options(_OPTIONS, SigningRequest)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: SigningRequest, as_json: bool) -> None:
    """Sign the converted checkpoint TARGET: write model.sig, which covers every file in it.

    Checks all files first, and signs nothing if one is not as it was written. Adds SHA-256 to the manifest if the
    conversion did not take it. 'reshard convert --sign' signs as it converts, and reads nothing again. Anyone with the
    public key can check the signature: with 'reshard verify --signed-by', or with 'model_signing verify key'.

    \b
    Examples:
      openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -v2 aes-256-cbc -out team.key
      openssl pkey -in team.key -pubout -out team.pub
      reshard sign out --key file:team.key --passphrase env:TEAM_PASSPHRASE
      reshard verify out --signed-by team.pub
    """
    from reshard.core.conversion.sign import resources_to_sign, sign

    resolvers = resolvers_for(request.key, request.passphrase, request.decrypt_key, request.storage)
    with resources_to_sign(request, resolvers), shown_progress() as progress:
        report = sign(request, progress)
    print_report(report, as_json=as_json)

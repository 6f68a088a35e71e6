"""`reshard verify`."""

from typing import TYPE_CHECKING

import click

from cli.output import print_json, printable
from cli.progress import shown_progress
from cli.storages import key_named, key_options, storage_named, storage_option
from core.request import VerifyLevel
from core.wording import counted, seconds_text, size_text

if TYPE_CHECKING:
    from core.report import VerificationReport

_LEVELS = [str(level) for level in VerifyLevel if level is not VerifyLevel.NONE]


@click.command("verify")
@click.argument("target")
@click.option(
    "--level",
    type=click.Choice(_LEVELS),
    default=str(VerifyLevel.CHECKSUM),
    show_default=True,
    help="structure: files, names, dtypes and shapes. checksum: also every byte, against digests taken while writing, "
    "and the CRC of files that have one.",
)
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(target: str, level: str, decrypt_key: str, decrypt_mode: str, storage: str, as_json: bool) -> int:
    """Checks the converted checkpoint TARGET against its manifest, which was written with it.

    Every file is compared with its record: that it is there and holds what it was written with. Ends with 0 if all is
    right and with 1 if anything is not. Needs nothing but TARGET, and its key if it is encrypted.

    \b
    Examples:
      reshard verify out
      reshard verify out --level structure      reads headers only
      reshard verify s3://bucket/out --json
    """
    from core.verify import verify_target

    with storage_named(storage, target), key_named(decrypt_key, decrypt_mode), shown_progress("verifying") as progress:
        report = verify_target(target, VerifyLevel(level), progress)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 1 if report.problems else 0


def _print_report(report: "VerificationReport") -> None:
    for problem in report.problems:
        click.echo(printable(problem))
    checked = (
        f"{report.target}: {counted(report.ranks, 'rank')} checked ({report.level}), "
        f"{size_text(report.read_bytes)} of contents read in {seconds_text(report.seconds)}"
    )
    click.echo(f"{checked}: {counted(len(report.problems), 'problem') if report.problems else 'all is as written'}")

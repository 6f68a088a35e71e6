"""`reshard presets`."""

import click

from reshard.cli.logs import Command
from reshard.cli.output import print_report


@click.command("presets", cls=Command)
@click.argument("name", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(name: str, as_json: bool) -> None:
    """List the presets: model families whose names and layouts in MindFormers, Megatron and Hugging Face are known.

    With NAME, print that preset. To change it, save it to a file and use --preset FILE.yaml.

    \b
    Examples:
      reshard presets
      reshard presets qwen3 > my_model.yaml
    """
    from reshard.core.changes.preset import list_presets, preset_text

    if name:
        click.echo(preset_text(name), nl=False)
        return
    presets = list_presets()
    print_report(presets, as_json=as_json)

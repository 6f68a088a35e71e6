"""`reshard presets`."""

import click

from reshard.cli.logs import Command
from reshard.cli.output import print_json, print_table
from reshard.core.runtime.wording import listed


@click.command("presets", cls=Command)
@click.argument("name", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(name: str, as_json: bool) -> None:
    """List the presets: model families whose names and layouts are known, in MindFormers, Megatron and Hugging Face.

    With NAME, print that preset's document. A changed copy of it is used in its place: --preset FILE.yaml.

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
    if as_json:
        print_json(presets)
        return
    rows = [
        (each.preset, each.title, listed(list(each.worlds)), each.proof, listed(list(each.switches)) or "-")
        for each in presets.presets
    ]
    print_table(("preset", "models", "names", "rules", "switches"), rows)

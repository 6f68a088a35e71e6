"""`reshard completion`."""

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class, shell_complete

from reshard.cli.parameters import COMPLETION_VARIABLE, Choice

SHELLS = ("bash", "zsh", "fish")


class _Bash(BashComplete):
    """Completes `--option=value` too, of which bash makes three words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and that one."""
        words, incomplete = super().get_completion_args()
        return [word for word in words if word != "="], incomplete


add_completion_class(_Bash)


def complete(cli: click.Command, instruction: str) -> int:
    """Answer a shell that asks for completions; a command line that cannot be completed has none."""
    try:
        return shell_complete(cli, {}, "reshard", COMPLETION_VARIABLE, instruction)
    except Exception:  # its text would appear in the middle of what is typed
        return 1


@click.command("completion")
@click.argument("shell", metavar="|".join(SHELLS), type=Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete reshard's commands, options, values and paths.

    The script calls the installed command, so it need not be replaced after upgrades; `reshard` must be on the PATH.
    --step is completed from the files of a local SOURCE. Needs bash 4.4 or newer. Write the script to the file shown
    below to have completion in every new shell; bash needs the package bash-completion, and zsh needs ~/.zfunc in
    $fpath before compinit runs.

    \b
    Examples:
      in this shell only (bash or zsh):
        eval "$(reshard completion bash)"
      in every new shell:
        reshard completion bash > ~/.local/share/bash-completion/completions/reshard
        reshard completion zsh > ~/.zfunc/_reshard
        reshard completion fish > ~/.config/fish/completions/reshard.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(context.find_root().command, {}, "reshard", COMPLETION_VARIABLE).source(), nl=False)

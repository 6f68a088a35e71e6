"""Writes docs/reference/cli.md from the commands themselves: `python -m docs.write_cli_reference`."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from reshard.cli.environment import variable_of
from reshard.cli.main import cli

PAGE = Path(__file__).with_name("reference") / "cli.md"
_WIDTH = 120
_HEAD = """\
# The command `reshard`

What `--help` prints, for every command: `make docs` writes this page from the commands. In parentheses is the
environment variable that sets an option where the command line does not; see
[in the shell](../guides/shell.md#options-from-the-environment).
"""


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(reference())
    print(f"{PAGE} is up to date")


def reference() -> str:
    """Return the page."""
    context = click.Context(cli, info_name="reshard", **cli.context_settings)
    sections = [_HEAD, *_described(cli, context)]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command
        sections.append(f"## {name}\n")
        sections += _described(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(sections)


class _Recorder(click.HelpFormatter):
    """Keeps the lists of a help text with their titles, and formats nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[tuple[str, list[tuple[str, str]]]] = []
        self._title = ""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Name the list that follows."""
        self._title = name
        yield

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Keep a list."""
        self.lists.append((self._title, list(rows)))


def _described(command: click.Command, context: click.Context) -> Iterator[str]:
    arguments = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {arguments}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield _verbatim(paragraph) if paragraph.startswith("\b") else _wrapped(_escaped(paragraph))
    recorder = _Recorder()
    command.format_options(context, recorder)
    # the group's own options are read before any command, and not from the environment
    params = [] if isinstance(command, click.Group) else command.params
    variables = {option: variable_of(param) for param in params for option in param.opts}
    for title, rows in recorder.lists:
        yield f"**{title}**\n"
        yield (
            "\n".join(_listed(name, text, title == "Commands", _variable(name, variables)) for name, text in rows)
            + "\n"
        )


def _variable(name: str, variables: Mapping[str, str | None]) -> str:
    """The variable of an option that is listed as `-q, --quiet`, or as `--step E_S`."""
    found = (variables.get(each) for each in re.split(r"[ ,/]+", name))
    return next((f" (`{each}`)" for each in found if each), "")


def _listed(name: str, text: str, is_command: bool, variable: str) -> str:
    shown = f"[`{name}`](#{name})" if is_command else f"`{name}`{variable}"
    default = re.search(r"\s*\[(default: .*|required|x>=.*)\]$", text)
    text, extra = (text[: default.start()], f" ({default[1]})") if default else (text, "")
    return _wrapped(f"- {shown}: {_escaped(text)}{extra}", indent="  ").rstrip("\n")


def _verbatim(paragraph: str) -> str:
    """A paragraph that click does not wrap; its first line introduces the others."""
    first, *others = paragraph.removeprefix("\b").strip("\n").split("\n")
    return f"{_escaped(first)}\n\n```text\n{textwrap.dedent(chr(10).join(others))}\n```\n"


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"[\\*<\[]", r"\\\g<0>", text)


if __name__ == "__main__":
    main()

"""Kinds of arguments and options, which know how a shell completes them.

Texts stay as they are: a path may as well be a URL. Shells complete paths themselves, and no storage is asked.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reshard.core.runtime.suggestions import close_words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETION_VARIABLE = "_RESHARD_COMPLETE"
"""Environment variable that completion scripts set when they ask for completions."""
_MAX_LISTED_FILES = 10_000
"""A directory with more is not read to the end: people wait for a completion."""


class _Path(click.types.StringParamType):
    """A path or URL; shells complete names of `kind`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=self._kind)]


def is_place(param: click.Parameter) -> bool:
    """True if an argument or option names a file, a directory or a URL."""
    return isinstance(param.type, _Path)


class _Step(click.types.StringParamType):
    """A step; completed from the names of the files that one rank has in a local source."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from reshard.core.files.file_names import parse_name

        source = _argument(ctx, _SOURCES_OF_STEPS.get(str(param.name), "source"))
        names = map(parse_name, _names_of_one_rank(source)) if source else ()
        steps = {name.step for name in names if name is not None and name.step is not None}
        newest_first = map(str, sorted(steps, reverse=True))
        return [CompletionItem(step) for step in newest_first if step.startswith(incomplete)]


class Choice(click.Choice[str]):
    """One of several words; the message about another one suggests what was probably meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Format the message about a wrong word."""
        return super().get_invalid_choice_message(value, ctx) + did_you_mean(str(value), list(self.choices))


def did_you_mean(word: str, words: list[str]) -> str:
    """Format a suggestion of similar words, to append to a message; empty if there is none."""
    close = [repr(each) for each in close_words(word, words)]
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _argument(ctx: click.Context, name: str) -> str:
    """Return the argument of this name as far as it is typed; click leaves arguments unparsed before a lone option."""
    names = [param.name for param in ctx.command.params if isinstance(param, click.Argument)]
    typed = dict(zip(names, ctx.args, strict=False))
    return ctx.params.get(name) or typed.get(name) or ""


def _names_of_one_rank(source: str) -> Iterator[str]:
    """Names of files in the first `rank_…` folder of a local directory, or in itself; none if it cannot be read."""
    try:
        with os.scandir(source) as entries:
            folder = next((entry.path for entry in entries if entry.name.startswith("rank_")), source)
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, range(_MAX_LISTED_FILES), strict=False):
                yield entry.name
    except (OSError, ValueError):
        return


PATH = _Path("file")
"""A file, a directory or a URL."""
DIRECTORY = _Path("dir")
"""A directory, such as a target, or a URL."""
STEP = _Step()
_SOURCES_OF_STEPS = {"step_a": "a", "step_b": "b"}
"""Name of an option -> name of the argument whose steps it names, if that is not the source."""

"""How help is wrapped: never inside the name of an option, which its reader may copy."""

import re
from collections.abc import Iterable

import click

_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")
_HYPHEN, _UNBROKEN = "-", "\N{NON-BREAKING HYPHEN}"


class HelpFormatter(click.HelpFormatter):
    """Help whose lines do not end inside an option's name; click's may end at any hyphen."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(_unbroken(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of terms and what they mean."""
        super().write_dl([(term, _unbroken(meaning)) for term, meaning in rows], col_max, col_spacing)

    def write(self, string: str) -> None:
        """Write lines that are wrapped already."""
        super().write(string.replace(_UNBROKEN, _HYPHEN))


class HelpContext(click.Context):
    """The context of a command with such help."""

    formatter_class = HelpFormatter


def _unbroken(text: str) -> str:
    return _OPTION.sub(lambda name: name[0].replace(_HYPHEN, _UNBROKEN), text)

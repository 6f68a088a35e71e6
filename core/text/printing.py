"""Text as it may be printed.

Names of files and parameters are not trusted: control characters and lone surrogates are shown as escapes wherever text
leaves the program. `printable` is for a name, `printable_lines` for a message of ours that may contain names.
"""

from collections.abc import Sequence


def printable(text: str) -> str:
    """Format on one line, with escapes for control characters, line breaks and lone surrogates."""
    return text if text.isprintable() else "".join(map(_printable_character, text))


def printable_lines(text: str) -> str:
    """Format a text of several lines; only its line breaks stay as they are."""
    return "\n".join(map(printable, text.split("\n")))


def _printable_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def listed_lines(items: Sequence[str], limit: int = 20) -> list[str]:
    """Return one line per item; beyond `limit` items, a last line `and N more`."""
    more = len(items) - limit
    return [*items[:limit], f"and {more} more"] if more > 0 else list(items)

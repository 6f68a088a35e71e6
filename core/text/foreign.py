"""Texts of others, which may have any length and content, made fit to be shown."""

from reshard.core.text.printing import printable
from reshard.core.text.secrets import scrubbed

MAX_TEXT_CHARACTERS = 1000
"""Places, names and reasons are the texts of others: longer ones are cut."""


def shown_text(text: str) -> str:
    """Return a text of others on one line, without secrets, and not longer than a row may hold."""
    line = printable(scrubbed(text[: 4 * MAX_TEXT_CHARACTERS]))
    return line if len(line) <= MAX_TEXT_CHARACTERS else f"{line[: MAX_TEXT_CHARACTERS - 1]}…"

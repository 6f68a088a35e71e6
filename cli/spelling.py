"""How the command spells options in messages: `--exclude 'adam_*'`."""

import shlex

from reshard.core.text.options import Option
from reshard.core.text.printing import printable

_ARGUMENTS = ("source", "target", "a", "b")
"""Given without an option's name."""
_REPEATED = {"cuts": "cut", "places": "place"}
"""Lists of which the command takes one item at a time, under the item's name."""


def flag(option: Option) -> str:
    """Spell an option as it is typed: `--overwrite`, `--no-check-crc`, `--format ckpt`, or its name alone."""
    if option.name in _ARGUMENTS:
        return option.name.upper()
    word = _REPEATED.get(option.name, option.name).replace("_", "-")
    if option.value is False:
        return f"--no-{word}"
    name = f"--{word}"
    if not option.texts:
        return name
    return " ".join(f"{name} {shlex.quote(printable(text))}" for text in option.texts)

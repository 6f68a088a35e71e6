"""Names of a source's options in messages: a comparison has each of them twice, `--step-a` and `--step-b`."""

from contextlib import AbstractContextManager
from contextvars import ContextVar

from reshard.core.runtime.context import having

_side: ContextVar[str] = ContextVar("reshard_side", default="")


def options_of_side(side: str) -> AbstractContextManager[str]:
    """Name the options of one side of a comparison in messages, inside the block."""
    return having(_side, side)


def source_option(name: str) -> str:
    """Format a source's option as the current command spells it."""
    side = _side.get()
    return f"--{name.removeprefix('source-')}-{side}" if side else f"--{name}"

"""Names of a source's options in messages: a comparison has each of them twice, `--step-a` and `--step-b`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_side: ContextVar[str] = ContextVar("reshard_side", default="")


@contextmanager
def options_of_side(side: str) -> Iterator[None]:
    """Name the options of one side of a comparison in messages, inside the block."""
    token = _side.set(side)
    try:
        yield
    finally:
        _side.reset(token)


def source_option(name: str) -> str:
    """Format a source's option as the current command spells it."""
    side = _side.get()
    return f"--{name.removeprefix('source-')}-{side}" if side else f"--{name}"

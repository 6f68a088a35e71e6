"""What messages call the options of a source: a comparison has each of them twice, `--step-a` and `--step-b`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_side: ContextVar[str] = ContextVar("reshard_side", default="")


@contextmanager
def options_of_side(side: str) -> Iterator[None]:
    """Inside the block, messages name the options of one side of a comparison."""
    token = _side.set(side)
    try:
        yield
    finally:
        _side.reset(token)


def source_option(name: str) -> str:
    """An option of a source, as the command in progress calls it."""
    side = _side.get()
    return f"--{name.removeprefix('source-')}-{side}" if side else f"--{name}"

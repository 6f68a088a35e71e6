"""Context variables that have a value for the time of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def having(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Give a context variable a value inside the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)

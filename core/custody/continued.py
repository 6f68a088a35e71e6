"""The chain of statements that a run's target continues, carried by the context; conversions without one load no more.

Statements are made at the end of a run, far from where the source's were read.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from reshard.core.runtime.context import having

if TYPE_CHECKING:
    from reshard.core.custody.chain import Chain

_current: "ContextVar[Chain | None]" = ContextVar("reshard_chain", default=None)


def continuing(chain: "Chain | None") -> "AbstractContextManager[Chain | None]":
    """Make the statements about targets that are finished inside the block refer to a chain; None: to none."""
    return having(_current, chain)


def current_chain() -> "Chain | None":
    """The chain that this context's target continues; None if it begins one."""
    return _current.get()

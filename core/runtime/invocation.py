"""The name of the run that carries out what this context does; core knows no server that gives runs names."""

from contextlib import AbstractContextManager
from contextvars import ContextVar

from reshard.core.runtime.context import having

_flow_run: ContextVar[str] = ContextVar("reshard_flow_run", default="")


def invoked_by(flow_run: str) -> AbstractContextManager[str]:
    """Name the flow run, by its id, that does what is inside the block."""
    return having(_flow_run, flow_run)


def current_flow_run() -> str:
    """The id of the flow run in this context; empty outside of any."""
    return _flow_run.get()

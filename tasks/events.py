"""Events for automations at the end of a conversion.

    reshard.conversion.completed    seconds, bytes, repeated requests, level of verification
    reshard.conversion.failed       seconds, kind and message of the error

Their resource is the target, `reshard.checkpoint.<URL>`, whichever run makes it; the run is related. Prefect sends them
in the background, and logs those that it cannot send: a conversion never fails because of an event.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.events import emit_event

from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.retry import retries_counted
from reshard.core.storage.urls import parse_url
from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed

COMPLETED = "reshard.conversion.completed"
FAILED = "reshard.conversion.failed"
_MAX_MESSAGE_CHARACTERS = 4000
"""Prefect refuses events above 1.5 MB; an alert needs less."""


def emit_completed(report: ConversionReport) -> None:
    """Emit the figures of a conversion; `committed` is False if other runs have ranks left to do."""
    payload = report.model_dump(mode="json", include=_FIGURES) | {"ranks": len(report.ranks)}
    _emit(COMPLETED, report.target, payload)


@contextmanager
def emitting_failure(request: ConversionRequest) -> Iterator[None]:
    """Emit an error inside the block as the failure of the conversion."""
    started = time.monotonic()
    try:
        yield
    except Exception as error:
        payload = {
            "source": request.source,
            "error": type(error).__name__,
            "message": printable_lines(scrubbed(str(error)))[:_MAX_MESSAGE_CHARACTERS],
            "seconds": round(time.monotonic() - started, 3),
            "retried_requests": retries_counted(),
        }
        _emit(FAILED, _url_of(request.target), payload)
        raise


_FIGURES = {
    "identity",
    "source",
    "step",
    "source_world_size",
    "target_world_size",
    "committed",
    "seconds",
    "written_bytes",
    "read_bytes",
    "crc_bytes",
    "verified_bytes",
    "retried_requests",
    "verified",
    "custody",
}


def _url_of(target: str) -> str:
    """Return the target's URL as a finished conversion names it, if it is valid."""
    try:
        return str(parse_url(target))
    except InputError:
        return target


def _emit(event: str, target: str, payload: dict[str, Any]) -> None:
    resource = {"prefect.resource.id": f"reshard.checkpoint.{target}", "prefect.resource.name": target}
    emit_event(event=event, resource=resource, payload=payload)

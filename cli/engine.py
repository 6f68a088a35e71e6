"""Engines of conversions: a Prefect flow run, or this process without Prefect."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reshard.cli.parameters import Choice
from reshard.cli.storages import resources_named_in
from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionOptions
from reshard.core.runtime.progress import Progress
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from pydantic import BaseModel

    from reshard.flows.server_setting import ServerSetting

Request = TypeVar("Request", bound=ConversionOptions)
Report = TypeVar("Report", bound="BaseModel")

AUTO, PREFECT, DIRECT = "auto", "prefect", "direct"

engine_option = click.option(
    "--engine",
    type=Choice([AUTO, PREFECT, DIRECT]),
    default=AUTO,
    show_default=True,
    help="prefect: a flow run, with its records and retries, on the configured Prefect server or an embedded one. "
    "direct: in this process, without Prefect. auto: prefect if a server is configured (PREFECT_API_URL, or the active "
    "profile) or an option needs a flow run; else direct.",
)
"""For commands that convert."""


class Engine(Record):
    """The engine of a conversion, the reason for it, and how to have the other one."""

    name: str
    text: str


DRY_RUN = Engine(DIRECT, "direct")
"""Nothing is written, so nothing needs a flow run."""


def choose_engine(engine: str, request: ConversionOptions) -> Engine:
    """Choose the engine of a request by the option --engine.

    Raises:
        InputError: only a flow run supports an option of the request; or Prefect cannot read its settings.
    """
    needing = _needing_a_flow(request)
    if engine == DIRECT:
        if needing:
            raise InputError(f"{needing}: not supported by --engine direct; leave one of them out")
        return Engine(DIRECT, "direct, by --engine (a Prefect flow run: --engine prefect)")
    from reshard.flows.server_setting import configured_server

    server = configured_server()
    if engine == AUTO and not server and not needing:
        return Engine(
            DIRECT, "direct; no Prefect server is configured (for a flow run: set PREFECT_API_URL, or --engine prefect)"
        )
    reason = f"because of {needing}" if needing else "without Prefect: --engine direct"
    return Engine(PREFECT, f"prefect; {_place_text(server)} ({reason})")


def convert_by(
    engine: Engine, request: Request, progress: Progress, direct: Callable[[Request, Progress], Report]
) -> Report:
    """Carry out a request by an engine; `direct` does it in this process."""
    if engine.name == DIRECT:
        with resources_named_in(request):
            return direct(request, progress)
    from reshard.flows.local import run_locally

    run: Callable[[Any, Progress], Any] = run_locally
    report: Report = run(request, progress)
    return report


def report_document(report: "BaseModel", engine: Engine) -> dict[str, Any]:
    """Return a report as a JSON document, with the engine beside its fields."""
    return report.model_dump(mode="json") | {"engine": engine.name}


def _needing_a_flow(request: ConversionOptions) -> str:
    options = {"--dask-scheduler": request.dask_scheduler, "--concurrency-limit": request.concurrency_limit}
    return " and ".join(option for option, value in options.items() if value)


def _place_text(server: "ServerSetting | None") -> str:
    if server is None:
        return "on Prefect's embedded server, because none is configured"
    return f"on the server {server.url}, set by {server.origin}"

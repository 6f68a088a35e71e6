"""The deployments as prefect.yaml beside this file describes them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.events import DeploymentTriggerTypes
from prefect.exceptions import PrefectException
from prefect.schedules import Schedule
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import AfterValidator, BaseModel, ConfigDict

from reshard.core.errors import ConversionError, InputError
from reshard.core.text.options import option
from reshard.flows.server_setting import check_server_url, unreachable

PREFECT_FILE = Path(__file__).with_name("prefect.yaml")


_LINE_BREAK = re.compile(r"(?<=\S)\n(?=\S)")


def _unwrapped(markdown: str) -> str:
    """Join the lines of each paragraph, whose breaks some pages of Prefect would show; code blocks stay as they are."""
    texts = markdown.split("```")
    return "```".join(text if at % 2 else _LINE_BREAK.sub(" ", text) for at, text in enumerate(texts))


class WorkPool(BaseModel):
    """The work pool of a deployment's runs, with variables for their processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    job_variables: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a flow run's process."""
        variables: dict[str, str] = self.job_variables["env"]
        return variables


class Described(BaseModel):
    """One deployment; the fields are those of Prefect's own format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    entrypoint: str
    description: Annotated[str, AfterValidator(_unwrapped)]
    tags: list[str]
    work_pool: WorkPool
    concurrency_limit: ConcurrencyLimitConfig | None = None
    schedules: list[Schedule] = []
    triggers: list[DeploymentTriggerTypes] = []


def read_descriptions() -> list[Described]:
    """Read all deployments of prefect.yaml."""
    content = yaml.safe_load(PREFECT_FILE.read_text(encoding="utf-8"))
    return [Described.model_validate(each) for each in content["deployments"]]


def server_url(origin: str = "") -> str:
    """Return the server's URL in PREFECT_API_URL or the active profile; `origin` is where it is from, if known.

    Raises:
        InputError: no server is configured, or its URL is none.
    """
    url = str(PREFECT_API_URL.value() or "")
    if not url:
        raise InputError(
            "no Prefect server is configured. Set PREFECT_API_URL=http://HOST:4200/api, or start a server on this "
            "machine: prefect server start"
        )
    check_server_url(url, origin)
    return url


@contextmanager
def configured_server(url: str = "") -> Iterator[SyncPrefectClient]:
    """Provide a client of the server in PREFECT_API_URL or the active profile; the server answers.

    `url`, the value of an option `server`, is a server to be asked instead.

    Raises:
        InputError: no server is configured, or its URL is none.
        ConversionError: it does not answer, or not as a Prefect server does, now or later in the block.
    """
    origin = option("server") if url else ""
    with temporary_settings({PREFECT_API_URL: url} if url else {}):
        url = server_url(origin)
        try:
            with get_client(sync_client=True) as client:
                client.api_version()
                yield client
        except (httpx.HTTPError, PrefectException, ValueError) as error:
            # ValueError: for example, a page in place of JSON
            raise ConversionError(
                f"{unreachable(url, str(error) or repr(error), origin)}. "
                "Start it, or change that setting, which has to end in /api"
            ) from error

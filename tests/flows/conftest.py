from collections.abc import Iterator

import pytest
from prefect.settings import temporary_settings

from reshard.flows.embedded_server import EMBEDDED_SETTINGS


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    """A Prefect server for all tests of flows; its start takes seconds of processor time, so there is one."""
    from prefect.testing.utilities import prefect_test_harness  # imports a whole server

    with temporary_settings(EMBEDDED_SETTINGS), prefect_test_harness(server_startup_timeout=600):
        yield

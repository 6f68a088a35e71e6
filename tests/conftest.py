"""What all tests share."""

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

_LONGEST = (
    "flows/",
    "endurance/test_kills",
    "deployments/test_interruptions",
    "storage/test_kills",
    "docs/test_operating",
    "deployments/test_serve",
    "deployments/test_approval",
    "ui/",
    "deployments/",
    "endurance/",
    "docs/",
)
"""What takes a minute or more: all tests of flows, which stay together, and other files. They come first, so that no
process has one of them left when the others have ended."""

# How long it takes to make an input says how busy the machine is. There are a hundred properties, and each run tries
# other inputs: few at a time keep `make test` a matter of minutes. That inputs share a test's fixtures is intended.
_ALLOWED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("busy", settings(), deadline=None, max_examples=30, suppress_health_check=_ALLOWED)
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first; `make test` and `make test-all` hand them out in this order."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        return next((number for number, start in enumerate(_LONGEST) if file.startswith(start)), len(_LONGEST))

    items.sort(key=place)


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process whole files, and one of them all tests of flows: they share a Prefect server."""

    def _split_scope(self, nodeid: str) -> str:
        flows = "tests/flows/"
        return flows if nodeid.startswith(flows) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Take our order with `--dist loadfile`."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None

"""Plans, and places for their targets on both kinds of storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import Location, parse_url
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


@pytest.fixture(scope="module")
def plan() -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request("/out"))


@pytest.fixture(scope="module")
def other_plan() -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request("/out", prefix="other_"))


@pytest.fixture(params=["local", "memory"])
def final(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    if request.param == "local":
        yield parse_url(str(tmp_path / "out"))
        return
    location = parse_url("memory://bucket/out")
    yield location
    location.fs.store.clear()
    location.fs.pseudo_dirs[:] = [""]

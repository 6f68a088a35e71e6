"""Plans, and places for their targets on both kinds of storage."""

import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import Location
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


@pytest.fixture(scope="module")
def plan() -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request("/out"))


@pytest.fixture(scope="module")
def other_plan() -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request("/out", prefix="other_"))


@pytest.fixture
def final(folder: Location) -> Location:
    return folder.child("out")

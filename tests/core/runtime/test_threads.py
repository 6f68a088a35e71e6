"""How often the collector comes by, inside and after."""

import gc
from collections.abc import Iterator

import pytest

from reshard.core.runtime.threads import rare_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ((700, 10, 5), (50_000, 20, 100)),
        ((90_000, 10, 500), (90_000, 20, 500)),
        ((0, 10, 5), (0, 10, 5)),
    ],
)
def test_collections_are_rare_for_a_while(before: tuple[int, int, int], inside: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    with rare_collections():
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == before


def test_they_are_as_before_after_a_failure() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == before

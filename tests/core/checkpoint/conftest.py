from collections.abc import Iterator

import fsspec
import pytest

from reshard.core.storage.urls import Location
from tests.support.source_directories import Source


@pytest.fixture
def source(folder: Location) -> Source:
    return Source(str(folder.child("ck")))


@pytest.fixture
def remote() -> Iterator[Source]:
    yield Source("memory:///assumed/ck")
    fsspec.filesystem("memory").rm("/assumed", recursive=True)

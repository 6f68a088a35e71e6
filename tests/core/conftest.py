"""Directories on both kinds of storage: one that renames them as a whole, and one that renames nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.storage.urls import Location, parse_url
from tests.support.small_files import forget_memory


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    """An empty directory, local or in memory; what a test leaves there is removed."""
    if request.param == "local":
        yield parse_url(str(tmp_path.resolve()))
        return
    location = parse_url("memory://bucket/directory")
    yield location
    forget_memory()

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.support.source_directories import Source


@pytest.fixture(params=["local", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    if request.param == "local":
        yield Source(str(tmp_path.resolve() / "ck"))
    else:
        yield Source("memory:///catalog/ck")
        fs = fsspec.filesystem("memory")
        if fs.exists("/catalog"):
            fs.rm("/catalog", recursive=True)


@pytest.fixture
def remote() -> Iterator[Source]:
    yield Source("memory:///assumed/ck")
    fsspec.filesystem("memory").rm("/assumed", recursive=True)

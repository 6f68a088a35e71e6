"""A judge that tests share: it takes seconds to start."""

from collections.abc import Iterator

import pytest

from tests.conformance.mindspore_process import TransformersJudge


@pytest.fixture(scope="session")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersJudge]:
    with TransformersJudge(tmp_path_factory.mktemp("judge") / "log") as judge:
        yield judge

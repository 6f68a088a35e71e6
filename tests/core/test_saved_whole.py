import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from core.checkpoint.catalog import build_catalog
from core.errors import CatalogError
from core.layout import ParameterLayout
from core.saved_whole import contents_say_whole
from core.storage.files import SourceFile, open_source
from core.storage.urls import Location
from core.strategy.model import StageStrategy, Strategy
from tests.support.ckpt_writer import checkpoint_bytes

RANKS = 4
NAMES = [f"w{number:02}" for number in range(20)]
CUT = Strategy((StageStrategy(0, dict.fromkeys(NAMES, ParameterLayout((RANKS,), ((0,),)))),), "test")


class Source:
    """Ranks' files in a directory, under its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._base = fsspec.url_to_fs(url)

    def write(self, rank: int, names: list[str], seed: int) -> None:
        self.put(rank, *((name, "UInt8", (8,), bytes([seed, *name.encode(), 1, 2, 3, 4])) for name in names))

    def put(self, rank: int, *entries: tuple[str, str, tuple[int, ...], bytes]) -> None:
        self._fs.makedirs(f"{self._base}/rank_{rank}", exist_ok=True)
        self._fs.pipe_file(f"{self._base}/rank_{rank}/A.ckpt", checkpoint_bytes(*entries))

    def say_whole(self) -> bool:
        catalog = build_catalog(self.url, range(RANKS), digest=lambda *_: False)
        return contents_say_whole(catalog, CUT)


@pytest.fixture
def remote() -> Iterator[Source]:
    yield Source("memory:///saved_whole/ck")
    fsspec.filesystem("memory").rm("/saved_whole", recursive=True)


@pytest.fixture
def local(tmp_path: Path) -> Source:
    return Source(str(tmp_path.resolve() / "ck"))


@pytest.fixture(params=["local", "remote"])
def source(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(("seeds", "whole"), [([7, 7, 7, 7], True), ([7, 7, 7, 8], False), ([1, 2, 3, 4], False)])
def test_ranks_that_hold_the_same_hold_all(source: Source, seeds: list[int], whole: bool) -> None:
    for rank, seed in enumerate(seeds):
        source.write(rank, NAMES, seed)
    assert source.say_whole() is whole


def test_a_single_value_tells_nothing(source: Source) -> None:
    for rank in range(RANKS):
        source.put(rank, *((name, "UInt8", (8,), bytes(8)) for name in NAMES))
    assert not source.say_whole()


def test_ranks_on_a_remote_storage_are_read_at_once(remote: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(RANKS):
        remote.write(rank, NAMES, 7)
    all_open = threading.Barrier(RANKS)

    def open_with_the_others(location: Location) -> SourceFile:
        all_open.wait(timeout=10)
        return open_source(location)

    monkeypatch.setattr("core.checkpoint.opening.open_source", open_with_the_others)
    assert remote.say_whole()


def test_a_file_that_is_not_laid_out_as_it_was_assumed_to_be(local: Source, remote: Source) -> None:
    for source in (local, remote):
        for rank in range(RANKS):
            source.write(rank, [NAMES[0], NAMES[2], NAMES[1], *NAMES[3:]] if rank == 3 else NAMES, 7)
    assert local.say_whole()
    with pytest.raises(CatalogError, match=r"rank_3: .*rank_3/A\.ckpt: parameter 'w01' does not begin at byte \d+"):
        remote.say_whole()

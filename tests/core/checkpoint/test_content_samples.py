import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from reshard.core.checkpoint.content_samples import read_samples
from reshard.core.errors import CatalogError
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.source_directories import build_catalog

RANKS = 4
NAMES = [f"w{number:02}" for number in range(20)]


class Source:
    """Ranks' files in a directory, under its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._base = fsspec.url_to_fs(url)

    def write(self, rank: int, names: list[str]) -> None:
        entries = [(name, "UInt8", (8,), bytes([rank, *name.encode(), 1, 2, 3, 4])) for name in names]
        self._fs.makedirs(f"{self._base}/rank_{rank}", exist_ok=True)
        self._fs.pipe_file(f"{self._base}/rank_{rank}/A.ckpt", checkpoint_bytes(*entries))

    def read_samples(self, name: str, length: int) -> list[bytes]:
        catalog = build_catalog(self.url, range(RANKS), digest=lambda *_: False)
        return list(read_samples(catalog, range(RANKS), name, length))


@pytest.fixture
def remote() -> Iterator[Source]:
    yield Source("memory:///beginnings/ck")
    fsspec.filesystem("memory").rm("/beginnings", recursive=True)


@pytest.fixture
def local(tmp_path: Path) -> Source:
    return Source(str(tmp_path.resolve() / "ck"))


@pytest.fixture(params=["local", "remote"])
def source(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue(request.param)
    return found


def test_the_first_bytes_of_each_rank(source: Source) -> None:
    for rank in range(RANKS):
        source.write(rank, NAMES)
    assert source.read_samples("w07", 3) == [bytes([rank]) + b"w0" for rank in range(RANKS)]
    assert source.read_samples("w07", 100) == [bytes([rank]) + b"w07\1\2\3\4" for rank in range(RANKS)]


def test_ranks_on_a_remote_storage_are_read_at_once(remote: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(RANKS):
        remote.write(rank, NAMES)
    all_open = threading.Barrier(RANKS)

    def open_with_the_others(location: Location, version: str) -> SourceFile:
        all_open.wait(timeout=PATIENCE_SECONDS)
        return open_source(location, version)

    monkeypatch.setattr("reshard.core.files.encryption.opening.open_source", open_with_the_others)
    assert len(set(remote.read_samples("w00", 1))) == RANKS


def test_a_file_that_is_not_laid_out_as_it_was_assumed_to_be(local: Source, remote: Source) -> None:
    for source in (local, remote):
        for rank in range(RANKS):
            source.write(rank, [NAMES[0], NAMES[2], NAMES[1], *NAMES[3:]] if rank == 3 else NAMES)
    assert local.read_samples("w01", 4)[3] == b"\3w01"
    with pytest.raises(CatalogError, match=r"rank_3: .*rank_3/A\.ckpt: parameter 'w01' does not begin at byte \d+"):
        remote.read_samples("w01", 4)

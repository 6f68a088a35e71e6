"""Messages about paths that do not exist suggest the one that was meant."""

from pathlib import Path

import pytest

from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("scr", "src"),
        ("src_strateg.ckpt", "src_strategy.ckpt"),
        ("srcstrategy.json", "src_strategy.json"),
        ("Job.yml", "job.yaml"),
        ("src/rank_00", "src/rank_0"),
    ],
)
def test_the_most_similar_neighbor_is_suggested(folder: Location, given: str, meant: str) -> None:
    for name in ("src/rank_0/a", "src/other/a", "src_strategy.ckpt", "src_strategy.json", "job.yaml", "out/a"):
        write_bytes(folder.child(name), b"")
    assert did_you_mean(folder.child(given)) == f"; did you mean {folder.child(meant)}?"


@pytest.mark.parametrize("given", ["src", "gone.yaml", "x", "totally/different"])
def test_nothing_is_suggested(folder: Location, given: str) -> None:
    for name in ("src/rank_0/a", "job.yaml"):
        write_bytes(folder.child(name), b"")
    assert did_you_mean(folder.child(given)) == ""


def test_the_first_missing_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/run").mkdir(parents=True)
    location = parse_url(f"{tmp_path}/chekpoints/run/rank_0/net.ckpt")
    assert did_you_mean(location) == f"; did you mean {tmp_path}/checkpoints?"


def test_very_many_neighbors_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.near_names._MAX_NAMES", 1)
    for name in ("src", "dst"):
        (tmp_path / name).touch()
    assert did_you_mean(parse_url(f"{tmp_path}/scr")) == ""

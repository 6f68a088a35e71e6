"""A scenario with an object store from beginning to end: what all write, what is sent for it, the room it takes."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.contenders import S3_NAIVE
from benchmarks.models import Model, Side, transformer
from benchmarks.running import Plan
from benchmarks.scenarios import SCENARIOS


def little_model() -> Model:
    return transformer(hidden=128, layers=1, feed_forward=256, vocabulary=4096)


def used_bytes(directory: Path) -> int:
    """What has several names counts once."""
    found = (path.stat() for path in directory.rglob("*") if path.is_file())
    return sum({status.st_ino: status.st_size for status in found}.values())


@pytest.mark.slow
def test_all_who_work_bucket_to_bucket_write_what_they_should(tmp_path: Path) -> None:
    [scenario] = (scenario for scenario in SCENARIOS if scenario.name == "object-store")
    # last is who needs most room: it is measured before anything of it is removed
    others = tuple(who for who in scenario.contenders if who != S3_NAIVE)
    little = replace(scenario, model=little_model, contenders=others, once=(*scenario.once, S3_NAIVE))
    plan = Plan(little, little.contenders, little.once, rounds=1)
    room = []

    result = plan.run(tmp_path / "place", {}, lambda said: room.append(used_bytes(tmp_path / "place")))

    assert result.wrong == {}
    assert [run.contender for run in result.runs] == [who.name for who in (*little.contenders, *little.once)]
    model = little_model()
    source_bytes = sum(model.shard_bytes(Side.SOURCE, rank) for rank in range(4))
    for run in result.runs:
        assert run.traffic
        # shards are small here: what lies between two that are wanted is read with them
        assert 1 <= run.traffic.source_sent_bytes / source_bytes < 1.5, run.contender
        assert 1 <= run.traffic.received_bytes / result.target_bytes < 1.1, run.contender
        reads_back = run.contender == "s3-checksum"
        assert (run.traffic.target_sent_bytes > result.target_bytes) == reads_back, run.contender
    assert 0.8 < room[-1] / plan.needed_bytes() <= 1
    assert not (tmp_path / "place").exists()

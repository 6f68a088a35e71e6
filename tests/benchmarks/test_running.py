"""Scenarios from beginning to end: what all write, what an object store sends for it, the room it takes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.contenders import S3_COPY, S3_NAIVE, Contender
from benchmarks.models import Model, Side, fused_transformer, transformer
from benchmarks.object_store import NGINX, NO_NGINX
from benchmarks.running import Plan
from benchmarks.scenarios import SCENARIOS, Scenario


def little_model() -> Model:
    return transformer(hidden=128, layers=1, feed_forward=256, vocabulary=4096)


def little_llama() -> Model:
    """Eight do not divide its rows, nor the elements of some of its weights."""
    return fused_transformer(hidden=256, layers=1, feed_forward=100, vocabulary=36)


def used_bytes(directory: Path) -> int:
    """What has several names counts once."""
    found = (path.stat() for path in directory.rglob("*") if path.is_file())
    return sum({status.st_ino: status.st_size for status in found}.values())


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None and "CI" not in os.environ, reason=NO_NGINX)
@pytest.mark.parametrize("name", ["from-bucket", "from-bucket-late", "to-bucket", "bucket-to-bucket"])
def test_all_who_work_with_buckets_write_what_they_should(tmp_path: Path, name: str) -> None:
    [scenario] = (scenario for scenario in SCENARIOS if scenario.name == name)
    plan = Plan(replace(scenario, model=little_model), scenario.contenders, scenario.once, rounds=1)

    result = plan.run(tmp_path / "place", {}, lambda said: None)

    assert result.wrong == {}
    assert sorted(run.contender for run in result.runs) == sorted(who.name for who in plan.in_round(1))
    model = little_model()
    source_bytes = sum(model.shard_bytes(Side.SOURCE, rank) for rank in range(4))
    reads, writes = name != "to-bucket", name.startswith(("to", "bucket"))
    for run in result.runs:
        assert run.traffic
        # shards are small here: what lies between two that are wanted is read with them
        assert reads <= run.traffic.source_sent_bytes / source_bytes < 1.5 * reads + 0.1, run.contender
        assert writes <= run.traffic.received_bytes / result.target_bytes < 1.1 * writes + 0.1, run.contender
        reads_back = run.contender.endswith("checksum")
        assert (run.traffic.target_sent_bytes > result.target_bytes) == reads_back, run.contender
    assert not (tmp_path / "place").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp", "zero3", "merge"])
def test_the_vendors_and_reshard_write_the_same_weights(tmp_path: Path, name: str) -> None:
    [scenario] = (scenario for scenario in SCENARIOS if scenario.name == name)
    missing = [python.parents[1].name for python in scenario.pythons if not python.exists()]
    if missing:
        pytest.skip(f"make {' '.join(f'{name}/installed' for name in missing)}")
    plan = Plan(replace(scenario, model=little_llama), scenario.contenders, (), rounds=1)
    result = plan.run(tmp_path / "place", {}, lambda said: None)
    assert sorted(run.contender for run in result.runs) == sorted(who.name for who in scenario.contenders)


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None and "CI" not in os.environ, reason=NO_NGINX)
def test_whoever_needs_most_room_needs_no_more_than_was_said(tmp_path: Path) -> None:
    [scenario] = (scenario for scenario in SCENARIOS if scenario.name == "bucket-to-bucket")
    # who comes last is measured before anything of it is removed
    alone = replace(scenario, model=little_model, contenders=(S3_COPY,), once=())
    needed_bytes = Plan(alone, (S3_COPY, S3_NAIVE), (), rounds=1).needed_bytes()
    room = []
    plan = Plan(replace(alone, contenders=(S3_NAIVE,)), (S3_NAIVE, S3_COPY), (), rounds=1)
    plan.run(tmp_path / "place", {}, lambda said: room.append(used_bytes(tmp_path / "place")))
    assert 0.8 < room[-1] / needed_bytes < 1.01  # documents are left out


def test_contenders_take_turns_in_random_order_after_a_round_that_does_not_count(tmp_path: Path) -> None:
    def prints(name: str) -> Contender:
        return Contender(name, name, lambda job: ["true"], converts=False)

    many = tuple(map(prints, "abcdefgh"))
    scenario = Scenario("main", "", many, little_model, copies_source=True)
    result = Plan(scenario, many, (), rounds=3).run(tmp_path / "place", {}, lambda said: None)
    orders = [[run.contender for run in result.runs if run.round == number] for number in range(4)]
    assert orders[0] == []
    assert [sorted(order) for order in orders[1:]] == [list("abcdefgh")] * 3
    assert len(set(map(tuple, orders[1:]))) > 1

"""Checkpoints and strategies on disk and in object stores, in any mixture, give the same bytes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.strategy.files import read_strategy
from tests.support.checkpoints import ALL_CASES, Case, case, read_tree
from tests.support.runs import files_of
from tests.support.stores import Store

PROTOCOLS = ["s3", "obs"]
SOME_CASES = [case(number) for number in (7009, 7010)]
STRATEGIES = {"source_strategy": "src_strategy.ckpt", "target_strategy": "dst_strategy.ckpt"}


def name_of(conversion: Case) -> str:
    return conversion.directory.name


def all_there(store: Store, conversion: Case) -> dict[str, object]:
    """A conversion whose every URL is in the store."""
    strategies = {side: store.add(conversion.directory / name, name) for side, name in STRATEGIES.items()}
    return {**strategies, "source": store.add(conversion.directory / "src", "src")}


def strategy_options(urls: Mapping[str, object]) -> list[object]:
    return [each for side in STRATEGIES for each in (f"--{side.replace('_', '-')}", urls[side])]


def back(source: str, conversion: Case) -> dict[str, object]:
    """A conversion of what a conversion gave, from the target's strategy to the source's."""
    source_name, target_name = STRATEGIES.values()
    strategies = {"source_strategy": target_name, "target_strategy": source_name}
    return {"source": source, **{side: str(conversion.directory / name) for side, name in strategies.items()}}


def check_there_and_back(store: Store, conversion: Case, tmp_path: Path, file_format: str) -> None:
    convert(conversion.request(tmp_path / "there", format=file_format))
    convert(conversion.request(store.url("there"), format=file_format))
    assert files_of(store.files("there")) == files_of(tmp_path / "there")
    assert read_tree(store.files("there")) == conversion.want

    convert(conversion.request(tmp_path / "wanted", **back(str(tmp_path / "there"), conversion)))
    convert(conversion.request(tmp_path / "back", **back(store.url("there"), conversion)))
    assert files_of(tmp_path / "back") == files_of(tmp_path / "wanted")
    assert {"GetObject", "PutObject"} <= store.proxy.counts().keys()


@pytest.mark.parametrize("file_format", ["ckpt", "safetensors"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_from_disk_to_a_store_and_back(store: Store, tmp_path: Path, file_format: str) -> None:
    check_there_and_back(store, case(7010), tmp_path, file_format)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("conversion", ALL_CASES, ids=name_of)
def test_all_from_disk_to_a_store_and_back(store: Store, conversion: Case, tmp_path: Path) -> None:
    check_there_and_back(store, conversion, tmp_path, "same")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("conversion", SOME_CASES, ids=name_of)
def test_everything_in_a_store(store: Store, conversion: Case, tmp_path: Path) -> None:
    convert(conversion.request(store.url("out"), **all_there(store, conversion)))
    convert(conversion.request(tmp_path / "out"))
    assert files_of(store.files("out")) == files_of(tmp_path / "out")
    assert not [path for path in store.files("out").rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_strategy_files_of_the_ranks_in_a_store(store: Store, tmp_path: Path) -> None:
    conversion = case(7010)
    stages = store.add(conversion.directory / "src_stages", "strategies")
    convert(conversion.request(tmp_path / "out", source_strategy=stages))
    assert read_tree(tmp_path / "out") == conversion.want


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_file_in_a_store(store: Store, tmp_path: Path) -> None:
    conversion = case(7010)
    convert(conversion.request(tmp_path / "whole", target_strategy=""))
    url = store.add(tmp_path / "whole" / "rank_0" / "checkpoint_0.ckpt", "whole.ckpt")
    convert(conversion.request(store.url("out"), source=url, source_strategy=""))
    assert read_tree(store.files("out")) == conversion.want


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pattern_in_a_store(store: Store, tmp_path: Path) -> None:
    conversion = case(7010)
    store.add(conversion.directory / "src", "src")
    pattern = store.url("src/rank_{rank}/checkpoint_{rank}.ckpt")
    convert(conversion.request(tmp_path / "out", source=pattern))
    assert read_tree(tmp_path / "out") == conversion.want


def test_a_target_in_a_store_is_replaced_when_that_is_asked_for(store: Store) -> None:
    first, second = case(7010), case(7009)
    convert(first.request(store.url("out")))
    convert(second.request(store.url("out"), overwrite=True))
    assert read_tree(store.files("out")) == second.want


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inspect(store: Store, reshard: Callable[..., str]) -> None:
    conversion = case(7010)
    urls = all_there(store, conversion)
    found = json.loads(reshard("inspect", urls["source"], "--json"))
    assert (found["kind"], found["ranks"]) == ("checkpoint", list(range(8)))
    file = json.loads(reshard("inspect", f"{urls['source']}/rank_3/checkpoint_3.ckpt", "--json"))
    contents = read_tree(conversion.directory / "src")[3]
    assert {each["name"]: each["shape"] for each in file["parameters"]} == {
        name: list(shape) for name, (_, shape, _) in contents.items()
    }
    strategy = json.loads(reshard("inspect", urls["source_strategy"], "--json"))
    assert (strategy["kind"], strategy["world_size"]) == ("strategy", 8)
    convert(conversion.request(store.url("out")))
    assert "8 -> 2" in reshard("inspect", store.url("out"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plan(store: Store, reshard: Callable[..., str]) -> None:
    conversion = case(7010)
    shown = reshard("plan", *strategy_options(all_there(store, conversion)), store.url("src"))
    local = {side: conversion.directory / name for side, name in STRATEGIES.items()}
    wanted = reshard("plan", *strategy_options(local), conversion.directory / "src")
    assert "ranks       8 -> 2" in shown
    # what is read from where, for each rank
    assert shown.splitlines()[-2:] == wanted.splitlines()[-2:]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_verify(store: Store, reshard: Callable[..., str]) -> None:
    convert(case(7010).request(store.url("out")))
    assert reshard("verify", store.url("out")).endswith(": all files intact\n")
    path = store.files("out/rank_1/checkpoint_1.ckpt")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    store.server.look_again()
    assert run(["verify", store.url("out")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_convert_by_command(store: Store, reshard: Callable[..., str]) -> None:
    conversion = case(7010)
    options = (*strategy_options(all_there(store, conversion)), "--engine=prefect")
    reshard("convert", *options, store.url("src"), store.url("out"))
    assert read_tree(store.files("out")) == conversion.want


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_merge_strategy(store: Store, reshard: Callable[..., str]) -> None:
    conversion = case(7010)
    stages = store.add(conversion.directory / "src_stages", "stages")
    shown = reshard("merge-strategy", stages, store.url("merged.ckpt"))
    assert shown == f"{store.url('merged.ckpt')}: 2 stages of 4 devices, 6 parameters\n"
    merged = read_strategy(str(store.files("merged.ckpt")))
    want = read_strategy(str(conversion.directory / "src_strategy.ckpt"))
    assert [stage.layouts for stage in merged.stages] == [stage.layouts for stage in want.stages]

"""Files that MindSpore 2.10.0 wrote, converted, against the shards that are right: raw bytes, dtypes, shapes."""

import json
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import ALL_CASES, Case, case, read_ckpt, read_safetensors, read_tree
from tests.support.places import FIXTURES

EXPECT = json.loads((FIXTURES / "formats" / "expect.json").read_text())


@pytest.mark.parametrize("file_format", ["ckpt", "safetensors"])
@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_conversion(conversion: Case, file_format: str, tmp_path: Path) -> None:
    report = convert(conversion.request(tmp_path / "out", format=file_format))
    assert report.committed
    assert len(report.ranks) == conversion.info["dst_world"]
    assert read_tree(tmp_path / "out") == conversion.want


def test_there_are_conversions_that_mindspore_refuses() -> None:
    assert sum(not conversion.info["divisible"] for conversion in ALL_CASES) == 6


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_from_the_strategy_files_of_the_ranks(conversion: Case, tmp_path: Path) -> None:
    directories = {
        side: conversion.directory / f"{name}_stages"
        for side, name in (("source_strategy", "src"), ("target_strategy", "dst"))
        if (conversion.directory / f"{name}_stages").is_dir()
    }
    convert(conversion.request(tmp_path / "out", **{side: str(path) for side, path in directories.items()}))
    assert read_tree(tmp_path / "out") == conversion.want


def test_with_json_strategies(tmp_path: Path) -> None:
    conversion = case(7010)
    strategies = {
        "source_strategy": str(conversion.directory / "src_strategy.json"),
        "target_strategy": str(conversion.directory / "dst_strategy.json"),
    }
    convert(conversion.request(tmp_path / "out", **strategies))
    assert read_tree(tmp_path / "out") == conversion.want


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_joined_to_whole_tensors(conversion: Case, tmp_path: Path) -> None:
    convert(conversion.request(tmp_path / "out", target_strategy=""))
    [full] = read_tree(conversion.directory / "full").values()
    [joined] = read_tree(tmp_path / "out").values()
    assert {name: joined[name] for name in full} == full


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_cut_from_whole_tensors(conversion: Case, tmp_path: Path) -> None:
    convert(conversion.request(tmp_path / "out", source=str(conversion.directory / "full"), source_strategy=""))
    assert read_tree(tmp_path / "out") == conversion.want


@pytest.mark.parametrize("name", ["plain.ckpt", "crc.ckpt", "plain.safetensors", "crc.safetensors"])
def test_formats(name: str, tmp_path: Path) -> None:
    wanted = {
        name: (parameter["dtype"], tuple(parameter["shape"]), bytes.fromhex(parameter["hex"]))
        for name, parameter in EXPECT["params"].items()
    }
    if name == "crc.safetensors":
        del wanted["brain"]  # MindSpore cannot sum bfloat16
    source = str(FIXTURES / "formats" / name)
    convert(build_request(source=source, target=str(tmp_path / "one"), format="safetensors"))
    held = read_safetensors(tmp_path / "one" / "rank_0" / "checkpoint_0.safetensors")
    assert {name: held.get(name) for name in wanted} == wanted
    convert(build_request(source=str(tmp_path / "one"), target=str(tmp_path / "two"), format="ckpt"))
    back = read_ckpt(tmp_path / "two" / "rank_0" / "checkpoint_0.ckpt")
    assert {name: back.get(name) for name in wanted} == wanted
    if name.endswith(".ckpt"):
        assert set(wanted) | set(EXPECT["append"]) == set(back)
        assert back["note"][2].decode("utf-32-le") == EXPECT["append"]["note"]

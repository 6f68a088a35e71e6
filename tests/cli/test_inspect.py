import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.conversion.convert import convert
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.dcp import dcp_case
from tests.support.fsdp import fsdp_case
from tests.support.megatron import megatron_case
from tests.support.places import FIXTURES

FORMATS = FIXTURES / "formats"
EXPECT = json.loads((FORMATS / "expect.json").read_text())["params"]
CASE = case(7010).directory


@pytest.mark.parametrize(
    ("name", "has_crc"),
    [("plain.ckpt", False), ("crc.ckpt", True), ("plain.safetensors", False), ("crc.safetensors", True)],
)
def test_a_checkpoint_file(reshard: Callable[..., Any], name: str, has_crc: bool) -> None:
    found = reshard("inspect", FORMATS / name, "--json").json
    assert (found["kind"], found["format"], found["has_crc"]) == ("checkpoint file", name.partition(".")[2], has_crc)
    assert found["size_bytes"] == (FORMATS / name).stat().st_size
    there = {each["name"]: (each["dtype"], each["shape"], each["size_bytes"]) for each in found["parameters"]}
    want = {key: (each["dtype"], each["shape"], len(each["hex"]) // 2) for key, each in EXPECT.items()}
    assert there.items() >= {key: want[key] for key in want.keys() & there.keys()}.items()
    assert len(there.keys() & want.keys()) >= 9
    shown = reshard("inspect", FORMATS / name)
    assert "has one" in shown.out if has_crc else "none" in shown.out
    assert any(line.split() == ["dense.weight", "Float32", "[6,", "4]", "96", "B"] for line in shown.out.splitlines())


def test_an_adapter(reshard: Callable[..., Any]) -> None:
    shown = reshard("inspect", FIXTURES / "lora" / "case_bias_all" / "adapter").out
    assert "adapter     LoRA, 6 modules, rank 4, alpha 6, trained with 'base'" in shown
    assert "adapter_config.json" not in shown, "it was read, so it is not ignored"


def test_a_dcp_checkpoint(reshard: Callable[..., Any]) -> None:
    case = dcp_case("optimizer")
    found = reshard("inspect", case.source, "--json").json
    assert (found["kind"], len(found["parameters"]), len(found["objects"])) == ("DCP checkpoint", 40, 37)
    shards = next(each for each in found["parameters"] if each["name"] == "model.embed.weight")["shards"]
    assert shards[0] == {"start": [0, 0], "shape": [3, 6], "file": "__0_0.distcp"}
    assert found["files"][0]["file"] == "__0_0.distcp"
    shown = reshard("inspect", case.source / ".metadata").out
    assert "40, in " in shown
    assert "37, which only PyTorch can read: " in shown
    assert any(line.split()[:3] == ["model.embed.weight", "Float32", "[11,"] for line in shown.splitlines())


def test_a_torch_dist_checkpoint(reshard: Callable[..., Any]) -> None:
    case = megatron_case("dist_moe_tp2_ep2")
    found = reshard("inspect", case.source, "--json").json
    assert (found["kind"], found["step"], len(found["parameters"])) == ("torch_dist checkpoint", 3, 33)
    shown = reshard("inspect", case.iteration / "metadata.json").out
    assert shown.startswith("torch_dist checkpoint")
    assert "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight" in shown


def test_a_megatron_checkpoint(reshard: Callable[..., Any]) -> None:
    case = megatron_case("legacy_tp2_pp2")
    found = reshard("inspect", case.source, "--json").json
    assert (found["kind"], found["step"], len(found["parameters"])) == ("Megatron checkpoint", 3, 35)
    shown = reshard("inspect", case.source).out
    assert "tensor 2, pipeline 2, expert 1, expert tensor 2" in shown
    assert "num_hidden_layers 4, hidden_size 32, " in shown
    assert "{" not in shown
    assert "optimizer            by names" in reshard("inspect", megatron_case("legacy_optimizer_tp2").source).out
    lines = [line.split() for line in shown.splitlines()]
    assert ["mp_rank_00_001/model_optim_rng.pt", "20"] in lines
    assert ["decoder.layers.3.mlp.linear_fc1.weight", "BFloat16", "[64,", "32]", "4", "[16,", "32]"] in lines


def test_an_fsdp_checkpoint(reshard: Callable[..., Any], tmp_path: Path) -> None:
    case = fsdp_case("tp_fsdp2").copied(tmp_path / "global_step_40/actor")
    found = reshard("inspect", case.root, "--json").json
    assert (found["kind"], found["step"], len(found["parameters"])) == ("FSDP checkpoint", 40, 42)
    case.file(3).unlink()
    shown = reshard("inspect", case.root.parent).out
    assert "UNUSABLE" in shown
    assert "model_world_size_4_rank_3.pt is missing" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["directory", str(case.root)] in lines
    assert ["ranks", "4"] in lines
    assert ["optimizer", "by", "names"] in lines
    assert ["optim_world_size_4_rank_0.pt", "28"] in lines
    assert ["model.layers.0.mlp.gate_proj.weight", "Float32", "[24,", "16]", "3", "[6,", "16]"] in lines
    done = reshard("inspect", case.file(0))
    assert done.code == 2
    assert "is a part of an FSDP checkpoint: name the directory of all its ranks" in done.err


def test_redundancy_removed(reshard: Callable[..., Any]) -> None:
    path = FORMATS / "redundancy_removed/src_safetensors/rank_0/checkpoint_0.safetensors"
    assert reshard("inspect", path, "--json").json["redundancy_removed"]
    assert "redundancy" in reshard("inspect", path).out


def test_a_name_cannot_move_the_cursor(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "net.ckpt").write_bytes(checkpoint_bytes(("a\x1b[2J\n[bold]", "Int8", [1], b"\1")))
    assert "a\\x1b[2J\\n[bold]  Int8" in reshard("inspect", tmp_path / "net.ckpt").out


def make_checkpoint(directory: Path) -> None:
    for rank, steps in ((0, "1_9 1_10 2_10"), (1, "1_9 1_10"), (3, "1_9 1_10")):
        (directory / f"rank_{rank}").mkdir(parents=True)
        for step in steps.split():
            (directory / f"rank_{rank}/CKP-{step}.ckpt").touch()
    (directory / "rank_2").mkdir()
    (directory / "rank_0/CKP-graph.meta").touch()


def test_a_checkpoint(reshard: Callable[..., Any], tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    found = reshard("inspect", tmp_path, "--json").json
    assert found["kind"] == "checkpoint"
    assert (found["ranks"], found["ranks_without_files"]) == ([0, 1, 3], [2])
    assert found["ignored"] == ["rank_0/CKP-graph.meta"]
    [prefix] = found["prefixes"]
    assert prefix["steps"] == [
        {"step": "1_9", "ranks": [0, 1, 3]},
        {"step": "1_10", "ranks": [0, 1, 3]},
        {"step": "2_10", "ranks": [0]},
    ]
    lines = reshard("inspect", tmp_path).out.splitlines()
    assert "ranks       3: 0-1,3" in lines
    assert [line.split() for line in lines[-2:]] == [
        ["CKP", "1_10", "3", "of", "3", "all"],
        ["CKP", "2_10", "1", "of", "3", "0"],
    ]


def test_a_pattern(reshard: Callable[..., Any]) -> None:
    found = reshard("inspect", CASE / "src/rank_{rank}/checkpoint_{rank}.ckpt", "--json").json
    assert (found["kind"], found["shape"], found["ranks"]) == ("checkpoint", "pattern", list(range(8)))


def test_a_folder_of_checkpoint_files(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "A-graph.meta").touch()
    (tmp_path / "B-1_1.ckpt").write_bytes((FORMATS / "plain.ckpt").read_bytes())
    assert reshard("inspect", tmp_path, "--json").json["shape"] == "folder"


def test_a_converted_checkpoint(reshard: Callable[..., Any], tmp_path: Path) -> None:
    convert(case(7010).request(tmp_path / "out"))
    found = reshard("inspect", tmp_path / "out", "--json").json
    assert found["kind"] == "converted checkpoint"
    assert Manifest.model_validate_json(json.dumps(found["manifest"])).target_world_size == 2
    shown = reshard("inspect", tmp_path / "out").out
    assert "8 -> 2" in shown
    assert "rank_1/checkpoint_1.ckpt" in shown


def test_a_converted_dcp_checkpoint(reshard: Callable[..., Any], tmp_path: Path) -> None:
    convert(dcp_case("dtypes").request(tmp_path / "made", layout="dcp", shards=3))
    shown = reshard("inspect", tmp_path / "made").out
    assert "2 -> 3 files of shards" in shown
    assert "__2_0.distcp" in shown


@pytest.mark.parametrize("named", ["", "model.safetensors.index.json"])
def test_a_unified_checkpoint(reshard: Callable[..., Any], tmp_path: Path, named: str) -> None:
    made = tmp_path / "made"
    convert(case(7010).request(made, target_strategy="", layout="unified", max_shard_size="100KB"))
    shown = reshard("inspect", made)
    assert "8 -> 5 files of whole tensors" in shown.out
    assert "number  file" in shown.out
    shutil.rmtree(made / ".reshard")
    (made / "config.json").write_text("{}")
    found = reshard("inspect", made / named if named else made, "--json").json
    assert (found["kind"], found["index"]) == ("unified checkpoint", "model.safetensors.index.json")
    assert [len(file["parameters"]) for file in found["files"]] == [1, 1, 4, 1, 1]
    assert found["ignored"] == ["config.json"]
    shown = reshard("inspect", made)
    assert any(line.split() == ["parameters", "8,", "whole:", "Float32,", "Int32"] for line in shown.out.splitlines())
    assert any(line.split()[:2] == ["model-00003-of-00005.safetensors", "4"] for line in shown.out.splitlines() if line)
    (made / "model-00003-of-00005.safetensors").unlink()
    shown = reshard("inspect", made)
    assert shown.code == 2
    assert "model-00003-of-00005.safetensors is missing, where the index places" in shown.err


@pytest.mark.parametrize("name", ["src_strategy.ckpt", "src_strategy.json", "src_stages"])
def test_a_strategy(reshard: Callable[..., Any], name: str) -> None:
    found = reshard("inspect", CASE / name, "--json").json
    assert (found["kind"], found["merged"], found["world_size"]) == ("strategy", True, 8)
    assert [stage["ranks"] for stage in found["stages"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    layouts = {each["name"]: each for stage in found["stages"] for each in stage["parameters"]}
    # what MindSpore says of it, in its own JSON
    items = json.loads((CASE / "src_strategy.json").read_text())["parallel_layout_item"]
    for key, item in items.items():
        layout = layouts[key.partition("-")[2]]
        assert layout["device_matrix"] == item["dev_matrix"]
        assert layout["tensor_map"] == item["tensor_map"]
        assert layout["optimizer_shard_size"] == item["opt_weight_shard_size"]
    assert len(layouts) == len(items)


def test_links(reshard: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("strategies", "checkpoint"):
        (tmp_path / name).mkdir()
    for path in (CASE / "src_stages").iterdir():
        (tmp_path / "strategies" / path.name).symlink_to(path)
    for path in (CASE / "src").iterdir():
        (tmp_path / "checkpoint" / path.name).symlink_to(path)
    assert reshard("inspect", tmp_path / "strategies", "--json").json["kind"] == "strategy"
    assert reshard("inspect", tmp_path / "checkpoint", "--json").json["ranks"] == list(range(8))


def test_a_strategy_as_a_table(reshard: Callable[..., Any]) -> None:
    shown = reshard("inspect", CASE / "dst_strategy.ckpt").out.splitlines()
    assert "stage 0   2 devices, ranks 0-1, 6 parameters" in shown
    assert any(line.split("  ")[-1].strip() == "2, step 1" for line in shown)


def test_nested_maps_and_uneven_lengths(reshard: Callable[..., Any], tmp_path: Path) -> None:
    layout = ParameterLayout((2, 2), ((1, 0), ()), nested=True, param_split_shape=(1, 2, 3, 4))
    write_strategy(Strategy((StageStrategy(0, {"table": layout}),), "here"), str(tmp_path / "s.ckpt"))
    [stage] = reshard("inspect", tmp_path / "s.ckpt", "--json").json["stages"]
    [parameter] = stage["parameters"]
    assert parameter["tensor_map"] == [[1, 0], -1]
    assert parameter["uneven_lengths"] == [1, 2, 3, 4]
    assert "[[1, 0], -1]" in reshard("inspect", tmp_path / "s.ckpt").out
    assert reshard("inspect", tmp_path / "s.ckpt").out.splitlines()[-1].endswith("  [1, 2, 3, 4]")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.ckpt", b"", "empty"),
        ("a.ckpt", b"PK\x03\x04" + bytes(20), "zip archive"),
        ("a.safetensors", bytes(20), "a.safetensors"),
        (
            "a.md",
            b"# hello",
            "a.md: is neither a strategy nor a checkpoint file, whose name ends in .ckpt or .safetensors\n",
        ),
        ("a.txt", b"PK\x03\x04" + bytes(20), "a.txt: is not a strategy; it looks like a zip archive"),
        ("a.txt", b"{}", "a.txt: is not a strategy; it looks like a JSON one"),
        ("strategy", b"\x08\x00\x12", "strategy: is not a strategy: damaged"),
        ("a.json", b"{", "a.json"),
    ],
)
def test_something_else(reshard: Callable[..., Any], tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    shown = reshard("inspect", tmp_path / name)
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err


def test_an_empty_directory(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("inspect", tmp_path)
    assert shown.code == 2
    assert "holds neither rank_N folders nor checkpoint files" in shown.err


def test_a_pipe_is_not_waited_for(reshard: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.ckpt")
    shown = reshard("inspect", tmp_path / "net.ckpt")
    assert (shown.code, shown.err) == (2, f"reshard: error: {tmp_path}/net.ckpt: is neither a file nor a directory\n")


def test_an_encrypted_file_is_called_that(reshard: Callable[..., Any]) -> None:
    shown = reshard("inspect", FORMATS / "encrypted_AES-GCM.ckpt")
    assert shown.code == 2
    assert "encrypted" in shown.err


def test_a_universal_checkpoint_of_deepspeed(reshard: Callable[..., Any], tmp_path: Path) -> None:
    source = FIXTURES / "deepspeed/case_zero2_two_groups_tied_frozen/src"
    reshard("convert", source, tmp_path / "out", "--layout", "universal", "--overwrite")
    found = reshard("inspect", tmp_path / "out", "--json").json
    assert (found["kind"], found["step"], found["missing"]) == ("universal checkpoint of DeepSpeed", 2, [])
    shown = reshard("inspect", tmp_path / "out").out
    assert "global_step2_universal" in shown
    assert "zero/model.embed_tokens.weight/exp_avg.pt" in shown

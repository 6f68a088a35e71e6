"""FSDP's files of ranks on an object store."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.errors import InputError
from reshard.core.request.latest import LatestConversionRequest
from tests.support.checkpoints import read_safetensors
from tests.support.fsdp import fsdp_case
from tests.support.stores import Store


@pytest.mark.parametrize("name", ["fsdp2_uneven_optim", "tp_fsdp2"])
def test_files_of_ranks_are_read_by_ranges(name: str, store: Store, tmp_path: Path) -> None:
    case = fsdp_case(name)
    url = store.add(case.root, name)
    convert(case.request(tmp_path / "out", source=url, verify="content"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


def test_the_directory_beside_the_ranks_is_copied(store: Store, tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied")
    convert(case.request(tmp_path / "out", source=store.add(case.root, "tied")))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "qwen3"


def test_a_missing_rank_is_named(store: Store, tmp_path: Path) -> None:
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")
    case.file(1).unlink()
    url = store.add(case.root, "missing")
    with pytest.raises(InputError, match=r"model_world_size_4_rank_1\.pt is missing"):
        convert(case.request(tmp_path / "out", source=url))
    convert(case.request(tmp_path / "out", source=url, recover=True))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


def test_the_newest_complete_step_is_converted(store: Store, tmp_path: Path) -> None:
    for number in (3, 20):
        shutil.copytree(fsdp_case("fsdp1").root, tmp_path / f"training/global_step_{number}/actor")
    (tmp_path / "training/latest_checkpointed_iteration.txt").write_text("20")
    given = {"source": store.add(tmp_path / "training", "training"), "target": store.url("out"), "layout": "unified"}
    report = convert_latest(LatestConversionRequest.model_validate(given))
    assert (report.step, report.target) == ("20", store.url("out/20"))


@pytest.mark.slow
def test_a_training_becomes_a_hugging_face_directory_by_a_flow(
    store: Store, tmp_path: Path, reshard: Callable[..., str]
) -> None:
    case = fsdp_case("fsdp2_mixed_tied")
    shutil.copytree(case.root, tmp_path / "verl/global_step_40/actor")
    (tmp_path / "verl/latest_checkpointed_iteration.txt").write_text("40")
    options = ("--layout", "unified", "--select", "weights-only", "--engine", "prefect")
    reshard("convert", store.add(tmp_path / "verl", "verl"), store.url("out"), *options)
    want = {name: each for name, each in case.want.items() if not name.startswith("exp_avg")}
    assert read_safetensors(store.files("out") / "model.safetensors") == want
    assert json.loads((store.files("out") / "config.json").read_text())["torch_dtype"] == "bfloat16"

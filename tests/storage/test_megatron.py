"""Megatron's files of ranks on an object store."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.conversion.load import plan_load
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import read_safetensors, write_safetensors
from tests.support.megatron import megatron_case
from tests.support.megatron_sources import megatron_source
from tests.support.stores import Store

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.mark.parametrize("name", ["legacy_moe_tp2_ep2_grouped", "legacy_distrib_optim_tp2_dp2"])
def test_files_of_ranks_are_read_by_ranges(name: str, store: Store, tmp_path: Path) -> None:
    source = megatron_source(name)
    url = store.add(source.root, name)
    convert(source.request(tmp_path / "out", url, verify="content"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


def test_a_missing_file_is_named(store: Store, tmp_path: Path) -> None:
    source = megatron_source("legacy_tp2_pp2").copied(tmp_path / "ck")
    source.file("mp_rank_00_001").unlink()
    url = store.add(source.root, "missing")
    with pytest.raises(InputError, match="mp_rank_00_001/model_optim_rng.pt is missing"):
        convert(source.request(tmp_path / "out", url))


@pytest.mark.parametrize("protocol", ["obs"])
def test_one_layout_replaces_the_other(store: Store, tmp_path: Path) -> None:
    source, url = megatron_case("dist_tp2_pp2_optimizer"), store.url("out")
    asked = {"source": store.add(source.source, "src"), "target": url, "verify": "content"}
    by_ranks = {"layout": "megatron", "tensor_parallel": 2, "pipeline_parallel": 2}
    for layout in (by_ranks, {"layout": "torch_dist", "shards": 2}, by_ranks):
        request = build_request(**asked, **layout, overwrite=True)
        convert(request)
        assert convert(request).written_bytes == 0
        assert verify_target(url, VerifyLevel.CONTENT).problems == ()
    assert {path.name for path in store.files("out/iter_0000003").iterdir()} == {
        ".reshard",
        *("mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"),
    }
    assert (store.files("out") / TRACKER).read_text() == "3"
    convert(build_request(source=url, target=str(tmp_path / "back"), layout="unified"))
    assert read_safetensors(tmp_path / "back/model.safetensors") == source.want


@pytest.mark.parametrize("layout", [{"layout": "megatron", "tensor_parallel": 1}, {"layout": "torch_dist"}])
def test_iterations_as_they_come_and_the_ones_before_them(store: Store, layout: dict[str, object]) -> None:
    training, reports = store.files("training"), []
    for number in (3, 5, 7):
        shutil.copytree(megatron_source("legacy_tp2_pp2").iteration, training / f"iter_{number:07d}")
        (training / TRACKER).write_text(str(number))
        store.server.look_again()
        asked = {"source": store.url("training"), "target": store.url("out"), "keep_checkpoint_max": 2}
        reports.append(convert_latest(LatestConversionRequest.model_validate(asked | layout)))
    assert [(report.step, report.removed) for report in reports] == [("3", ()), ("5", ()), ("7", ("3",))]
    assert {path.name for path in store.files("out").iterdir()} == {"iter_0000005", "iter_0000007", TRACKER}
    assert (store.files("out") / TRACKER).read_text() == "7"


@pytest.mark.parametrize("layout", [{"layout": "megatron", "pipeline_parallel": 2}, {"layout": "torch_dist"}])
def test_what_is_chosen_is_read(store: Store, layout: dict[str, object], tmp_path: Path) -> None:
    """Of 12 MiB, one."""
    model, width, chosen = megatron_source("legacy_tp2_pp2").want, 1 << 14, "decoder.layers.1.mlp.linear_fc2.weight"
    for layer in range(4):
        shapes = {"linear_fc1": (2 * width, 32), "linear_fc2": (32, width)}
        for name, shape in shapes.items():
            values = bytes([layer]) * (2 * math.prod(shape))
            model[f"decoder.layers.{layer}.mlp.{name}.weight"] = "BFloat16", shape, values
    write_safetensors(tmp_path / "whole.safetensors", model)
    convert(build_request(source=str(tmp_path / "whole.safetensors"), target=store.url("out"), **layout))
    store.proxy.forget()
    [(_, found)] = plan_load(store.url("out"), check_crc=False).load(0, [chosen])
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == model[chosen][2]
    assert sum(exchange.sent_bytes for exchange in store.proxy.exchanges()) < 2 << 20

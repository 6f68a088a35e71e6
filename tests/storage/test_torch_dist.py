"""Directories of Megatron-Core's `torch_dist` on an object store."""

from pathlib import Path

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import read_safetensors
from tests.support.megatron import ITERATION, megatron_case
from tests.support.stores import Store


def test_read_from_there_written_there_and_replaced(store: Store, tmp_path: Path) -> None:
    first, second = megatron_case("dist_tp2_pp2_optimizer"), megatron_case("dist_moe_tp2_ep2")
    url = store.url("made")
    convert(build_request(source=store.add(first.source, "src"), target=url, layout="torch_dist", shards=3))
    request = build_request(source=str(second.source), target=url, layout="torch_dist", shards=2, overwrite=True)
    convert(request)
    files = store.files("made")
    assert (files / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert {file.name for file in (files / ITERATION).iterdir() if file.is_file()} == {
        *(".metadata", "common.pt", "metadata.json", "__extra_state.distcp"),
        *("__0_0.distcp", "__1_0.distcp"),
    }
    assert verify_target(url, VerifyLevel.CONTENT).problems == ()
    convert(build_request(source=url, target=str(tmp_path / "back"), layout="unified"))
    assert read_safetensors(tmp_path / "back/model.safetensors") == second.want

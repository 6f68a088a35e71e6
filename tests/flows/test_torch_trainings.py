"""Trainings with PyTorch as flow runs: ranks of FSDP as they come, ZeRO to DeepSpeed's universal checkpoint."""

import shutil
from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import ConversionError, StorageError
from reshard.core.options.validation import build_options
from reshard.core.request.conversion import build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.verification.published import verify_target
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.convert_latest_checkpoint import convert_latest_checkpoint
from tests.support.checkpoints import read_safetensors
from tests.support.conversions import failing, outcomes
from tests.support.deepspeed_files import deepspeed_case
from tests.support.flow_runs import Run
from tests.support.fsdp import fsdp_case
from tests.support.megatron_files import read_tree


def test_zero_becomes_a_universal_checkpoint_after_a_failed_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = deepspeed_case("case_zero3_bf16")
    request = build_request(source=str(case.root), target=str(tmp_path / "out"), layout="universal", verify="content")
    with monkeypatch.context() as patch:
        failing(patch, lambda rank: StorageError("its disk is broken") if rank == 1 else None)
        with pytest.raises(ConversionError, match="its disk is broken"):
            convert_checkpoint(request)
    assert not (tmp_path / "out/latest_universal").exists()
    report = convert_checkpoint(request)
    assert outcomes(report).count("resumed") == len(report.ranks) - 1
    assert (tmp_path / "out/latest_universal").read_text() == "global_step2_universal"
    assert verify_target(report.target, VerifyLevel.CONTENT).problems == ()
    for name, (dtype, shape, data) in case.want.items():
        if name.startswith("exp_avg."):
            path = tmp_path / "out/global_step2_universal/zero" / name.removeprefix("exp_avg.") / "exp_avg.pt"
            found = read_tree(path)["param"]
            assert (found.dtype, found.shape, found.data) == (dtype, shape, data)


def test_a_training_of_verls_is_converted_as_it_comes(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied")
    for number in (20, 40):
        shutil.copytree(case.root, tmp_path / f"verl/global_step_{number}/actor")
    (tmp_path / "verl/latest_checkpointed_iteration.txt").write_text("20")
    given: dict[str, object] = {"source": str(tmp_path / "verl"), "target": str(tmp_path / "out"), "layout": "unified"}
    request = build_options(LatestConversionRequest, **given | {"settle_seconds": 0, "patience_seconds": 0})
    assert convert_latest_checkpoint(request).step == "20", "the tracker does not name step 40 yet"
    (tmp_path / "verl/latest_checkpointed_iteration.txt").write_text("40")
    run = Run(convert_latest_checkpoint, request)
    assert run.state.result().target == str(tmp_path / "out/40")
    assert "# Converted: step 40" in run.artifacts["latest-conversion"]
    assert read_safetensors(tmp_path / "out/40/model.safetensors") == case.want
    assert (tmp_path / "out/40/config.json").exists()
    assert convert_latest_checkpoint(request).conversion is None, "there is nothing to do"

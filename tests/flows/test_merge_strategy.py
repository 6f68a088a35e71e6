"""Merging strategies as a flow."""

from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from reshard.core.conversion.merge_strategy import MergeRequest
from reshard.core.errors import InputError, StrategyError
from reshard.core.request.conversion import build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.strategy.files import read_strategy
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.convert_latest_checkpoint import convert_latest_checkpoint
from reshard.flows.merge_strategy import merge_strategy
from tests.support.checkpoints import case

DIRECTORY = case(7010).directory


def test_merged_like_mindspore(tmp_path: Path) -> None:
    target = tmp_path / "merged.ckpt"
    report = merge_strategy(MergeRequest(source=str(DIRECTORY / "src_stages"), target=str(target)))
    assert report.model_dump() == {"url": str(target), "stages": 2, "devices_per_stage": 4, "parameters": 6}
    merged, want = read_strategy(str(target)), read_strategy(str(DIRECTORY / "src_strategy.ckpt"))
    assert [stage.layouts for stage in merged.stages] == [stage.layouts for stage in want.stages]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "merged.ckpt"
    target.write_text("precious")
    request = MergeRequest(source=str(DIRECTORY / "src_stages"), target=str(target))
    with pytest.raises(InputError, match="already exists"):
        merge_strategy(request)
    assert target.read_text() == "precious"
    assert merge_strategy(request.model_copy(update={"overwrite": True})).stages == 2


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    state = merge_strategy(
        MergeRequest(source="/nowhere/strategy", target=str(tmp_path / "merged.ckpt")), return_state=True
    )
    assert state.is_failed()
    assert "/nowhere/strategy" in str(state.message)
    with pytest.raises(StrategyError):
        state.result()


def test_a_deployments_run_leaves_nothing_in_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "dcb2e6ba-2c22-4ad4-8b80-d0a7a1e3a1b5")
    source, target = str(DIRECTORY / "src"), "memory://out"
    runs: list[Callable[[], object]] = [
        lambda: merge_strategy(MergeRequest(source=str(DIRECTORY / "src_stages"), target=target)),
        lambda: convert_checkpoint(build_request(source=source, target=target)),
        lambda: convert_latest_checkpoint(LatestConversionRequest(source=source, target=target)),
    ]
    for run in runs:
        with pytest.raises(InputError, match=r"memory:// keeps files in the memory of this process, and they would be"):
            run()


def test_a_program_may_look_at_what_a_flow_left_in_its_memory() -> None:
    target = "memory://flows/merged.ckpt"
    merge_strategy(MergeRequest(source=str(DIRECTORY / "src_stages"), target=target))
    assert read_strategy(target).merged
    fsspec.filesystem("memory").rm("/flows", recursive=True)

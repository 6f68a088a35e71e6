"""The scheduled conversion on a real Prefect server: how its runs end, and what they leave for their readers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import LatestReport
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import CatalogError, ConversionError, StorageError
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.progress import SilentProgress, reporting_to
from reshard.flows.convert_latest_checkpoint import convert_latest_checkpoint
from reshard.flows.outcome import tail_of
from tests.support.checkpoints import read_tree
from tests.support.conversions import failing
from tests.support.flow_runs import Run
from tests.support.patience import PATIENCE_SECONDS
from tests.support.training import CASE, latest_request, save_step, saving_slowly


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.conversion.training_steps.LOOK_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr("reshard.core.conversion.latest.RENEWAL_SECONDS", 0.1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "training"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "converted"


class LatestRun(Run[LatestConversionRequest, LatestReport]):
    """A finished run of the flow."""

    def __init__(self, request: LatestConversionRequest) -> None:
        super().__init__(convert_latest_checkpoint, request)

    @property
    def end(self) -> tuple[str, str]:
        """The type and message of its state on the server."""
        state = self.stored_run.state
        assert state
        return state.type.value, str(state.message)

    @property
    def page(self) -> str:
        """The page that the run left."""
        return self.artifacts["latest-conversion"]

    @property
    def conversions(self) -> list[FlowRun]:
        """The runs below it."""
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[self.id]))
        with get_client(sync_client=True) as client:
            return client.read_flow_runs(flow_run_filter=below)


def test_a_conversion_is_a_run_of_its_own(source: Path, target: Path) -> None:
    save_step(source, "1_0")
    save_step(source, "1_1", ranks=[0])
    run = LatestRun(latest_request(source, target))
    report = run.state.result()
    assert report.conversion
    assert (report.outcome.value, report.step) == ("converted", "1_0")
    assert run.end == ("COMPLETED", f"step 1_0 was converted to {target}/1_0")
    assert read_tree(target / "1_0") == CASE.want
    assert run.stored_run.name == f"convert latest of {tail_of(str(source))} -> {tail_of(str(target))}"
    [below] = run.conversions
    assert below.name == f"convert {tail_of(str(source))} -> converted/1_0"
    assert below.state_name == "Completed"
    assert "# Converted: step 1_0" in run.page
    assert "- step 1_1 is skipped: no file of rank_1, rank_2, rank_3; its last change was" in run.page


def test_whoever_calls_it_gets_the_report(source: Path, target: Path) -> None:
    save_step(source, "1_0")
    report = convert_latest_checkpoint(latest_request(source, target))
    assert isinstance(report, LatestReport)
    assert isinstance(report.conversion, ConversionReport)


def test_every_note_is_logged_once_and_reaches_the_caller_once(
    source: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Listener(SilentProgress):
        def __init__(self) -> None:
            self.stored_run: list[str] = []

        def note(self, message: str) -> None:
            self.stored_run.append(message)

    save_step(source, "1_0")
    request = latest_request(source, target)
    convert(request.conversion_of("1_0").model_copy(update={"ranks": "0-1"}))
    listener = Listener()
    with reporting_to(listener), caplog.at_level("INFO"):
        convert_latest_checkpoint(request)
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("prefect")]
    reason = f"step 1_0 was converted to {target}/1_0"
    notes = (f"converting step 1_0 to {target}/1_0", "resuming: 2 of 3 ranks are done already", reason)
    assert [listener.stored_run.count(note) for note in notes] == [1, 1, 1]
    assert [logged.count(note) for note in notes] == [1, 1, 1]


def test_nothing_to_do_is_a_completed_run_that_says_so(source: Path, target: Path) -> None:
    save_step(source, "1_0")
    convert_latest_checkpoint(latest_request(source, target))
    run = LatestRun(latest_request(source, target))
    message = "nothing to do: step 1_0, the newest complete one, is already converted"
    assert run.end == ("COMPLETED", message)
    assert run.conversions == []
    assert "# Nothing new: step 1_0\n\nNothing to do: " in run.page


def test_what_is_removed_is_told(source: Path, target: Path) -> None:
    for number in range(2):
        save_step(source, f"1_{number}")
        run = LatestRun(latest_request(source, target, keep_checkpoint_max=1))
    assert run.state.result().removed == ("1_0",)
    assert "| Removed | 1_0 |" in run.page
    assert "| Kept | 1_1 |" in run.page


def test_a_dry_run_does_nothing(source: Path, target: Path) -> None:
    save_step(source, "1_0")
    run = LatestRun(latest_request(source, target, dry_run=True))
    assert run.end == ("COMPLETED", f"step 1_0 would be converted to {target}/1_0")
    assert str(run.stored_run.name).endswith("(dry run)")
    assert not target.exists()
    assert "# Dry run: would convert: step 1_0" in run.page


def test_a_step_that_is_being_written_is_waited_for(source: Path, target: Path) -> None:
    save_step(source, "1_0")
    save_step(source, "1_1", ranks=[0], age_seconds=0)
    with saving_slowly(source, "1_1", 2.0) as go_on:
        go_on()
        request = latest_request(source, target, settle_seconds=1, patience_seconds=PATIENCE_SECONDS)
        report = convert_latest_checkpoint(request)
    assert (report.outcome.value, report.step) == ("converted", "1_1")
    assert read_tree(target / "1_1") == CASE.want


def test_no_complete_step_is_a_failed_run_that_names_what_is_missing(source: Path, target: Path) -> None:
    save_step(source, "1_0", ranks=range(3))
    run = LatestRun(latest_request(source, target))
    kind, message = run.end
    assert kind == "FAILED"
    assert message.startswith(f"{source}: holds no complete checkpoint:\n  step 1_0 is skipped: no file of rank_3;")
    with pytest.raises(CatalogError, match="no file of rank_3"):
        run.state.result()


def test_a_conversion_that_fails_is_a_failed_run_and_the_next_one_goes_on(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(source, "1_0")
    with monkeypatch.context() as patch:
        failing(patch, lambda rank: StorageError("its disk is broken") if rank == 1 else None)
        run = LatestRun(latest_request(source, target))
    assert run.end[0] == "FAILED"
    assert "rank_1: its disk is broken" in run.end[1]
    with pytest.raises(ConversionError):
        run.state.result()
    assert not (target / "1_0").exists()
    again = convert_latest_checkpoint(latest_request(source, target))
    assert again.conversion
    assert [rank.outcome.value for rank in again.conversion.ranks] == ["resumed", "written", "resumed"]


def test_a_run_that_finds_another_at_the_same_step_ends_well(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(source, "1_0")
    under_way, go_on = threading.Event(), threading.Event()
    write = RankWork.make

    def slow(*args: Any, **kwargs: Any) -> Any:
        under_way.set()
        go_on.wait(PATIENCE_SECONDS)
        return write(*args, **kwargs)

    monkeypatch.setattr(RankWork, "make", slow)
    request = latest_request(source, target)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(copy_context().run, convert_latest_checkpoint, request)
        assert under_way.wait(PATIENCE_SECONDS)
        try:
            second = LatestRun(request)
        finally:
            go_on.set()
        assert first.result().outcome.value == "converted"
    assert second.end == ("COMPLETED", "nothing to do: another run is converting step 1_0")
    assert second.conversions == [], "there is no failed run below it"
    assert read_tree(target / "1_0") == CASE.want

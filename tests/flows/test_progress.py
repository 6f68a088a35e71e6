"""How far a run is, as its page in the UI shows it; and the events that go out when it ends."""

from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import get_client
from prefect.artifacts import update_progress_artifact

import reshard.tasks.progress
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import StorageError
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.progress import Progress, reporting_to
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.outcome import tail_of
from reshard.flows.verify_checkpoint import verify_checkpoint
from tests.support.checkpoints import case
from tests.support.conversions import failing
from tests.support.patience import until
from tests.support.run_events import event_of, run_id_of

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def progress_of(run_id: UUID) -> list[tuple[float, str]]:
    """The run's progress artifacts: percent, and what is said."""
    ours = {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}, "key": {"any_": ["run-progress"]}}}
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/filter", json=ours).json()
    return [(artifact["data"], artifact["description"]) for artifact in found]


def test_a_run_ends_at_100_and_sends_its_figures(target: Path) -> None:
    state = convert_checkpoint(FOUR_TO_THREE.request(target), return_state=True)
    report: ConversionReport = state.result()
    run_id = run_id_of(state)
    [(percent, said)] = progress_of(run_id)
    assert percent == 100
    assert said.startswith("Done: ")
    event = event_of(run_id, "reshard.conversion.completed")
    assert event["resource"]["prefect.resource.id"] == f"reshard.checkpoint.{target}"
    payload = event["payload"]
    assert payload["ranks"] == 3
    assert payload["identity"] == report.identity
    assert (payload["seconds"], payload["written_bytes"]) == (report.seconds, report.written_bytes)
    assert (payload["verified"], payload["verified_bytes"]) == ("checksum", report.verified_bytes)
    assert payload["retried_requests"] == 0


def test_the_bar_of_a_run_that_finds_everything_done(target: Path) -> None:
    convert_checkpoint(FOUR_TO_THREE.request(target))
    again = convert_checkpoint(FOUR_TO_THREE.request(target), return_state=True)
    assert again.is_completed()
    [(percent, said)] = progress_of(run_id_of(again))
    assert (percent, said.partition(",")[0]) == (100, "Done: checking earlier work")


def test_a_failed_run_stays_where_it_was_and_says_so(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda rank: StorageError("its disk is broken") if rank == 1 else None)
    state = convert_checkpoint(FOUR_TO_THREE.request(target), return_state=True)
    assert state.is_failed()
    [(percent, said)] = progress_of(run_id_of(state))
    assert percent < 100
    assert said.startswith("Stopped at ")
    event = event_of(run_id_of(state), "reshard.conversion.failed")
    assert event["resource"]["prefect.resource.id"] == f"reshard.checkpoint.{target}"
    assert event["payload"]["error"] == "ConversionError"
    assert "rank_1: its disk is broken" in event["payload"]["message"]


def test_a_failed_check_says_so_on_its_page(target: Path) -> None:
    convert_checkpoint(FOUR_TO_THREE.request(target))
    (target / "rank_1" / "checkpoint_1.ckpt").write_bytes(b"")
    state = verify_checkpoint(VerificationRequest(target=str(target)), return_state=True)
    ours = {"artifacts": {"flow_run_id": {"any_": [str(run_id_of(state))]}, "type": {"any_": ["markdown"]}}}
    with get_client(sync_client=True) as client:
        [page] = client.request("POST", "/artifacts/filter", json=ours).json()
    assert (page["key"], page["description"]) == ("verification", f"Failed: verify {tail_of(str(target))}")
    assert "rank_1" in page["data"]


def test_it_is_brought_up_to_date_while_work_goes_on(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reshard.tasks.progress, "_SHOWN_EVERY_SECONDS", 0.05)
    shown: list[float] = []

    def watched(artifact: UUID, percent: float, **options: Any) -> object:
        shown.append(percent)
        return update_progress_artifact(artifact, percent, **options)

    class Slow:
        """Waits before the second and third block until the ones before are shown."""

        blocks = 0

        def note(self, message: str) -> None: ...
        def begin(self, phase: str, total_bytes: int = 0) -> None: ...
        def advance(self, count_bytes: int) -> None:
            if count_bytes and self.blocks < 3:
                until(lambda: len(set(shown)) >= self.blocks, "progress is not shown")
                self.blocks += 1

    monkeypatch.setattr(reshard.tasks.progress, "update_progress_artifact", watched)
    slow: Progress = Slow()
    with reporting_to(slow):
        convert_checkpoint(FOUR_TO_THREE.request(target, workers=1))
    assert shown == sorted(shown)
    assert len(set(shown)) > 2
    assert shown[-1] == 100


@pytest.mark.parametrize("refused", ["create_progress_artifact", "update_progress_artifact"])
def test_a_server_that_takes_no_progress_fails_no_run(
    refused: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(reshard.tasks.progress, refused, refuse)
    assert convert_checkpoint(FOUR_TO_THREE.request(target)).committed

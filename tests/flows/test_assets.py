"""Assets of conversions, as a server records them."""

from pathlib import Path

import pytest
from prefect.exceptions import PrefectException

import reshard.tasks.assets
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import InputError
from reshard.core.request.source import FingerprintRequest
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.flows.convert_checkpoint import convert_checkpoint
from tests.support.checkpoints import case
from tests.support.run_events import event_of, events_of, run_id_of

FOUR_TO_THREE = case(7009)
MATERIALIZED, REFERENCED = "prefect.asset.materialization.succeeded", "prefect.asset.referenced"


@pytest.mark.slow
def test_source_and_target_are_recorded_if_that_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "silent"), return_state=True)
    event_of(run_id_of(silent), "reshard.conversion.completed")

    monkeypatch.setenv("RESHARD_RECORD_ASSETS", "1")
    target = tmp_path / "an out"
    # not a checkpoint yet
    partial = convert_checkpoint(FOUR_TO_THREE.request(target, verify="content", ranks="0"), return_state=True)
    state = convert_checkpoint(FOUR_TO_THREE.request(target, verify="content"), return_state=True)
    report: ConversionReport = state.result()
    run_id = run_id_of(state)
    source = {"prefect.resource.id": f"file://{report.source}", "prefect.resource.name": report.source}
    assert event_of(run_id, REFERENCED)["resource"] == source
    event = event_of(run_id, MATERIALIZED)
    assert event["resource"] == {
        "prefect.resource.id": f"file://{tmp_path}/an~20out",
        "prefect.resource.name": str(target),
    }
    related = {each["prefect.resource.role"]: each["prefect.resource.id"] for each in event["related"]}
    assert (related["asset"], related["asset-materialized-by"]) == (source["prefect.resource.id"], "reshard")
    assert event["payload"] == {
        "identity": report.identity,
        "source": report.source,
        "source_world_size": 4,
        "target_world_size": 3,
        "written_bytes": report.written_bytes,
        "verified": "content",
        "fingerprint": fingerprint_checkpoint(FingerprintRequest(source=str(target))).fingerprint,
    }
    for state in (silent, partial):
        assert state.is_completed()
        assert events_of(run_id_of(state), MATERIALIZED, REFERENCED) == []


def test_a_failure_to_record_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PrefectException("no assets today")

    monkeypatch.setenv("RESHARD_RECORD_ASSETS", "1")
    monkeypatch.setattr(reshard.tasks.assets, "add_asset_metadata", refuse)
    assert convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out")).committed
    assert "assets could not be recorded: no assets today" in caplog.text


def test_a_mistyped_setting_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHARD_RECORD_ASSETS", "always")
    with pytest.raises(InputError, match="RESHARD_RECORD_ASSETS=always"):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []

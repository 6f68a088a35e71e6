"""The steps of a training job: which is complete, and which is worth waiting for."""

import threading
import time
from pathlib import Path

import pytest

from reshard.core.conversion.training_steps import FoundSteps, StepWatch
from reshard.core.errors import (
    ConversionError,
)
from reshard.core.runtime.retry import stoppable
from tests.support.training import (
    LONG_AGO_SECONDS,
    RANKS,
    file_of,
    latest_request,
    save_step,
    set_age,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.conversion.training_steps.LOOK_AGAIN_SECONDS", 0.05)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "training"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "converted"


class Clock:
    """A clock that goes on only while somebody sleeps, however busy the machine is."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> bool:
        self.now += seconds
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("reshard.core.layouts.seen_steps.time", clock)
    monkeypatch.setattr("reshard.core.conversion.training_steps.sleep_unless_stopped", clock.sleep)
    return clock


def find(source: Path, target: Path, **options: object) -> FoundSteps:
    request = latest_request(source, target, **options)
    return StepWatch(request, RANKS).find(waits=True)


def test_settled_by_its_time_a_step_is_taken_at_once(source: Path, target: Path) -> None:
    save_step(source, "2_1", age_seconds=61)
    found = find(source, target, settle_seconds=60)
    assert found.newest
    assert str(found.newest.step) == "2_1"


@pytest.mark.parametrize("age_seconds", [0, -LONG_AGO_SECONDS], ids=["just now", "in the future"])
def test_settled_because_it_was_seen_unchanged(age_seconds: float, source: Path, target: Path, clock: Clock) -> None:
    save_step(source, "2_1", age_seconds=age_seconds)
    watch = StepWatch(latest_request(source, target, settle_seconds=1), RANKS)
    _, [first] = watch.look()
    assert not first.is_complete
    assert "changed less than 1 s ago" in first.incomplete
    began = clock.now
    found = watch.find(waits=True)
    assert found.newest
    assert found.newest.is_complete
    assert 0.9 < clock.now - began < 1.1


def test_a_change_begins_the_settling_anew(source: Path, target: Path, clock: Clock) -> None:
    save_step(source, "2_1", age_seconds=-LONG_AGO_SECONDS)
    watch = StepWatch(latest_request(source, target, settle_seconds=1), RANKS)
    watch.look()
    clock.sleep(1.1)
    set_age(file_of(source, "2_1", 1), -LONG_AGO_SECONDS - 5)
    _, [seen] = watch.look()
    assert seen.incomplete == "rank_1 changed less than 1 s ago"


@pytest.mark.usefixtures("clock")
def test_a_job_that_saves_all_the_time_is_not_waited_for_for_ever(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(source, "1_1")
    save_step(source, "1_2", ranks=range(2), age_seconds=0)
    pauses = iter(range(3, 100))

    def pause(_: float) -> bool:
        number = next(pauses)
        save_step(source, f"1_{number}", ranks=range(2), age_seconds=0)
        save_step(source, f"1_{number - 1}")
        return True

    monkeypatch.setattr("reshard.core.conversion.training_steps.sleep_unless_stopped", pause)
    found = find(source, target)
    assert found.newest
    assert str(found.newest.step) == "1_2"
    assert found.notes[0].startswith("step 1_3 is skipped: no file of rank_2, rank_3; its last change was 0.")


def test_waiting_ends_when_the_run_is_to_stop(source: Path, target: Path) -> None:
    save_step(source, "2_1", ranks=range(2), age_seconds=0)
    with stoppable() as stop:
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(ConversionError, match="stopped while waiting"):
            find(source, target)

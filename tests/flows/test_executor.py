"""The executor of flows: how many ranks a task does, and that both engines do and say the same."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from reshard.core.conversion.convert import convert
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import ReshardError, StorageError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.budget import WorkerPool
from reshard.core.runtime.progress import SilentProgress, current_progress, reporting_to
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.executor import TaskExecutor
from reshard.tasks.progress import RunProgress
from tests.core.layouts.dcp.test_catalog import strategy_of
from tests.core.layouts.dcp.test_crcs import DAMAGED, UNEVEN, flip_value
from tests.support.checkpoints import case
from tests.support.conversions import failing, stop_before_commit, whole_copies

FOUR_TO_THREE = case(7009)
PIPELINES = case(7001)
_OF_ONE_RUN = {"seconds", "record_digest", "created", "plan_digest", "target", "directory", "run"}
"""Fields that are different in each run."""


# ---- batches of a pool ----


@pytest.mark.parametrize(
    ("ranks", "rank_bytes", "processes", "threads", "batches"),
    [
        (8, 0, 2, 1, 0),
        (9, 0, 2, 1, 8),
        (16, 2**20, 2, 1, 8),
        (100, 2**20, 2, 2, 16),
        (100, 2**20, 64, 1, 0),  # each thread is to have several
        (1000, 2**20, 64, 1, 128),
        (16, 2**28, 2, 1, 0),  # a task for each costs little beside its bytes
        (100, 2**26, 2, 1, 25),
        (1000, 2**34, 2, 1, 128),
    ],
)
def test_small_ranks_of_a_pool_are_done_in_batches(
    ranks: int, rank_bytes: int, processes: int, threads: int, batches: int
) -> None:
    """Ranks whose numbers begin at 4, the first of which are done."""
    totals = [SimpleNamespace(shard_bytes=rank_bytes)] * (ranks + 3)
    plan = SimpleNamespace(totals=totals, target_ranks=range(4, ranks + 7))
    session: Any = SimpleNamespace(pending=tuple(range(7, ranks + 7)), plan=plan)
    runner: Any = SimpleNamespace(pool=WorkerPool(processes, threads))
    with disable_run_logger():
        progress = RunProgress(SilentProgress(), threading.Event())
        assert TaskExecutor(progress, runner).max_batches(session) == batches
        assert TaskExecutor(progress).max_batches(session) == (128 if ranks > 128 else 0)


# ---- both engines ----


class RecordedProgress(SilentProgress):
    """The notes and phases that a conversion reports."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[tuple[str, int]] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        self.phases.append((phase, total_bytes))


def without_figures(document: Any) -> Any:
    """A JSON document without what is different in each run."""
    if isinstance(document, dict):
        return {name: without_figures(each) for name, each in document.items() if name not in _OF_ONE_RUN}
    return [without_figures(each) for each in document] if isinstance(document, list) else document


def record_in(path: Path) -> Any:
    """A record or a manifest, without the digest of itself."""
    document = json.loads(path.read_text())
    document.pop("digest", None)
    return without_figures(document)


class Carried:
    """A conversion by one engine into a target of its own: its progress, report and files."""

    def __init__(
        self, engine: Callable[[ConversionRequest], ConversionReport], request: ConversionRequest, target: Path
    ) -> None:
        self.progress = RecordedProgress()
        self.report: Any = None
        self.error = ""
        with reporting_to(self.progress):
            try:
                report = engine(request.model_copy(update={"target": str(target)}))
                self.report = without_figures(report.model_dump(mode="json"))
            except ReshardError as error:
                self.error = f"{type(error).__name__}: {error}".replace(str(target), "TARGET")
        self.progress.notes = [note.replace(str(target), "TARGET") for note in self.progress.notes]
        there = next(
            (place for place in (target, target.with_name(target.name + ".reshard-partial")) if place.exists()), target
        )
        self.files = {
            str(path.relative_to(there)): path.read_bytes()
            for path in there.rglob("*")
            if path.is_file() and ".reshard" not in path.parts
        }
        self.records = {path.name: record_in(path) for path in (there / ".reshard").rglob("*.json")}


def check_same(direct: Carried, flow: Carried) -> None:
    assert flow.error == direct.error
    assert flow.report == direct.report
    assert flow.progress.notes == direct.progress.notes
    assert flow.progress.phases == direct.progress.phases
    assert flow.files == direct.files
    assert flow.records == direct.records


def by_both(request: ConversionRequest, tmp_path: Path) -> Carried:
    """A conversion by both engines, which do and say the same."""
    direct = Carried(lambda request: convert(request, current_progress()), request, tmp_path / "direct")
    check_same(direct, Carried(convert_checkpoint, request, tmp_path / "flow"))
    return direct


def requests(tmp_path: Path) -> dict[str, ConversionRequest]:
    """One worker each, so that ranks come in one order."""
    to_ranks = strategy_of(UNEVEN.whole, tmp_path)
    return {
        "values": PIPELINES.request("unset", verify="content", workers=1),
        "copies": FOUR_TO_THREE.request("unset", target_strategy=whole_copies(tmp_path, 3), workers=1),
        "a part": FOUR_TO_THREE.request("unset", ranks="0-1", workers=1),
        "dcp": UNEVEN.request("unset", target_strategy=to_ranks, verify="content", workers=1),
        "unified": UNEVEN.request("unset", layout="unified", verify="none", workers=1),
        "crc": UNEVEN.request("unset", target_strategy=to_ranks, format="safetensors", write_crc=True, workers=1),
    }


@pytest.mark.parametrize("name", ["values", "copies", "a part", "dcp", "unified", "crc"])
def test_both_engines_do_and_say_the_same(name: str, tmp_path: Path) -> None:
    request = requests(tmp_path)[name]
    first = by_both(request, tmp_path)
    assert first.report["crc_bytes"] == 0
    assert len(first.files) == len(first.report["ranks"])
    again = by_both(request, tmp_path)
    assert {rank["outcome"] for rank in again.report["ranks"]} == {"resumed"}


def test_both_engines_go_on_alike_with_what_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = UNEVEN.request("unset", layout="dcp", shards=3, workers=1)
    for target in ("direct", "flow"):
        stop_before_commit(monkeypatch, request.model_copy(update={"target": str(tmp_path / target)}))
    assert by_both(request, tmp_path).report["crc_bytes"] == sum(len(data) for _, _, data in UNEVEN.whole.values())


WRONG = {
    "no strategy at all": {"source_strategy": "/nowhere/a.ckpt", "target_strategy": "/nowhere/b.ckpt"},
    "no source": {"source": "/nowhere/at/all"},
    "no such rank": {"ranks": "7"},
}


@pytest.mark.parametrize("name", WRONG)
def test_both_engines_refuse_alike(name: str, tmp_path: Path) -> None:
    assert by_both(FOUR_TO_THREE.request("unset", **WRONG[name]), tmp_path).error


def test_both_engines_name_a_failed_rank_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda rank: StorageError("its disk is broken") if rank == 1 else None)
    assert "rank_1: its disk is broken" in by_both(FOUR_TO_THREE.request("unset", workers=1), tmp_path).error


def test_both_engines_find_a_flipped_bit_as_they_read_and_repeat_what_was_made_of_it(tmp_path: Path) -> None:
    damaged = UNEVEN.copied(tmp_path / "case")
    flip_value(damaged, DAMAGED)
    request = damaged.request("unset", target_strategy=strategy_of(UNEVEN.whole, tmp_path), workers=1)
    found = by_both(request, tmp_path)
    assert f"parameter '{DAMAGED}'" in found.error
    assert "TARGET.reshard-partial holds what was made of the rest" in found.error
    flip_value(damaged, DAMAGED)
    assert by_both(request.model_copy(update={"overwrite": True}), tmp_path).report["committed"]

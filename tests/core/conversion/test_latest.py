"""Which step is taken, what is waited for, and that the same step is converted once."""

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import reshard.core.conversion.convert
import reshard.core.conversion.latest
import reshard.core.conversion.training_steps
from reshard.core.conversion.latest import LatestOutcome, LatestReport, convert_latest, run_latest
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import (
    CatalogError,
    InputError,
    StorageError,
    StrategyError,
    TargetBusyError,
    TargetError,
)
from reshard.core.records.plan_file import load_sources
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.resources import storages_of
from reshard.core.storage.file_versions import read_stamps
from tests.support.checkpoints import read_tree
from tests.support.dcp import dcp_case
from tests.support.patience import PATIENCE_SECONDS
from tests.support.signing import kept, new_key, private_pem
from tests.support.training import (
    CASE,
    LONG_AGO_SECONDS,
    RANKS,
    file_of,
    latest_request,
    save_step,
    saving_slowly,
    truncate,
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


class Notes:
    """A listener that keeps the notes."""

    def __init__(self) -> None:
        self.reason: list[str] = []

    def note(self, message: str) -> None:
        self.reason.append(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        pass

    def advance(self, count_bytes: int) -> None:
        pass


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def taken(report: LatestReport) -> tuple[str, str | None]:
    return report.outcome.value, report.step


# ---- which step ----


def test_the_newest_complete_step_is_converted_into_its_own_directory(source: Path, target: Path) -> None:
    for step in ("1_9", "1_10", "2_1"):
        save_step(source, step)
    report = convert_latest(latest_request(source, target))
    assert taken(report) == ("converted", "2_1")
    assert report.target == str(target / "2_1")
    assert report.conversion
    assert report.conversion.step == "2_1"
    assert read_tree(target / "2_1") == CASE.want
    assert names(target) == ["2_1"]


def test_once_converted_there_is_nothing_to_do(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1")
    convert_latest(latest_request(source, target))
    # the older one is not converted either, and no file is read
    monkeypatch.setattr("reshard.core.layouts.ranks.steps.read_index", None)
    report = convert_latest(latest_request(source, target))
    assert taken(report) == ("nothing new", "2_1")
    assert report.message == "nothing to do: step 2_1, the newest complete one, is already converted"
    assert names(target) == ["2_1"]


def test_a_step_that_is_saved_once_more_after_its_conversion_is_told(source: Path, target: Path) -> None:
    """A job that was set back: what is there is not the step that the source holds now."""
    save_step(source, "1_9")
    convert_latest(latest_request(source, target))
    save_step(source, "1_9", ranks=[2], age_seconds=LONG_AGO_SECONDS - 1000)
    for dry_run in (True, False):
        with pytest.raises(TargetError, match=rf"1_9: was converted from other files: .*{file_of(source, '1_9', 2)}"):
            convert_latest(latest_request(source, target, dry_run=dry_run))
    assert read_tree(target / "1_9") == CASE.want
    reshard.core.conversion.convert.convert(
        latest_request(source, target).conversion_of("1_9").model_copy(update={"overwrite": True})
    )
    assert taken(convert_latest(latest_request(source, target))) == ("nothing new", "1_9")


def test_a_step_of_the_same_number_of_another_prefix_is_told(source: Path, target: Path) -> None:
    """A job that restarts in the same directory saves under another prefix."""
    save_step(source, "1_9")
    convert_latest(latest_request(source, target))
    save_step(source, "1_9", prefix="CKP_1")
    with pytest.raises(TargetError, match="1_9: was converted from other files: .*CKP_1-1_9.ckpt was saved after that"):
        convert_latest(latest_request(source, target, source_prefix="CKP_1"))
    assert taken(convert_latest(latest_request(source, target, source_prefix="CKP"))) == ("nothing new", "1_9")


def test_what_is_gone_of_a_converted_step_does_not_matter(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    convert_latest(latest_request(source, target))
    file_of(source, "1_9", 2).unlink()
    assert taken(convert_latest(latest_request(source, target))) == ("nothing new", "1_9")


def test_a_file_that_was_touched_since_its_step_was_converted_is_refused(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    convert_latest(latest_request(source, target))
    assert taken(convert_latest(latest_request(source, target))) == ("nothing new", "1_9")
    file_of(source, "1_9", 2).chmod(0o600)
    file_of(source, "1_9", 2).chmod(0o640)
    message = r"was converted from other files: .* is of the same size and modification time, but changed since: it was"
    with pytest.raises(TargetError, match=message):
        convert_latest(latest_request(source, target))


def test_a_converted_step_whose_plan_is_damaged_is_told(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    convert_latest(latest_request(source, target))
    load_sources.cache_clear()
    (target / "1_9/.reshard/plan.json.gz").write_bytes(b"")
    with pytest.raises(TargetError, match="plan.json.gz: is not the plan that was written"):
        convert_latest(latest_request(source, target))


def test_what_was_saved_on_an_exception_is_never_chosen(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1_breakpoint")
    assert convert_latest(latest_request(source, target)).step == "1_9"


@pytest.mark.parametrize("missing", [0, 3])
def test_a_step_that_lacks_a_rank_is_passed_over_and_the_rank_is_named(
    missing: int, source: Path, target: Path
) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1", ranks={*RANKS} - {missing})
    report = convert_latest(latest_request(source, target))
    assert report.step == "1_9"
    assert report.notes[0].startswith(f"step 2_1 is skipped: no file of rank_{missing}; its last change was 27 h ")


def test_a_rank_folder_that_is_missing_altogether_is_missed(source: Path, target: Path) -> None:
    save_step(source, "2_1", ranks=range(3))
    with pytest.raises(CatalogError, match="holds no complete checkpoint:\n  step 2_1 is skipped: no file of rank_3"):
        convert_latest(latest_request(source, target))


def test_without_a_strategy_the_folders_say_which_ranks_there_are(source: Path, target: Path) -> None:
    save_step(source, "2_1", ranks=(0, 1, 3))
    with pytest.raises(CatalogError, match="no file of rank_2;"):
        convert_latest(latest_request(source, target, source_strategy=""))


def test_a_truncated_file_is_no_complete_step(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1")
    truncate(file_of(source, "2_1", 2))
    report = convert_latest(latest_request(source, target))
    assert report.step == "1_9"
    assert "step 2_1 is skipped: cannot be read to the end: rank_2: " in report.notes[0]
    assert str(file_of(source, "2_1", 2)) in report.notes[0]


def test_a_conversion_that_was_interrupted_is_gone_on_with(source: Path, target: Path) -> None:
    save_step(source, "2_1")
    request = latest_request(source, target)
    reshard.core.conversion.convert.convert(request.conversion_of("2_1").model_copy(update={"ranks": "0-1"}))
    assert names(target) == ["2_1.reshard-partial"]
    report = convert_latest(request)
    assert report.conversion
    assert [rank.outcome.value for rank in report.conversion.ranks] == ["resumed", "resumed", "written"]
    assert names(target) == ["2_1"]


def test_several_prefixes_leave_a_choice_as_for_any_conversion(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1", prefix="other")
    with pytest.raises(CatalogError, match="checkpoints of several prefixes: CKP, other. 'source_prefix' chooses one"):
        convert_latest(latest_request(source, target))
    with pytest.raises(CatalogError, match=r"no files of prefix third \('source_prefix'\)"):
        convert_latest(latest_request(source, target, source_prefix="third"))
    assert convert_latest(latest_request(source, target, source_prefix="CKP")).step == "1_9"


def test_a_prefix_may_contain_the_rank(source: Path, target: Path) -> None:
    for rank in RANKS:
        save_step(source, "1_9", ranks=[rank], prefix=f"net{rank}")
    for prefix in ("", "net{rank}", "net2"):
        assert convert_latest(latest_request(source, target, source_prefix=prefix)).step == "1_9"


def test_files_named_by_a_pattern(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1")
    assert convert_latest(latest_request(f"{source}/rank_{{rank}}", target)).step == "2_1"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("{source}/rank_0/CKP-2_1.ckpt", "is one file. Name the directory that training saves into"),
        (str(dcp_case("single").source), "is one DCP checkpoint, and has no steps"),
        ("{source}/nowhere", "{source}/nowhere"),
        ("{source}/empty", "holds no complete checkpoint:\n  there are no files with a step"),
    ],
)
def test_sources_that_cannot_be_meant(url: str, reason: str, source: Path, target: Path) -> None:
    save_step(source, "2_1")
    (source / "empty" / "rank_0").mkdir(parents=True)
    with pytest.raises(CatalogError) as raised:
        convert_latest(latest_request(url.format(source=source), target))
    assert reason.format(source=source) in str(raised.value)


def test_a_wrong_strategy_is_told(source: Path, target: Path) -> None:
    with pytest.raises(StrategyError, match="/nowhere"):
        convert_latest(latest_request(source, target, source_strategy="/nowhere"))


def test_a_target_of_another_training_job_is_refused(source: Path, target: Path) -> None:
    save_step(source, "2_1")
    save_step(source.with_name("other"), "2_1")
    convert_latest(latest_request(source, target))
    with pytest.raises(TargetError, match="was converted from another source"):
        convert_latest(latest_request(source.with_name("other"), target))


# ---- what is waited for ----


def test_a_step_that_is_being_written_is_waited_for(source: Path, target: Path) -> None:
    """The files are written by another process, and are as good as those of the finished checkpoint."""
    save_step(source, "1_9")
    with saving_slowly(source, "2_1", 2.0) as go_on:

        class Awaiting(Notes):
            def note(self, message: str) -> None:
                super().note(message)
                if message.startswith("waiting for"):
                    go_on()

        notes = Awaiting()
        request = latest_request(source, target, settle_seconds=1, patience_seconds=PATIENCE_SECONDS)
        report = convert_latest(request, notes)
    assert taken(report) == ("converted", "2_1")
    assert read_tree(target / "2_1") == CASE.want
    waited = [
        note for note in notes.reason if note.startswith("waiting for step 2_1, which is being written: no file of")
    ]
    assert len(waited) == 1, notes.reason


def test_a_step_that_was_begun_and_given_up_is_passed_over(source: Path, target: Path) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1", ranks=range(3), age_seconds=0)
    report = convert_latest(latest_request(source, target, settle_seconds=0, patience_seconds=1))
    assert taken(report) == ("converted", "1_9")
    assert re.search(r"step 2_1 is skipped: no file of rank_3; its last change was \d+\.", report.notes[0])


def test_a_file_that_vanishes_between_listing_and_looking_is_missing(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(source, "1_9")
    save_step(source, "2_1")

    def vanish(locations: Any) -> Any:
        file_of(source, "2_1", 1).unlink(missing_ok=True)
        return read_stamps(locations)

    monkeypatch.setattr("reshard.core.layouts.ranks.steps.read_stamps", vanish)
    report = convert_latest(latest_request(source, target))
    assert report.step == "1_9"
    assert "no file of rank_1" in report.notes[0]


# ---- the same step once ----


def together(count: int, request: Any) -> list[LatestReport]:
    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(convert_latest, request) for _ in range(count)]
        return [run.result() for run in runs]


def test_runs_that_overlap_do_not_convert_twice(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_step(source, "2_1")
    monkeypatch.setattr("reshard.core.conversion.latest.RENEWAL_SECONDS", 0.1)
    make = RankWork.make
    under_way, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        under_way.set()
        go_on.wait(PATIENCE_SECONDS)
        return make(*args, **kwargs)

    monkeypatch.setattr(RankWork, "make", slow)
    request = latest_request(source, target)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(convert_latest, request)
        assert under_way.wait(PATIENCE_SECONDS)
        try:
            second = convert_latest(request)
        finally:
            go_on.set()
        assert taken(second) == ("another run is converting it", "2_1")
        assert second.message == "nothing to do: another run is converting step 2_1"
        assert taken(first.result()) == ("converted", "2_1")
    assert names(target) == ["2_1"]


def test_runs_that_begin_together_all_end_well(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_step(source, "2_1")
    monkeypatch.setattr("reshard.core.conversion.latest.RENEWAL_SECONDS", 0.1)
    for _ in range(3):
        reports = together(4, latest_request(source, target))
        assert {report.step for report in reports} == {"2_1"}
        assert read_tree(target / "2_1") == CASE.want
        assert names(target) == ["2_1"]
        os.rename(target / "2_1", target.with_name(f"done-{time.monotonic_ns()}"))


def test_a_step_that_was_committed_between_look_and_claim_is_not_written_again(source: Path, target: Path) -> None:
    save_step(source, "2_1")
    request = latest_request(source, target)
    before: dict[str, int] = {}

    def late(conversion: ConversionRequest) -> ConversionReport:
        reshard.core.conversion.convert.convert(conversion)
        before.update({str(path): path.stat().st_mtime_ns for path in target.rglob("*.ckpt")})
        return reshard.core.conversion.convert.convert(conversion)

    with storages_of(request):
        assert run_latest(request, late).conversion
    assert before == {str(path): path.stat().st_mtime_ns for path in target.rglob("*.ckpt")}


def test_two_that_gave_way_to_each_other_look_again(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store both of two that begin at the same moment do."""
    save_step(source, "2_1")
    monkeypatch.setattr("reshard.core.conversion.latest.RENEWAL_SECONDS", 0.01)
    gave_way: Iterator[bool] = iter([True])

    def convert(conversion: ConversionRequest) -> ConversionReport:
        if next(gave_way, False):
            raise TargetBusyError("both gave way")
        return reshard.core.conversion.convert.convert(conversion)

    assert run_latest(latest_request(source, target), convert).outcome is LatestOutcome.CONVERTED


def test_what_else_goes_wrong_is_raised(source: Path, target: Path) -> None:
    save_step(source, "2_1")

    def fail(_: ConversionRequest) -> ConversionReport:
        raise StorageError("its disk is broken")

    with pytest.raises(StorageError, match="its disk is broken"):
        run_latest(latest_request(source, target), fail)


# ---- dry runs ----


def test_a_dry_run_says_what_would_be_done_and_does_nothing(source: Path, target: Path) -> None:
    for step in ("1_1", "1_2"):
        save_step(source, step)
        convert_latest(latest_request(source, target))
    save_step(source, "1_3")
    save_step(source, "1_4", ranks=[0])
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    options = {"keep_checkpoint_max": 2, "require_signed_by": "/any.pub"}
    report = convert_latest(latest_request(source, target, dry_run=True, **options))
    assert report.notes[0] == "the signature of the source would be checked first"
    assert taken(report) == ("would convert", "1_3")
    assert report.target == str(target / "1_3")
    assert report.removed == ("1_1",)
    assert report.kept == ("1_2",)
    assert "step 1_4 is skipped" in report.notes[1]
    assert before == {path: path.stat().st_mtime_ns for path in target.rglob("*")}


@pytest.mark.parametrize("older", [None, "1_9"])
def test_a_dry_run_does_not_wait(older: str | None, source: Path, target: Path) -> None:
    if older:
        save_step(source, older)
    save_step(source, "2_1", ranks=[0], age_seconds=0)
    report = convert_latest(latest_request(source, target, dry_run=True))
    assert taken(report) == ("would wait", older)
    assert report.notes == ("would wait for step 2_1: no file of rank_1, rank_2, rank_3",)
    assert not target.exists()


def test_a_dry_run_of_what_is_converted(source: Path, target: Path) -> None:
    save_step(source, "2_1")
    convert_latest(latest_request(source, target))
    assert convert_latest(latest_request(source, target, dry_run=True)).outcome is LatestOutcome.NOTHING_NEW


# ---- the request ----


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"settle_seconds": -1}, "settle_seconds -1: must be at least 0"),
        (
            {"settle_seconds": 601},
            "patience_seconds 600: must be at least the settling time, 601, or no step is ever waited for",
        ),
        ({"patience_seconds": 59}, "patience_seconds 59: must be at least the settling time, 60"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max -1: must be at least 0"),
        (
            {"keep_checkpoint_per_n_minutes": "x"},
            "keep_checkpoint_per_n_minutes 'x': must be a whole number",
        ),
        ({"dry_run": "maybe"}, "dry_run 'maybe': must be true or false"),
        ({"step": "1_1"}, "step '1_1': there is no such option"),
        ({"source": ""}, "source '': must not be empty"),
        ({"target": "s3://u:p@b/x"}, "target: "),
        ({"prefix": "a/b"}, "prefix 'a/b': must be a plain name"),
    ],
)
def test_refusals(options: dict[str, object], reason: str, source: Path, target: Path) -> None:
    with pytest.raises(InputError) as raised:
        latest_request(**({"source": source, "target": target} | options))  # type: ignore[arg-type]
    assert str(raised.value).startswith(reason)


def test_the_conversion_of_a_step_has_all_options(source: Path, target: Path) -> None:
    request = latest_request(source, f"{target}/", format="safetensors", allow_missing=["a*"], workers=3)
    conversion = request.conversion_of("1_2")
    assert (conversion.step, conversion.target) == ("1_2", f"{target}/1_2")
    shared = {name: getattr(request, name) for name in ("source", "format", "allow_missing", "workers")}
    assert {name: getattr(conversion, name) for name in shared} == shared


def test_the_form_describes_every_field() -> None:
    schema = LatestConversionRequest.model_json_schema()
    assert schema["required"] == ["source", "target"]
    titles = [field["title"] for field in schema["properties"].values()]
    assert len(set(titles)) == len(titles)
    assert all(len(field["description"]) > 20 for field in schema["properties"].values())


def test_what_was_not_asked_for_when_a_step_was_converted_is_not_added_but_named(source: Path, target: Path) -> None:
    save_step(source, "2_1")
    convert_latest(latest_request(source, target))
    key = kept(target.parent / "key.pem", private_pem(new_key()))
    unsigned = f"{target}/2_1: was converted before, and is not signed: 'reshard sign' signs it"
    without = f"{target}/2_1: was converted before, without SHA-256: the same conversion with sha256='target' adds it"
    for options, note in ({"sign": key}, unsigned), ({"sha256": "target"}, without):
        for dry_run in True, False:
            report = convert_latest(latest_request(source, target, dry_run=dry_run, **options))
            assert (report.outcome, report.notes) == (LatestOutcome.NOTHING_NEW, (note,))
    reshard.sign(target / "2_1", key=key)
    assert not convert_latest(latest_request(source, target, sign=key)).notes

"""The history of directories of targets: what real conversions leave there, and what hostile or old manifests say."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.manifest import Manifest, RunRecord, dump_record
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion import target_history as reading
from reshard.core.conversion.convert import convert
from reshard.core.conversion.history import ConversionState, HistoryEntry, HistoryFilter, MemoryBasis
from reshard.core.conversion.target_history import target_history
from reshard.core.errors import InputError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from reshard.core.storage.urls import parse_url
from reshard.core.target.claim import leased
from tests.support.checkpoints import case
from tests.support.runs import partial

FOUR_TO_THREE = case(7009)
COMMITTED, UNFINISHED, RUNNING, UNREADABLE = (
    ConversionState.COMMITTED,
    ConversionState.UNFINISHED,
    ConversionState.RUNNING,
    ConversionState.UNREADABLE,
)


def history(place: Path, wanted: HistoryFilter = HistoryFilter()) -> dict[str, HistoryEntry]:  # noqa: B008
    found = target_history(str(place), wanted)
    assert len({each.target for each in found}) == len(found)
    return {os.path.relpath(str(each.target), place): each for each in found}


def manifest_path(target: Path) -> Path:
    return target / STATE_DIRECTORY / MANIFEST_NAME


def manifest_of(target: Path) -> Manifest:
    manifest = read_manifest(parse_url(str(target)))
    assert manifest
    return manifest


def rewrite(target: Path, **fields: Any) -> None:
    """Gives a manifest other fields, and the digest that belongs to them."""
    manifest_path(target).write_bytes(dump_record(manifest_of(target).model_copy(update=fields)))


def replaced_by(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """A target in a directory of targets."""
    target = tmp_path / "targets" / "one"
    convert(FOUR_TO_THREE.request(target))
    return target


def test_a_conversion_says_when_who_what_how_much_and_how_long(tmp_path: Path) -> None:
    target = tmp_path / "one"
    before = datetime.now(UTC) - timedelta(seconds=1)
    report = convert(FOUR_TO_THREE.request(target, verify="content"))
    [entry] = target_history(str(tmp_path))
    assert (entry.state, entry.target, entry.source) == (COMMITTED, str(target), report.source)
    assert entry.begun
    assert entry.ended
    assert before <= entry.begun <= entry.ended <= datetime.now(UTC)
    assert entry.seconds
    assert entry.seconds >= report.seconds
    assert (entry.source_world_size, entry.target_world_size) == (4, 3)
    assert (entry.read_bytes, entry.written_bytes) == (report.read_bytes, report.written_bytes)
    assert entry.size_bytes == sum(rank.size_bytes for rank in report.ranks)
    assert (entry.resumed_ranks, entry.retried_requests) == (0, 0)
    assert (entry.verified, entry.fingerprint) == (VerifyLevel.CONTENT, report.fingerprint)
    assert report.fingerprint
    holder = new_holder(())
    assert entry.ran_as == f"{holder.user}@{holder.host}"
    assert entry.started_by == "unknown"
    assert entry.memory_basis is MemoryBasis.PEAK
    assert entry.memory_bytes
    assert entry.memory_bytes > 10 * 2**20
    assert entry.cost_gb_hours
    assert entry.identity == report.identity


def test_a_place_is_a_target_or_a_directory_of_targets(converted: Path) -> None:
    convert(FOUR_TO_THREE.request(converted.with_name("two")))
    (converted.parent / "foreign" / "rank_0").mkdir(parents=True)
    (converted.parent / "file").write_text("")
    assert history(converted).keys() == {"."}
    assert history(converted.parent).keys() == {"one", "two"}
    assert history(converted.parent.parent) == {}


def test_a_resumed_conversion_counts_what_its_last_run_did(tmp_path: Path) -> None:
    target = tmp_path / "one"
    first = convert(FOUR_TO_THREE.request(target, ranks="0-1"))
    second = convert(FOUR_TO_THREE.request(target))
    entry = history(tmp_path)["one"]
    assert (entry.resumed_ranks, entry.written_bytes) == (2, second.written_bytes)
    assert entry.read_bytes == second.read_bytes
    assert entry.size_bytes == first.written_bytes + second.written_bytes


def test_ranks_that_another_run_did_count_as_resumed(tmp_path: Path) -> None:
    target = tmp_path / "one"
    convert(FOUR_TO_THREE.request(target, ranks="0-1"))
    last = convert(FOUR_TO_THREE.request(target, ranks="2"))
    entry = history(tmp_path)["one"]
    assert (entry.state, entry.resumed_ranks, entry.written_bytes) == (COMMITTED, 2, last.written_bytes)


def test_a_conversion_that_was_done_already_leaves_its_history_as_it_was(converted: Path) -> None:
    before = history(converted.parent)
    convert(FOUR_TO_THREE.request(converted))
    assert history(converted.parent) == before


def test_values_compared_later_add_level_and_fingerprint(converted: Path) -> None:
    assert history(converted.parent)["one"].fingerprint is None
    report = convert(FOUR_TO_THREE.request(converted, verify="content"))
    entry = history(converted.parent)["one"]
    assert (entry.verified, entry.fingerprint) == (VerifyLevel.CONTENT, report.fingerprint)
    assert entry.written_bytes


def test_beside_an_encrypted_target_there_is_no_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "0123456789abcdef")
    convert(FOUR_TO_THREE.request(tmp_path / "one", verify="content", encrypt_key="env:KEY"))
    entry = history(tmp_path)["one"]  # without the key
    assert (entry.state, entry.verified, entry.fingerprint) == (COMMITTED, VerifyLevel.CONTENT, None)
    assert entry.written_bytes


def test_unfinished_work_says_how_much_is_done_and_when_it_was_last_written(tmp_path: Path) -> None:
    target = tmp_path / "one"
    convert(FOUR_TO_THREE.request(target, ranks="0-1"))
    assert not target.exists()
    for place in (tmp_path, target):
        [entry] = target_history(str(place))
        assert (entry.state, entry.reason, entry.target) == (UNFINISHED, "2 ranks done", str(target))
        assert entry.ended
        assert (entry.source, entry.seconds, entry.written_bytes, entry.cost_gb_hours) == (None, None, None, None)


def test_unfinished_work_in_a_living_run_is_running(tmp_path: Path) -> None:
    target = tmp_path / "one"
    convert(FOUR_TO_THREE.request(target, ranks="0-1"))
    holder = new_holder([2], "x")
    with leased(parse_url(str(target)), holder):
        entry = history(tmp_path)["one"]
        assert (entry.state, entry.ran_as) == (RUNNING, f"{holder.user}@{holder.host}")
        assert entry.begun == datetime.fromisoformat(holder.started)
        assert entry.ended is None
    assert history(tmp_path)["one"].state is UNFINISHED


def test_a_replacement_in_progress_is_beside_what_it_replaces(converted: Path) -> None:
    convert(FOUR_TO_THREE.request(converted, ranks="0", format="safetensors", overwrite=True))
    found = target_history(str(converted.parent))
    assert [each.state for each in found] == [COMMITTED, UNFINISHED]
    assert {each.target for each in found} == {str(converted)}


def test_a_directory_with_nothing_but_leases_is_no_conversion(tmp_path: Path) -> None:
    (tmp_path / "one.reshard-partial" / STATE_DIRECTORY / "leases").mkdir(parents=True)
    assert history(tmp_path) == {}


def test_manifests_of_earlier_versions_leave_blank_what_they_do_not_say(converted: Path) -> None:
    fields = json.loads(manifest_path(converted).read_text())
    for name in ("run", "fingerprint", "digest", "plan_digest"):
        del fields[name]
    manifest_path(converted).write_text(json.dumps(fields))
    entry = history(converted.parent)["one"]
    assert entry.state is COMMITTED
    assert entry.ended
    assert entry.size_bytes
    assert (entry.begun, entry.seconds, entry.written_bytes, entry.ran_as) == (None, None, None, None)
    assert entry.cost_gb_hours is None


RUN = RunRecord(
    begun="2026-11-26T10:00:00+00:00",
    seconds=1,
    user="u",
    host="h",
    read_bytes=1,
    written_bytes=1,
    resumed_ranks=0,
    retried_requests=0,
    peak_memory_bytes=1,
)


@pytest.mark.parametrize(
    ("fields", "blank"),
    [
        ({"created": "soon"}, "ended"),
        ({"created": "9999-12-31T23:59:59-23:59"}, "ended"),
        ({"source_world_size": 10**400}, "source_world_size"),
        ({"target_world_size": -1}, "target_world_size"),
        ({"run": RUN.model_copy(update={"begun": "\x1b[2J"})}, "begun"),
        ({"run": RUN.model_copy(update={"seconds": 1e300})}, "seconds"),
        ({"run": RUN.model_copy(update={"seconds": -1.0})}, "seconds"),
        ({"run": RUN.model_copy(update={"written_bytes": 2**63})}, "written_bytes"),
        ({"run": RUN.model_copy(update={"peak_memory_bytes": -5})}, "memory_basis"),
    ],
)
def test_what_no_conversion_says_is_blank(converted: Path, fields: dict[str, Any], blank: str) -> None:
    rewrite(converted, **fields)
    entry = history(converted.parent)["one"]
    assert entry.state is COMMITTED
    assert getattr(entry, blank) is None


def test_times_without_a_zone_are_utc_and_others_become_it(converted: Path) -> None:
    rewrite(converted, created="2026-11-26T10:00:00")
    assert history(converted.parent)["one"].ended == datetime(2026, 11, 26, 10, tzinfo=UTC)
    rewrite(converted, created="2026-11-26T10:00:00+02:00")
    assert history(converted.parent)["one"].ended == datetime(2026, 11, 26, 8, tzinfo=UTC)


def test_texts_of_strangers_are_printable_and_short(converted: Path) -> None:
    rewrite(converted, source="s3://me:hunter2@bucket/\x1b[2J" + "x" * 10**5, step="\n", run=RUN)
    [entry] = target_history(str(converted))
    text = entry.model_dump_json()
    assert len(text) < 5000
    assert "hunter2" not in text
    assert str(entry.source).isprintable()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-40]), id="cut"),
        pytest.param(lambda path: path.write_text("{}"), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"[" * 10**6), id="nested"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes().replace(b'"source"', b'"sauce"')), id="unknown"),
        pytest.param(lambda path: replaced_by(path, os.mkfifo), id="a pipe"),
        pytest.param(lambda path: replaced_by(path, os.mkdir), id="a directory"),
    ],
)
def test_a_damaged_manifest_is_an_entry_of_its_own_and_hides_no_other(
    converted: Path, spoil: Callable[[Path], object]
) -> None:
    convert(FOUR_TO_THREE.request(converted.with_name("two")))
    spoil(manifest_path(converted))
    found = history(converted.parent)
    assert found["one"].state is UNREADABLE
    assert str(manifest_path(converted)) in found["one"].reason
    assert found["two"].state is COMMITTED


def test_only_what_is_wanted_is_listed(converted: Path) -> None:
    convert(FOUR_TO_THREE.request(converted.with_name("two"), ranks="0"))
    parent = converted.parent
    assert history(parent, HistoryFilter(states={UNFINISHED})).keys() == {"two"}
    assert history(parent, HistoryFilter(target="*/one")).keys() == {"one"}
    assert history(parent, HistoryFilter(since=datetime.now(UTC) + timedelta(hours=1))) == {}


def test_nothing_is_changed(converted: Path) -> None:
    convert(FOUR_TO_THREE.request(converted.with_name("two"), ranks="0"))

    def there() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in converted.parent.rglob("*")}

    before = there()
    assert len(history(converted.parent)) == 2
    assert there() == before
    assert partial(converted.with_name("two")).exists()


def test_a_place_that_is_not_there_is_refused_with_what_was_meant(converted: Path) -> None:
    with pytest.raises(InputError, match="targetz: does not exist; did you mean .*targets"):
        target_history(str(converted.parent.with_name("targetz")))
    with pytest.raises(InputError, match=r"is a file; name a target, or a directory of targets"):
        target_history(str(manifest_path(converted)))


def test_too_many_directories_are_refused(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TARGETS", 2)
    for name in ("two", "three"):
        (converted.parent / name).mkdir()
    with pytest.raises(InputError, match="has 3 directories, more than the limit of 2: name some of them"):
        target_history(str(converted.parent))

"""What is kept is what MindSpore would keep, and nothing is removed but what a conversion wrote."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reshard.core.conversion.retention
from reshard.core.checkpoint.manifest import Manifest, RankSummary, dump_record
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.latest import convert_latest
from reshard.core.conversion.retention import DatedStep, KeepRules, Retention, apply_retention, steps_kept
from reshard.core.errors import StorageError, TargetError
from reshard.core.files.file_names import Step, parse_step
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.write_guard import claimed_while
from tests.conformance.mindspore_process import PYTHON
from tests.support.places import PROJECT
from tests.support.signing import kept as kept_in
from tests.support.signing import new_key, private_pem
from tests.support.training import CASE, latest_request, save_step

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = "/data/training"


# ---- which are kept ----


def dated(minutes: float, number: int) -> DatedStep:
    return DatedStep(MOMENT + timedelta(minutes=minutes), Step(1, number))


def kept(minutes: Sequence[float], rules: KeepRules) -> list[int]:
    """Which of conversions made at these minutes are kept, by their number."""
    return sorted(step.step for step in steps_kept([dated(at, number) for number, at in enumerate(minutes)], rules))


def mindspores_kept(times: Sequence[float], rules: KeepRules) -> list[int]:
    """`_save_ckpt`, `CheckpointManager` and `CheckpointConfig` in a few lines: seconds of saves -> numbers kept."""
    files: dict[int, float] = {}
    last = times[0]
    for number, now in enumerate(times):
        if rules.most:
            if rules.most <= len(files):
                del files[min(files, key=lambda file: files[file])]
        elif now - last < rules.minutes * 60:
            recent = [file for file, changed in files.items() if now - changed < 60 * rules.minutes]
            for file in recent:
                if file != min(recent, key=lambda other: files[other]):
                    del files[file]
        last = files[number] = now
    return sorted(files)


SAVES = st.lists(st.integers(1, 4000), min_size=1, max_size=40).map(
    lambda pauses: [float(sum(pauses[:count])) for count in range(1, len(pauses) + 1)]
)
"""Ascending seconds, no two the same."""
RULES = st.one_of(
    st.builds(KeepRules, most=st.integers(1, 6)),
    st.builds(KeepRules, minutes=st.integers(1, 90)),
    st.builds(KeepRules, most=st.integers(1, 6), minutes=st.integers(1, 90)),
)


@given(SAVES, RULES)
@example([0.0, 240.0, 480.0, 720.0, 960.0, 1200.0], KeepRules(minutes=10))
def test_as_mindspore_keeps(times: list[float], rules: KeepRules) -> None:
    assert kept([time / 60 for time in times], rules) == mindspores_kept(times, rules)


@given(SAVES, RULES)
def test_applied_after_each_conversion_or_once_comes_to_the_same(times: list[float], rules: KeepRules) -> None:
    there: set[DatedStep] = set()
    for number, time in enumerate(times):
        there.add(dated(time / 60, number))
        staying = steps_kept(there, rules)
        assert Step(1, number) in staying, "the newest"
        there = {each for each in there if each.step in staying}
        assert steps_kept(there, rules) == staying, "asked again"
    assert sorted(each.step.step for each in there) == kept([time / 60 for time in times], rules)


@pytest.mark.parametrize(
    ("rules", "numbers"),
    [
        (KeepRules(), [0, 1, 2, 3, 4, 5]),
        (KeepRules(most=1), [5]),
        (KeepRules(most=2), [4, 5]),
        (KeepRules(most=9), [0, 1, 2, 3, 4, 5]),
        (KeepRules(most=2, minutes=10), [4, 5]),
        (KeepRules(minutes=10), [0, 2, 4, 5]),
        (KeepRules(minutes=4), [0, 1, 2, 3, 4, 5]),
        (KeepRules(minutes=60), [0, 5]),
    ],
)
def test_every_four_minutes(rules: KeepRules, numbers: list[int]) -> None:
    assert kept([0, 4, 8, 12, 16, 20], rules) == numbers


def test_conversions_of_one_moment_are_told_apart_by_their_step() -> None:
    assert kept([0, 0, 0], KeepRules(most=2)) == [1, 2]
    assert kept([0, 0, 0], KeepRules(minutes=5)) == [0, 2]


def test_nothing_to_choose_from() -> None:
    assert steps_kept([], KeepRules(most=1)) == frozenset()


_MINDSPORE = """
import json, os, sys, tempfile, time, types
import mindspore.train.callback._checkpoint as module

def saved(times, most, minutes):
    config = module.CheckpointConfig(keep_checkpoint_max=most, keep_checkpoint_per_n_minutes=minutes)
    with tempfile.TemporaryDirectory() as directory:
        now = [times[0]]
        module.time = types.SimpleNamespace(time=lambda: now[0])
        callback = module.ModelCheckpoint(prefix="CKP", directory=directory, config=config)

        def save(network, path, *args, **kwargs):
            open(path, "w").close()
            os.utime(path, (now[0], now[0]))

        module.save_checkpoint = save
        for number, now[0] in enumerate(times):
            step = types.SimpleNamespace(cur_step_num=number + 1, cur_epoch_num=1, batch_num=10**6, train_network=None)
            callback._need_flush_from_cache = False
            callback._save_ckpt(step)
        return sorted(int(name.split("_")[1].split(".")[0]) - 1 for name in os.listdir(directory))

answers = [saved(*case) for case in json.load(sys.stdin)]
print("ANSWER " + json.dumps(answers))
"""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="MindSpore is not installed: make conformance")
def test_mindspore_itself_keeps_the_same() -> None:
    import random

    generator = random.Random(5)
    cases = []
    for _ in range(60):
        pauses = [generator.randint(1, 4000) for _ in range(generator.randint(1, 30))]
        times = [1.7e9 + sum(pauses[:count]) for count in range(1, len(pauses) + 1)]
        most = generator.choice([0, 1, 2, 5])
        cases.append((times, most, generator.randint(1, 60) if most == 0 else generator.choice([0, 30])))
    asked = subprocess.run(
        [PYTHON, "-c", _MINDSPORE], input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=False
    )
    answers = [line.removeprefix("ANSWER ") for line in asked.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, asked.stderr[-2000:]
    for (times, most, minutes), answer in zip(cases, json.loads(answers[0]), strict=True):
        assert kept([(time - 1.7e9) / 60 for time in times], KeepRules(most, minutes)) == answer
        assert mindspores_kept(times, KeepRules(most, minutes)) == answer


# ---- what is removed ----


def conversion(
    target: Path, step: str, minutes: float, *, source: str = SOURCE, says: str = "", file: str = "checkpoint_0.ckpt"
) -> Path:
    """A finished conversion, without any contents that matter."""
    directory = target / step
    (directory / "rank_0").mkdir(parents=True)
    (directory / "rank_0" / "checkpoint_0.ckpt").write_bytes(b"1234")
    (directory / ".reshard" / "records").mkdir(parents=True)
    (directory / ".reshard" / "records" / "rank_0.json").write_text("{}")
    manifest = Manifest(
        identity="i",
        writer="reshard",
        created=(MOMENT + timedelta(minutes=minutes)).isoformat(timespec="seconds"),
        source=source,
        step=says or step,
        source_world_size=1,
        target_world_size=1,
        format="ckpt",
        verified=VerifyLevel.CHECKSUM,
        dropped=(),
        excused=(),
        carried=(),
        notes=(),
        ranks=(RankSummary(rank=0, file=f"rank_0/{file}", size_bytes=4, record_digest=""),),
    )
    (directory / ".reshard" / "manifest.json").write_bytes(dump_record(manifest))
    return directory


def apply(target: Path, rules: KeepRules = KeepRules(most=1), **options: Any) -> Retention:  # noqa: B008
    return apply_retention(parse_url(str(target)), SOURCE, rules, **({"current": None} | options))


def everything(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")
    }


def test_all_of_a_conversion_is_removed_and_nothing_beside_it(tmp_path: Path) -> None:
    for number in range(4):
        conversion(tmp_path, f"1_{number}", number)
    staying = {path: content for path, content in everything(tmp_path).items() if path[:3] in ("1_2", "1_3")}
    assert apply(tmp_path, KeepRules(most=2)) == Retention(("1_0", "1_1"), ("1_2", "1_3"))
    assert everything(tmp_path) == staying
    assert apply(tmp_path, KeepRules(most=2)) == Retention((), ("1_2", "1_3"))


def test_without_rules_nothing_is_looked_at(tmp_path: Path) -> None:
    conversion(tmp_path, "1_0", 0)
    assert apply(tmp_path, KeepRules()) == Retention()
    assert apply(tmp_path / "nowhere") == Retention()


def test_the_step_that_is_at_hand_and_the_highest_stay(tmp_path: Path) -> None:
    """The highest would be converted again by the next run, and removed again."""
    conversion(tmp_path, "1_9", 0)
    conversion(tmp_path, "1_1", 1)
    conversion(tmp_path, "1_2", 2)
    conversion(tmp_path, "1_3", 3)
    assert apply(tmp_path, current=Step(1, 1)) == Retention(("1_2",), ("1_1", "1_3", "1_9"))


def test_what_is_to_come_counts(tmp_path: Path) -> None:
    conversion(tmp_path, "1_0", 0)
    conversion(tmp_path, "1_1", 1)
    done = apply(tmp_path, KeepRules(most=2), current=Step(1, 2), coming=True, dry_run=True)
    assert done == Retention(("1_0",), ("1_1",))
    assert (tmp_path / "1_0/rank_0/checkpoint_0.ckpt").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.rename(path.with_name("old")), id="not called as a step"),
        pytest.param(lambda path: path.rename(path.with_name("01_0")), id="nor as training writes one"),
        pytest.param(lambda path: path.rename(path.with_name("1_7")), id="of another step"),
        pytest.param(lambda path: path.rename(path.with_name("1_0_breakpoint")), id="saved on an exception"),
        pytest.param(lambda path: (path / ".reshard/manifest.json").unlink(), id="unfinished"),
        pytest.param(lambda path: shutil.rmtree(path / ".reshard"), id="not converted"),
        pytest.param(lambda path: (path / ".reshard/manifest.json").write_text("{}"), id="a damaged manifest"),
        pytest.param(lambda path: (path / "rank_0/checkpoint_0.ckpt").write_bytes(b"12345"), id="another size"),
        pytest.param(lambda path: (path / "rank_0/checkpoint_0.ckpt").write_bytes(b"4321"), id="changed since"),
        pytest.param(lambda path: path.with_name("1_0.reshard-partial").mkdir(), id="being replaced"),
        pytest.param(lambda path: path.with_name("1_0.reshard-replaced").mkdir(), id="replaced and not tidied up"),
    ],
)
def test_whatever_is_not_certainly_ours_is_left_alone(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    directory = conversion(tmp_path, "1_0", 0)
    conversion(tmp_path, "1_1", 1)
    os.utime(directory / ".reshard/manifest.json", (1e9, 1e9))
    os.utime(directory / "rank_0/checkpoint_0.ckpt", (1e9, 1e9))
    spoil(directory)
    before = everything(tmp_path)
    assert apply(tmp_path).removed == ()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("options", [{"source": "/data/other"}, {"says": "1_5"}])
def test_conversions_of_others_are_no_candidates(options: dict[str, str], tmp_path: Path) -> None:
    conversion(tmp_path, "1_0", 0, **options)
    conversion(tmp_path, "1_1", 1)
    assert apply(tmp_path) == Retention((), ("1_1",))
    assert (tmp_path / "1_0/rank_0/checkpoint_0.ckpt").exists()


@pytest.mark.parametrize(
    "file", ["../../../precious", "../checkpoint_0.ckpt", "a/b", "", "rank_0/..", "rank_1/checkpoint_0.ckpt"]
)
def test_a_manifest_that_lists_files_elsewhere_is_not_followed(file: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"1234")
    conversion(tmp_path / "out", "1_0", 0, file=file)
    conversion(tmp_path / "out", "1_1", 1)
    before = everything(tmp_path)
    assert "where no conversion writes it" in apply(tmp_path / "out").notes[0]
    assert everything(tmp_path) == before


@pytest.mark.parametrize("linked", ["1_0", "1_0/rank_0", "1_0/rank_0/checkpoint_0.ckpt"])
def test_links_to_elsewhere_are_not_followed(linked: str, tmp_path: Path) -> None:
    conversion(tmp_path / "out", "1_0", 0)
    conversion(tmp_path / "out", "1_1", 1)
    (tmp_path / "out" / linked).rename(tmp_path / "elsewhere")
    (tmp_path / "out" / linked).symlink_to(tmp_path / "elsewhere")
    before = everything(tmp_path)
    assert apply(tmp_path / "out").removed == ()
    assert everything(tmp_path) == before


def test_a_link_to_a_conversions_state_is_not_followed(tmp_path: Path) -> None:
    """Without its rank files, only its state identifies a conversion."""
    conversion(tmp_path / "out", "1_0", 0)
    conversion(tmp_path / "out", "1_1", 1)
    state = tmp_path / "out/1_0/.reshard"
    state.rename(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "out/1_0/rank_0")
    before = everything(tmp_path)
    retention = apply(tmp_path / "out")
    assert (retention.removed, retention.notes[0]) == (
        (),
        f"{tmp_path}/out/1_0: left as it is: a link leads to its .reshard",
    )
    assert everything(tmp_path) == before


def test_what_others_put_there_stays_with_its_folders(tmp_path: Path) -> None:
    directory = conversion(tmp_path, "1_0", 0)
    (directory / "rank_0/notes.txt").write_text("mine")
    (directory / "rank_1").mkdir()
    (directory / "rank_1/checkpoint_1.ckpt").write_text("mine as well")
    conversion(tmp_path, "1_1", 1)
    done = apply(tmp_path)
    assert done.removed == ("1_0",)
    assert done.notes[0].startswith(f"{directory}: holds what no conversion wrote, and stays: {directory}/rank_")
    assert set(everything(directory)) == {"rank_0", "rank_0/notes.txt", "rank_1", "rank_1/checkpoint_1.ckpt"}


def test_what_another_run_works_on_stays(tmp_path: Path) -> None:
    """It mends it in place, or writes its replacement beside it: the lease is beside it either way."""
    directory = conversion(tmp_path, "1_0", 0)
    conversion(tmp_path, "1_1", 1)
    with held_lease(parse_url(str(tmp_path / "1_0.reshard-partial/.reshard/leases")), new_holder([0])):
        done = apply(tmp_path)
    assert done.removed == ()
    assert "left as it is: " in done.notes[0]
    assert "another run is already converting" in done.notes[0]
    assert (directory / "rank_0/checkpoint_0.ckpt").exists()


def test_a_failure_is_told_and_the_next_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = conversion(tmp_path, "1_0", 0)
    conversion(tmp_path, "1_1", 1)
    (directory / "rank_0/notes.txt").write_text("mine")

    def fail(files: Sequence[Location]) -> None:
        for file in files:
            if file.name != "manifest.json":
                raise StorageError("permission denied")
            remove_file(file)

    with monkeypatch.context() as patch:
        patch.setattr(reshard.core.conversion.retention, "_remove_claimed", fail)
        done = apply(tmp_path)
    assert done.removed == ()
    assert done.notes == (f"{directory}: could not be removed, the next run tries again: permission denied",)
    assert not (directory / ".reshard/manifest.json").exists(), "it is not a checkpoint any more"
    assert apply(tmp_path).removed == ("1_0",)
    assert set(everything(tmp_path / "1_0")) == {"rank_0", "rank_0/notes.txt"}


_KILLED = """
import os, signal, sys
import reshard.core.conversion.retention
from tests.core.conversion.test_retention import Path, apply

reshard.core.conversion.retention._listed_files = lambda conversion: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "halfway":  # once the manifest is gone
    reshard.core.conversion.retention._check_removable = lambda conversion: None
apply(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("when", ["claimed", "halfway"])
def test_a_removal_that_was_killed_is_gone_on_with(when: str, tmp_path: Path) -> None:
    """The place of its lease is still there, and looks as if the conversion was being replaced."""
    conversion(tmp_path, "1_0", 0)
    conversion(tmp_path, "1_1", 1)
    script = _KILLED
    if when == "claimed":
        script = script.replace(
            "reshard.core.conversion.retention._listed_files", "reshard.core.conversion.retention.dump_record"
        )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path), when], cwd=PROJECT)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "1_0.reshard-partial").exists()
    assert (tmp_path / "1_0/.reshard/manifest.json").exists() is (when == "claimed")
    assert apply(tmp_path) == Retention(("1_0",), ("1_1",))
    assert sorted(os.listdir(tmp_path)) == ["1_1"]


def test_a_removal_that_is_taken_for_dead_removes_no_more(tmp_path: Path) -> None:
    """On an object store another run may be writing files of the same names by then."""
    directory = conversion(tmp_path, "1_0", 0)
    conversion(tmp_path, "1_1", 1)

    def check() -> None:
        if not (directory / ".reshard/manifest.json").exists():
            raise TargetError("this run was considered dead")

    with claimed_while(check):
        done = apply(tmp_path)
    assert done.removed == ()
    assert done.notes == (f"{directory}: left as it is: this run was considered dead",)
    assert (directory / "rank_0/checkpoint_0.ckpt").exists()


def test_an_older_file_that_was_moved_over_one_of_ours_stays(tmp_path: Path) -> None:
    """Neither its size nor its time tell: it was moved, or copied with its times."""
    source, target, mine = tmp_path / "training", tmp_path / "converted", tmp_path / "mine"
    save_step(source, "1_0")
    convert_latest(latest_request(source, target))
    [file] = (target / "1_0/rank_0").iterdir()
    content = file.read_bytes()
    mine.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(mine, (1e9, 1e9))
    mine.rename(file)
    save_step(source, "1_1")
    report = convert_latest(latest_request(source, target, keep_checkpoint_max=1))
    assert report.removed == ()
    assert report.notes == (f"{target}/1_0: left as it is: {file} was changed after it was written",)
    assert file.exists()


def test_files_that_were_given_another_mode_are_removed_all_the_same(tmp_path: Path) -> None:
    source, target = tmp_path / "training", tmp_path / "converted"
    save_step(source, "1_0")
    convert_latest(latest_request(source, target))
    for file in (target / "1_0").glob("rank_*/*"):
        file.chmod(0o440)
    save_step(source, "1_1")
    assert convert_latest(latest_request(source, target, keep_checkpoint_max=1)).removed == ("1_0",)
    assert sorted(os.listdir(target)) == ["1_1"]


def test_a_target_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise StorageError("permission denied")

    monkeypatch.setattr(reshard.core.conversion.retention, "list_folder", fail)
    assert apply(tmp_path).notes == (f"nothing was removed from {tmp_path}: permission denied",)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1_0", "1_1", "1_2", "1_3", "2_1", "2_2_breakpoint", "old", "rank_0"]),
            st.integers(0, 100),
            st.sampled_from([SOURCE, SOURCE, SOURCE, "/data/other"]),
            st.sampled_from(["", "foreign file", "changed", "unfinished"]),
        ),
        unique_by=lambda item: item[0],
    ),
    RULES,
)
def test_never_removes_what_is_no_candidate(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, str, str]], rules: KeepRules
) -> None:
    target = tmp_path_factory.mktemp("target")
    candidates: dict[str, DatedStep] = {}
    untouchable: set[str] = set()
    for name, minutes, source, state in made:
        directory = conversion(target, name, minutes, source=source)
        step = parse_step(name)
        ours = step is not None and not step.breakpoint and source == SOURCE and state != "unfinished"
        if step and ours:
            candidates[name] = DatedStep(MOMENT + timedelta(minutes=minutes), step)
        if state == "unfinished":
            (directory / ".reshard/manifest.json").unlink()
        if state == "changed":
            (directory / "rank_0/checkpoint_0.ckpt").write_bytes(b"123")
        if state == "foreign file":
            (directory / "rank_0/mine.txt").write_text("mine")
            untouchable.add(f"{name}/rank_0/mine.txt")
        if not ours or state == "changed":
            untouchable |= {f"{name}/{path}" for path in everything(directory)}
    staying = {str(step) for step in steps_kept(candidates.values(), rules)}
    staying |= {name for name, each in candidates.items() if each.step == max(c.step for c in candidates.values())}
    before = everything(target)
    done = apply(target, rules)
    after = everything(target)
    assert {path for path in after if path not in before} <= {f"{name}/.reshard/leases" for name in candidates}
    untouchable |= {path for path in before if path.split("/")[0] in staying}
    assert {path: before[path] for path in untouchable} == {path: after.get(path) for path in untouchable}
    changed = {name for name, _, _, state in made if state == "changed"}
    assert set(done.removed) == candidates.keys() - staying - changed
    assert set(done.kept) == candidates.keys() - set(done.removed)


def test_after_conversions(tmp_path: Path) -> None:
    """With the manifests that conversions write."""
    source, target = tmp_path / "training", tmp_path / "converted"
    reports = []
    for number in range(4):
        save_step(source, f"1_{number}")
        reports.append(convert_latest(latest_request(source, target, keep_checkpoint_max=2)))
    assert [report.removed for report in reports] == [(), (), ("1_0",), ("1_1",)]
    assert sorted(path.name for path in target.iterdir()) == ["1_2", "1_3"]
    assert len(list((target / "1_2").glob("rank_*/*.ckpt"))) == CASE.info["dst_world"]
    # nothing to do is an occasion as well
    again = convert_latest(latest_request(source, target, keep_checkpoint_max=1))
    assert (again.outcome.value, again.removed, again.kept) == ("nothing new", ("1_2",), ("1_3",))


def test_a_signature_is_removed_with_what_it_covers(tmp_path: Path) -> None:
    source, target = tmp_path / "training", tmp_path / "converted"
    signed = latest_request(source, target, sign=kept_in(tmp_path / "key.pem", private_pem(new_key())))
    for number in range(2):
        save_step(source, f"1_{number}")
        report = convert_latest(signed.model_copy(update={"keep_checkpoint_max": 1}))
    assert (report.removed, report.notes) == (("1_0",), ())
    assert [path.parent.name for path in target.rglob("model.sig")] == ["1_1"]
    assert not (target / "1_0").exists()

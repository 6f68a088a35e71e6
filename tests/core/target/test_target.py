"""The target: what may be done to what stands there, row by row of the module's table, on both kinds of storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.checkpoint.manifest import Manifest, RankSummary, ShardRecord, read_manifest
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import StorageError, TargetBusyError, TargetError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.plan_file import dump_plan
from reshard.core.request.conversion import VerifyLevel
from reshard.core.storage.placement import check_apart
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.target import Target
from reshard.core.target.workspace import Workspace, read_records
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


@pytest.fixture(scope="module")
def plan() -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request("/out"))


@pytest.fixture(scope="module")
def other_plan() -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request("/out", prefix="other_"))


@pytest.fixture(params=["local", "memory"])
def final(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    if request.param == "local":
        yield parse_url(str(tmp_path / "out"))
        return
    location = parse_url("memory://bucket/out")
    yield location
    location.fs.store.clear()
    location.fs.pseudo_dirs[:] = [""]


def record_of(target: Target, rank: int) -> ShardRecord:
    return ShardRecord(
        identity=target.identity,
        rank=rank,
        file=target.plan.file_name(rank),
        size_bytes=1,
        copy_of=None,
        source_ranks=(0,),
        read_bytes=1,
        seconds=0,
        heads=("00",),
        parameters=(),
    )


def manifest_of(target: Target) -> Manifest:
    return Manifest(
        identity=target.identity,
        writer="test",
        created="now",
        source="/src",
        step=None,
        source_world_size=4,
        target_world_size=3,
        format="ckpt",
        verified=VerifyLevel.NONE,
        dropped=(),
        excused=(),
        carried=(),
        notes=(),
        ranks=tuple(
            RankSummary(rank=rank, file=target.plan.file_name(rank), size_bytes=1, record_digest="")
            for rank in target.plan.target_ranks
        ),
    )


def work(target: Target, *ranks: int, commit: bool = False) -> None:
    """Claims a target and "converts" ranks of it: their files hold the plan's identity."""
    with target.claimed(ranks) as workspace:
        for rank in ranks:
            write_bytes(workspace.directory.child(target.plan.file_name(rank)), target.identity.encode())
            workspace.write_record(record_of(target, rank))
        if commit:
            target.commit(manifest_of(target), dump_plan(target.plan))


def finish(target: Target) -> None:
    work(target, *target.plan.target_ranks, commit=True)


def checkpoint_files(location: Location) -> list[str]:
    paths = [str(path).removeprefix(location.path + "/") for path in location.fs.find(location.path)]
    return sorted(path for path in paths if path.startswith("rank_"))


def files_of(plan: ConversionPlan) -> list[str]:
    return [plan.file_name(rank) for rank in plan.target_ranks]


# ---- nothing, or an empty directory ----


def test_nothing_there(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    assert not target.is_committed()
    finish(target)
    assert target.is_committed()
    assert checkpoint_files(final) == files_of(plan)
    assert read_manifest(final) == manifest_of(target)
    assert [record.rank for record in read_records(Workspace(final, target.identity), range(3))] == [0, 1, 2]


def test_the_plan_is_beside_its_records(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as workspace:
        again = Workspace.of_plan(workspace.plan_url, target.identity)
        assert again == workspace
        assert final.fs.exists(parse_url(workspace.plan_url).path)
    assert read_manifest(final) is None


# ---- unfinished work ----


def test_what_another_run_of_the_plan_did_while_this_one_began_stays(
    plan: ConversionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing keeps runs of different ranks apart that begin together on an object store."""
    final = parse_url("memory://began_together/out")
    begin = Target._begin

    def slow_begin(target: Target) -> None:
        monkeypatch.setattr(Target, "_begin", begin)
        work(Target(final, plan), 2)
        begin(target)

    monkeypatch.setattr(Target, "_begin", slow_begin)
    with Target(final, plan).claimed([0, 1]) as workspace:
        assert workspace.recorded_ranks() == {2}


@pytest.mark.parametrize("mends", [False, True])
def test_two_plans_never_work_at_a_target_at_the_same_time(
    tmp_path: Path, plan: ConversionPlan, other_plan: ConversionPlan, mends: bool
) -> None:
    """Who mends a target in its place used to be replaced, and to give its manifest to what replaced it."""
    final = parse_url(str(tmp_path / "out"))
    if mends:
        finish(Target(final, plan))
    ours, theirs = Target(final, plan, overwrite=True), Target(final, other_plan, overwrite=True)
    for first, second in ((ours, theirs), (theirs, ours)):
        refused = pytest.raises(TargetBusyError, match=r"another run is already .* It is converting something else")
        with first.claimed([0]), refused, second.claimed([1]):
            pass


def test_a_refused_run_leaves_nothing(tmp_path: Path, plan: ConversionPlan) -> None:
    final = parse_url(str(tmp_path / "out"))
    finish(Target(final, plan))
    with Target(final, plan).claimed([0]) as workspace, pytest.raises(TargetBusyError):
        work(Target(final, plan), 0, 1)
    assert workspace.directory == final
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / ".reshard" / "leases").exists()


def test_unfinished_work_of_the_same_plan_is_resumed(final: Location, plan: ConversionPlan) -> None:
    work(Target(final, plan), 0, 2)
    with Target(final, plan).claimed([0, 1, 2]) as workspace:
        assert workspace.recorded_ranks() == {0, 2}
        assert workspace.read_record(2) == record_of(Target(final, plan), 2)


def test_unfinished_work_of_another_plan(final: Location, plan: ConversionPlan, other_plan: ConversionPlan) -> None:
    work(Target(final, plan), 0, 2)
    with pytest.raises(
        TargetError, match="out: an unfinished conversion by another plan, or of a source that .*, or pass --overwrite"
    ):
        work(Target(final, other_plan), 1)
    with Target(final, other_plan, overwrite=True).claimed([0, 1, 2]) as workspace:
        assert workspace.recorded_ranks() == set()
    finish(Target(final, other_plan, overwrite=True))
    assert checkpoint_files(final) == files_of(other_plan)


def test_overwrite_does_not_discard_what_the_same_plan_did(final: Location, plan: ConversionPlan) -> None:
    work(Target(final, plan), 0)
    with Target(final, plan, overwrite=True).claimed([1]) as workspace:
        assert workspace.recorded_ranks() == {0}


# ---- finished conversions and other checkpoints ----


def test_a_finished_conversion_by_the_same_plan(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    for overwrite in (False, True):
        Target(final, plan, overwrite).check_usable()
        with Target(final, plan, overwrite).claimed([0]):
            assert Target(final, plan).is_committed()
    assert checkpoint_files(final) == files_of(plan)


def test_a_finished_conversion_by_another_plan(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    finish(Target(final, plan))
    with pytest.raises(TargetError, match="out: is not empty. Name another target, or pass --overwrite to replace it"):
        work(Target(final, other_plan), 0)
    assert Target(final, plan).is_committed()
    finish(Target(final, other_plan, overwrite=True))
    assert checkpoint_files(final) == files_of(other_plan)
    assert Target(final, other_plan).is_committed()


def test_while_it_is_being_replaced_it_counts_only_if_it_is_whole(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    finish(Target(final, plan))
    work(Target(final, other_plan, overwrite=True), 0)
    assert Target(final, plan).is_committed() is final.is_local, "in place, the commit marker goes first"
    assert not Target(final, other_plan).is_committed()


def test_another_checkpoint(final: Location, plan: ConversionPlan) -> None:
    write_bytes(final.child("rank_0", "net-10_5.ckpt"), b"old")
    write_bytes(final.child("rank_7", "net-10_5.ckpt"), b"old")
    with pytest.raises(TargetError, match="out: is not empty. Name another target, or pass --overwrite to replace it"):
        work(Target(final, plan), 0)
    assert checkpoint_files(final) == ["rank_0/net-10_5.ckpt", "rank_7/net-10_5.ckpt"]
    finish(Target(final, plan, overwrite=True))
    assert checkpoint_files(final) == files_of(plan)


# ---- anything else ----


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "rank_table.json", "rank_/x", "logs/rank_0/x"])
def test_anything_else_is_left_alone(final: Location, plan: ConversionPlan, name: str, overwrite: bool) -> None:
    write_bytes(final.child("rank_0", "net-10_5.ckpt"), b"old")
    write_bytes(final.child(*name.split("/")), b"precious")
    with pytest.raises(TargetError, match=r"holds foreign files \(.*\). Name another target, or move"):
        finish(Target(final, plan, overwrite))
    assert final.fs.cat_file(final.child(*name.split("/")).path) == b"precious"
    assert checkpoint_files(final)


def test_a_file_in_the_place_of_the_target(final: Location, plan: ConversionPlan) -> None:
    write_bytes(final, b"precious")
    with pytest.raises(TargetError, match="out: is a file, "):
        work(Target(final, plan, overwrite=True), 0)
    assert final.fs.cat_file(final.path) == b"precious"


def test_a_damaged_manifest_is_named(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    write_bytes(final.child(".reshard", "manifest.json"), b"{")
    with pytest.raises(TargetError, match=r"\.reshard/manifest\.json: not a readable manifest: "):
        work(Target(final, plan), 0)


# ---- records ----


def test_records_of_another_conversion_do_not_count(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0, 1, 2]) as workspace:
        workspace.write_record(record_of(target, 0))
        workspace.write_record(record_of(target, 1).model_copy(update={"identity": "another"}))
        write_bytes(workspace.record_location(2), b"{")
        write_bytes(workspace.record_location(0).parent.child("rank_x.json"), b"{")
        with pytest.raises(TargetError, match="rank_1.json: is of another conversion"):
            workspace.read_record(1)
        assert [record.rank for record in read_records(workspace, [0, 1, 2])] == [0]
        assert workspace.recorded_ranks() == {0, 1}, "what is damaged is forgotten, what is another's is left to it"
        with pytest.raises(StorageError, match="rank_2.json: cannot read it: no such file"):
            workspace.read_record(2)


def test_a_record_that_was_moved_does_not_count(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as workspace:
        workspace.write_record(record_of(target, 0))
        final.fs.cp_file(workspace.record_location(0).path, workspace.record_location(1).path)
        with pytest.raises(TargetError, match="rank_1.json: is of another conversion"):
            workspace.read_record(1)


# ---- source and target ----


@pytest.mark.parametrize(
    ("source", "final", "told"),
    [
        ("/a/src", "/a/src", "is the source itself"),
        ("/a/src", "/a/src/out", "lies inside the source"),
        ("/a/src", "/a", "lies inside it"),
        ("memory://a/src", "memory://a/src/out", "lies inside the source"),
        ("s3://bucket", "s3://bucket/out", "lies inside the source"),
    ],
)
def test_source_and_target_inside_each_other(source: str, final: str, told: str) -> None:
    with pytest.raises(TargetError, match=told):
        check_apart(parse_url(source), parse_url(final))


@pytest.mark.parametrize(
    ("source", "final"),
    [("/a/src", "/a/src2"), ("/a/src", "/a/out"), ("memory://a/src", "/a/src"), ("/bucket/src", "s3://bucket/src")],
)
def test_source_and_target_apart(source: str, final: str) -> None:
    check_apart(parse_url(source), parse_url(final))


@pytest.mark.parametrize(
    ("final", "message"),
    [
        ("/a/ckpt_3", r"the source /a/ckpt_\{rank\}/net\{rank\}-10_5.ckpt lies inside it"),
        ("/a", "lies inside it"),
        ("/", "lies inside it"),
        ("/a/ckpt_3/out", r"lies inside the source /a/ckpt_\{rank\}"),
        ("/a/ckpt_3/net3-10_5.ckpt", r"can be a part of the source /a/ckpt_\{rank\}"),
        ("/a/ckpt_3/net4-10_5.ckpt", "lies inside the source"),
        ("/a/ckpt_3/net3-10_5.ckpt/out", "lies inside the source"),
    ],
)
def test_a_target_that_the_pattern_of_the_source_takes(final: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        check_apart(parse_url("/a/ckpt_{rank}/net{rank}-10_5.ckpt"), parse_url(final))


@pytest.mark.parametrize(
    ("source", "final"),
    [
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/out"),
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/ckpt_"),
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/ckpt_03"),
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/ckpt_3x/out"),
        ("/a/ckpt_{rank}", "/a/out"),
        ("/a/net_{rank}.ckpt", "/a/out"),
        ("s3://bucket/ckpt_{rank}", "s3://bucket/out"),
        ("memory://a/{rank}_of_{rank}", "memory://a/3_of_4"),
    ],
)
def test_a_target_beside_what_the_pattern_of_the_source_takes(source: str, final: str) -> None:
    check_apart(parse_url(source), parse_url(final))


@given(st.data())
def test_a_target_apart_takes_nothing_of_a_pattern(data: st.DataObject) -> None:
    """What the target's names can hold, and what a pattern finds, have no path in common, whatever the ranks."""
    part = st.sampled_from(["{rank}", "a", "a{rank}", "{rank}_{rank}", "b"])
    pattern = data.draw(st.lists(part, min_size=1, max_size=3).filter(lambda parts: "{rank}" in "".join(parts)))
    names = [
        each.replace("{rank}", number) for each in ("{rank}", "a", "a{rank}", "{rank}_{rank}", "b") for number in "01"
    ]
    target = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    taken = [[each.replace("{rank}", rank) for each in pattern] for rank in "01"]
    folders = [path[: 1 + next(place for place, each in enumerate(pattern) if "{rank}" in each)] for path in taken]
    meets = any(path[: len(target)] == target for path in taken) or any(
        target[: len(path)] == path for path in (*taken, *folders)
    )
    source, final = (parse_url("/".join(["/root", *parts])) for parts in (pattern, target))
    if meets:
        with pytest.raises(TargetError):
            check_apart(source, final)
    else:
        check_apart(source, final)

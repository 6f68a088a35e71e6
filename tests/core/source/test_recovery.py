"""Damaged sources: which boxes have an owner left, where each is read from, and what the report says."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.numpy import save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import CatalogError, CheckpointError, InputError, PlanError, StorageError, StrategyError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.matching import match_parameters
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.source import SourceRequest
from reshard.core.source.recovery import StepState, assess_recovery
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.damaged import (
    DATA_PARALLEL,
    NAMES,
    entries_of,
    file_of,
    request_of,
    whole_model,
    whole_shards,
    with_crc,
)
from tests.support.places import FIXTURES
from tests.support.plans import Side, catalog_of, entry, inputs_of, make_catalog, make_strategy, plan_of, sides
from tests.support.reference import AXIS_LENGTH, shard_of, wholes

REMOVED = FIXTURES / "formats/redundancy_removed"
Shards = dict[int, dict[int, np.ndarray]]


def held(shards: Mapping[int, Mapping[int, np.ndarray]], tensor: np.ndarray, number: int) -> np.ndarray:
    """Which elements of a tensor are on any rank; all elements of all tensors differ."""
    there = [shard[number].ravel() for shard in shards.values() if number in shard]
    return np.isin(tensor, np.concatenate(there)) if there else np.zeros(tensor.shape, bool)


def thinned(data: st.DataObject, shards: Shards) -> Shards:
    """The same with some entries left out, as if each had been saved by some ranks only; no rank is left empty."""
    probability = data.draw(st.sampled_from([0, 0, 0.2, 0.7]))
    kept = {}
    for rank, of_rank in shards.items():
        chosen = {n: shard for n, shard in of_rank.items() if data.draw(st.floats(0, 1)) >= probability}
        kept[rank] = chosen or of_rank
    return kept


@settings(max_examples=80)
@given(st.data())
def test_what_can_be_had_is_what_has_a_holder(data: st.DataObject) -> None:
    axis_counts = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    source, target = data.draw(sides(axis_counts)), data.draw(sides(axis_counts))
    tensors = wholes([(AXIS_LENGTH,) * count for count in axis_counts])
    shards = thinned(data, source.shards(tensors))
    lost = data.draw(st.sets(st.sampled_from(sorted(shards)), max_size=len(shards) - 1))
    left = {rank: of_rank for rank, of_rank in shards.items() if rank not in lost}
    catalog = replace(catalog_of(left), lost=dict.fromkeys(sorted(lost), "gone"))
    there = {n: held(left, tensor, n) for n, tensor in enumerate(tensors)}
    wanted = {n for stage in target.stages for n in stage}
    if not all(there[n].all() for n in wanted):
        with pytest.raises((CatalogError, PlanError), match=r"has no holder|is in no source file"):
            plan_of(catalog, source.strategy(), target.strategy())
    else:
        check_plan(plan_of(catalog, source.strategy(), target.strategy()), left, target, tensors)
    check_lost(catalog, source, there)


def check_plan(plan: Any, shards: Mapping[int, Mapping[int, np.ndarray]], target: Side, tensors: list) -> None:
    """Every target shard is filled once and rightly, from ranks that have what is read."""
    for rank in plan.target_ranks:
        layouts_of = target.stages[rank // target.devices]
        for parameter in plan.rank_plan(rank).parameters:
            number = int(parameter.name[1:])
            result = np.full(parameter.box.shape, -1, np.int32)
            for read in parameter.reads:
                assert (result[read.target_box.as_index()] == -1).all()
                result[read.target_box.as_index()] = shards[read.source_rank][number][read.source_box.as_index()]
            np.testing.assert_array_equal(result, shard_of(tensors[number], layouts_of[number], rank % target.devices))
        assert set(plan.totals[rank].source_ranks) <= set(shards)


def check_lost(catalog: Any, source: Side, there: Mapping[int, np.ndarray]) -> None:
    """Just the elements without a holder are listed as lost, by ranks that should hold them."""
    match = match_parameters(inputs_of(catalog, source.strategy(), None))
    for number, elements in there.items():
        boxes = [lost for lost in match.lost if lost.name == f"p{number}"]
        listed = np.zeros(elements.shape, int)
        for lost in boxes:
            listed[lost.box.as_index() if lost.box else ...] += 1
            assert lost.ranks
        if elements.any():
            np.testing.assert_array_equal(listed, ~elements)


def write_source(directory: Path, shards: Mapping[int, Mapping[int, np.ndarray]]) -> None:
    for rank, of_rank in shards.items():
        folder = directory / f"rank_{rank}"
        folder.mkdir(parents=True)
        entries = [(f"p{n}", "Int32", shard.shape, shard.tobytes()) for n, shard in of_rank.items()]
        (folder / "net-1_1.ckpt").write_bytes(checkpoint_bytes(*entries, ("global_step", "Int32", (), b"\7\0\0\0")))


def damage(data: st.DataObject, directory: Path, rank: int) -> int | None:
    """Makes a rank's file unusable in one of the ways there are; the rank if it has to be named as faulty."""
    way = data.draw(st.sampled_from(["folder", "file", "truncated", "empty", "named"]))
    path = directory / f"rank_{rank}/net-1_1.ckpt"
    if way == "folder":
        shutil.rmtree(path.parent)
    elif way == "file":
        path.unlink()
    elif way != "named":
        path.write_bytes(path.read_bytes()[: path.stat().st_size - 3 if way == "truncated" else 0])
    return rank if way == "named" else None


@settings(max_examples=12)
@given(st.data())
def test_recovered_is_byte_equal(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tmp_path = tmp_path_factory.mktemp("recovered")
    axis_counts = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    source, target = data.draw(sides(axis_counts)), data.draw(sides(axis_counts))
    tensors = wholes([(AXIS_LENGTH,) * count for count in axis_counts])
    shards = source.shards(tensors)
    write_source(tmp_path / "src", shards)
    for side, name in ((source, "src.ckpt"), (target, "dst.ckpt")):
        write_strategy(side.strategy(), str(tmp_path / name))

    def asked(**options: object) -> ConversionRequest:
        return build_request(
            source=str(tmp_path / "src"),
            source_strategy=str(tmp_path / "src.ckpt"),
            target_strategy=str(tmp_path / "dst.ckpt"),
            **options,
        )

    convert(asked(target=str(tmp_path / "whole"), verify="none"))
    lost = data.draw(st.sets(st.sampled_from(sorted(shards)), min_size=1))
    faulty = [damage(data, tmp_path / "src", rank) for rank in sorted(lost)]
    named = ",".join(str(rank) for rank in faulty if rank is not None)
    left = {rank: of_rank for rank, of_rank in shards.items() if rank not in lost}
    request = asked(target=str(tmp_path / "out"), recover=True, fault_ranks=named)
    wanted = {n for stage in target.stages for n in stage}
    recoverable = all(held(left, tensors[n], n).all() for n in wanted)
    all_there = all(held(left, tensor, n).all() for n, tensor in enumerate(tensors))
    if left:
        assert (assess_recovery(SourceRequest.of(request)).state is StepState.RECOVERABLE) == all_there
    if not named:
        with pytest.raises(
            InputError, match="recover=True would succeed" if recoverable else "recover=True would not be enough|."
        ) as reason:
            convert(asked(target=str(tmp_path / "out")))
        assert ("recover=True would succeed" in str(reason.value)) == recoverable
    if not recoverable:
        with pytest.raises(InputError):
            convert(request)
        return
    report = convert(request)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")
    assert {each.rank for each in report.stand_ins} <= lost
    assert not {each.stand_in for each in report.stand_ins} & lost
    assert sum(note.startswith("RECOVERED: ") for note in report.notes) == len(lost)


def removed(target: Path, source_format: str, **options: object) -> ConversionRequest:
    return build_request(
        **{
            "source": str(REMOVED / f"src_{source_format}"),
            "target": str(target),
            "source_strategy": str(REMOVED / "src_strategy.ckpt"),
            "target_strategy": str(REMOVED / "dst_strategy.ckpt"),
        }
        | options
    )


@pytest.mark.parametrize("source_format", ["ckpt", "safetensors"])
def test_redundancy_removed_by_mindspore(tmp_path: Path, source_format: str) -> None:
    report = convert(removed(tmp_path / "out", source_format))
    assert read_tree(tmp_path / "out") == read_tree(REMOVED / "want")
    [reason] = [note for note in report.notes if "redundancy was removed from the source" in note]
    assert "8 ranks lack some of 3 parameters (norm, v, w)" in reason
    assert report.stand_ins == ()
    whole = convert(removed(tmp_path / "whole", source_format, target_strategy=""))
    [full] = read_tree(REMOVED / "full").values()
    assert read_tree(tmp_path / "whole")[0] == full
    assert whole.source_world_size == 8


@pytest.mark.parametrize("source_format", ["ckpt", "safetensors"])
def test_redundancy_removed_and_a_rank_lost(tmp_path: Path, source_format: str) -> None:
    """Most slices have a single replica: lost ones are reported, unless they are not needed."""
    with pytest.raises(CatalogError) as reason:
        convert(removed(tmp_path / "out", source_format, recover=True, fault_ranks="0"))
    assert "'norm': all of it has no holder; it should be on rank_0" in str(reason.value)
    assert "'v': [0:5, 0:2] of the whole tensor has no holder; it should be on rank_0, rank_4" in str(reason.value)
    assert "'w'" not in str(reason.value)
    plan = make_plan(
        removed(tmp_path / "out", source_format, recover=True, fault_ranks="0", target_strategy=only_w(tmp_path))
    )
    assert {read.source_rank for parameter in plan.rank_plan(0).parameters for read in parameter.reads} == {4, 5, 6, 7}


def only_w(tmp_path: Path) -> str:
    path = str(tmp_path / "only_w.ckpt")
    write_strategy(make_strategy({"w": whole_layout(2)}), path)
    return path


def test_one_file_of_a_redundancy_removed_checkpoint_is_none(tmp_path: Path) -> None:
    file = REMOVED / "src_safetensors/rank_0/checkpoint_0.safetensors"
    with pytest.raises(CatalogError, match=r"was saved with remove_redundancy=True.*'source_strategy'"):
        convert(build_request(source=str(file), target=str(tmp_path / "out")))


def test_redundancy_removed_from_remote_files_of_one_size() -> None:
    """The first and the last entry of each file are those of the others, and so are the samples."""
    memory = fsspec.filesystem("memory")
    names = [f"layers.{number:03d}.w" for number in range(60)]
    write_strategy(make_strategy(dict.fromkeys(names, whole_layout(1, 2))), "memory://alike/strategy.ckpt")
    tensors = {name: (name, "Int32", (2,), np.array([n, -n], np.int32).tobytes()) for n, name in enumerate(names)}
    sampled = {0, 10, 30, 50, 59, 9, 29, 49, 11, 31, 51}
    for rank in range(2):
        kept = [name for n, name in enumerate(names) if n in sampled or n % 2 == rank]
        memory.pipe(f"/alike/src/rank_{rank}/net.ckpt", checkpoint_bytes(*(tensors[name] for name in kept)))
    request = build_request(
        source="memory://alike/src",
        source_strategy="memory://alike/strategy.ckpt",
        target="memory://alike/out",
        trust_strategy=True,
    )
    assert set(read_plan(request)) == set(names)
    convert(request)


def read_plan(request: ConversionRequest) -> dict[str, int]:
    """Each parameter of rank 0 and the source rank that it is read from."""
    plan = make_plan(request)
    assert not any(record.assumed and len(record.index.entries) < 60 for record in plan.inputs.catalog.records.values())
    return {parameter.name: parameter.reads[0].source_rank for parameter in plan.rank_plan(0).parameters}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return whole_shards(tmp_path)


def test_a_file_that_fails_its_crc(directory: Path) -> None:
    for rank in range(6):
        data = file_of(directory, rank).read_bytes()
        content = bytearray(with_crc(data))
        content[len(data) - 1] ^= rank == 2
        file_of(directory, rank).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rank_2/net-1_1\.ckpt: .*CRC[\s\S]*recover=True would succeed"):
        convert(request_of(directory))
    report = convert(request_of(directory, recover=True))
    assert read_tree(directory / "out")[0] == whole_model()
    [stand_in] = report.stand_ins
    assert (stand_in.rank, stand_in.stand_in, stand_in.slices) == (2, 0, 3)
    assert "CRC" in stand_in.why
    assert str(file_of(directory, 2)) not in stand_in.why


def test_what_was_recovered_is_said_loudly_and_kept(directory: Path) -> None:
    file_of(directory, 1).unlink()
    report = convert(request_of(directory, recover=True, fault_ranks="0"))
    assert report.notes[0] == "RECOVERED: rank_0 (named as faulty): 3 slices taken from rank_2"
    assert report.notes[1] == "RECOVERED: rank_1 (it has no checkpoint file): 3 slices taken from rank_3"
    manifest = read_manifest(parse_url(str(directory / "out")))
    assert manifest is not None
    assert manifest.notes[:2] == report.notes[:2]
    assert (report.source_world_size, manifest.source_world_size) == (6, 6)
    again = convert(request_of(directory, recover=True, fault_ranks="0"))
    assert {rank.outcome.value for rank in again.ranks} == {"resumed"}
    with pytest.raises(InputError, match="another plan|other"):
        convert(request_of(directory, recover=True, fault_ranks="2"))


@pytest.mark.parametrize("recover", [True, False])
def test_what_cannot_be_read_is_not_damaged(directory: Path, monkeypatch: pytest.MonkeyPatch, recover: bool) -> None:
    def opened(location: Location) -> SourceFile:
        if "rank_2" in str(location):
            raise StorageError(f"{location}: cannot read it: permission denied")
        return open_source(location)

    monkeypatch.setattr("reshard.core.checkpoint.record_reader._opened", opened)
    with pytest.raises(CatalogError, match=r"rank_2/net-1_1\.ckpt: cannot read it: permission denied$"):
        convert(request_of(directory, recover=recover))


def test_nothing_is_left(directory: Path) -> None:
    for rank in range(6):
        file_of(directory, rank).write_bytes(b"")
    with pytest.raises(CatalogError, match=r"no rank has a usable file:\n  rank_0: "):
        convert(request_of(directory, recover=True))
    with pytest.raises(CatalogError, match="no rank is left to recover anything from"):
        convert(request_of(directory, recover=True, fault_ranks="0-5"))


@pytest.mark.parametrize("strategy", [True, False])
def test_the_only_rank_is_faulty(tmp_path: Path, strategy: bool) -> None:
    """A single faulty file, with or without a strategy, must not be read."""
    file = tmp_path / "net-1_1.ckpt"
    file.write_bytes(checkpoint_bytes(("w", "Int32", (1,), b"\1\0\0\0")))
    write_strategy(make_strategy({"w": whole_layout(1)}), str(tmp_path / "strategy.ckpt"))
    request = request_of(
        tmp_path,
        source=str(file),
        recover=True,
        fault_ranks="0",
        source_strategy=str(tmp_path / "strategy.ckpt") if strategy else "",
    )
    with pytest.raises(CatalogError, match=r"net-1_1\.ckpt: no rank is left to recover anything from"):
        convert(request)
    convert(request.model_copy(update={"fault_ranks": ""}))


def test_ranks_that_there_are_not_cannot_be_faulty(directory: Path) -> None:
    with pytest.raises(CatalogError, match=r"rank_6, rank_7 cannot be faulty \('fault_ranks'\): .* ranks 0 to 5"):
        convert(request_of(directory, recover=True, fault_ranks="0,6-7"))
    with pytest.raises(InputError, match=r"fault_ranks '3': only valid with recover=True"):
        request_of(directory, fault_ranks="3")


def test_what_no_strategy_knows_comes_from_another_rank(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path)
    for rank in range(6):
        step = ("seed", "Int32", (), bytes([rank, 0, 0, 0]))
        file_of(directory, rank).write_bytes(checkpoint_bytes(*entries_of(file_of(directory, rank)), step))
    report = convert(request_of(directory, recover=True, fault_ranks="0"))
    assert read_tree(directory / "out")[0]["seed"] == ("Int32", (), b"\1\0\0\0")
    assert any("parameters not in any strategy are taken from other ranks" in note for note in report.notes)


def test_a_parameter_that_nobody_saved_is_not_lost() -> None:
    """Three ranks hold each slice: with one of them lost, one of a fourth parameter would be left, too."""
    strategy = make_strategy({"a": DATA_PARALLEL, "never": DATA_PARALLEL})
    catalog = make_catalog({rank: [entry("a", (2,))] for rank in range(1, 6)})
    one_lost = replace(catalog, lost={0: "gone"})
    assert plan_of(one_lost, strategy, None).match.lost == ()
    records = {rank: record for rank, record in catalog.records.items() if rank in (1, 5)}
    most_lost = replace(catalog, records=records, lost=dict.fromkeys((0, 2, 3, 4), "gone"))
    match = match_parameters(inputs_of(most_lost, strategy, None))
    assert [(lost.name, lost.box is None) for lost in match.lost] == [("never", True), ("a", False)]
    allowed = match_parameters(inputs_of(most_lost, strategy, None, allow_missing=("nev*",)))
    assert [lost.name for lost in allowed.lost] == ["a"]


def test_a_lost_rank_does_not_hide_that_ranks_were_saved_whole(tmp_path: Path) -> None:
    tensor = np.arange(8, dtype=np.int32)
    for rank in range(2):
        path = tmp_path / f"src/rank_{rank}/net-1_1.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(checkpoint_bytes(("w", "Int32", (8,), tensor.tobytes())))
    layout = ParameterLayout((2,), ((0,),), tensor_shape=(8,))
    write_strategy(make_strategy({"w": layout}), str(tmp_path / "strategy.json"))
    request = request_of(tmp_path, source_strategy=str(tmp_path / "strategy.json"), recover=True, fault_ranks="0")
    convert(request)
    assert read_tree(tmp_path / "out")[0]["w"][2] == tensor.tobytes()


def add_step(directory: Path, step: str, ranks: range | tuple[int, ...]) -> None:
    for rank in ranks:
        shutil.copyfile(file_of(directory, rank), file_of(directory, rank, step))


def test_a_half_saved_step_is_not_taken_for_a_damaged_one(directory: Path) -> None:
    add_step(directory, "2_1", (0, 1, 2, 3))
    report = convert(request_of(directory, recover=True, fault_ranks="3"))
    assert report.step == "1_1"
    assert any("ignored newer steps that are incomplete: 2_1 (not on rank_4, rank_5)" in note for note in report.notes)
    asked = request_of(directory, recover=True, step="2_1", target=str(directory / "asked"))
    report = convert(asked)
    assert (report.step, [(each.rank, each.stand_in) for each in report.stand_ins]) == ("2_1", [(4, 0), (5, 1)])
    assert report.stand_ins[0].why == "it has no checkpoint file of step 2_1"
    with pytest.raises(CatalogError, match=r"step 2_1 is missing on rank_4, rank_5[\s\S]*recover=True would succeed"):
        convert(request_of(directory, step="2_1"))


def test_the_newest_step_of_those_that_are_not_faulty(directory: Path) -> None:
    add_step(directory, "2_1", (0, 1, 2, 4, 5))
    report = convert(request_of(directory, recover=True, fault_ranks="3"))
    assert report.step == "2_1"


def test_a_whole_checkpoint(directory: Path) -> None:
    report = assess_recovery(SourceRequest.of(request_of(directory)))
    assert (report.state, report.lost_ranks, report.lost, report.other_steps) == (StepState.WHOLE, (), (), ())
    assert (report.step, report.world_size) == ("1_1", 6)


def test_older_steps_are_looked_at_until_one_would_do(directory: Path) -> None:
    for step in ("2_1", "3_1", "4_1"):
        add_step(directory, step, range(6))
    add_step(directory, "5_1", (0, 1))
    for rank in (0, 2, 4):
        file_of(directory, rank, "4_1").write_bytes(b"\x0a")
    for rank in (1, 3, 5):
        file_of(directory, rank, "3_1").write_bytes(b"\x0a")
    file_of(directory, 0, "2_1").write_bytes(b"\x0a")
    report = assess_recovery(SourceRequest.of(request_of(directory)))
    assert (report.step, report.state) == ("4_1", StepState.LOST)
    assert [(lost.parameter, lost.box, lost.ranks) for lost in report.lost] == [(n, "[0:2]", (0, 2, 4)) for n in NAMES]
    others = [(other.step, other.state, len(other.lost_ranks)) for other in report.other_steps]
    assert others == [
        ("5_1", StepState.RECOVERABLE, 4),
        ("3_1", StepState.LOST, 3),
        ("2_1", StepState.RECOVERABLE, 1),
    ]
    assert report.other_steps[0].message == "what rank_2, rank_3, rank_4, rank_5 should hold is on other ranks as well"


def test_groups_instead_of_a_strategy(directory: Path) -> None:
    groups = directory / "groups.json"
    groups.write_text(json.dumps([[0, 2, 4], [1, 3, 5]]))
    request = request_of(directory, source_strategy="", recover=True, fault_ranks="1,2,3")
    report = assess_recovery(SourceRequest.of(request), [str(groups)])
    assert report.state is StepState.RECOVERABLE
    assert [(each.rank, each.stand_in, each.slices) for each in report.stand_ins] == [(1, 5, 3), (2, 0, 3), (3, 5, 3)]
    shutil.rmtree(file_of(directory, 5).parent)
    report = assess_recovery(SourceRequest.of(request), [str(groups)])
    assert [(lost.parameter, lost.box, lost.ranks) for lost in report.lost] == [(None, None, (1, 3, 5))]


def test_groups_of_a_redundancy_removed_checkpoint_tell_nothing(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps([[rank, rank + 4] for rank in range(4)]))
    for source_format in ("ckpt", "safetensors"):
        with pytest.raises(CatalogError, match=r"redundancy was removed\. .*'source_strategy'"):
            assess_recovery(
                SourceRequest.of(removed(tmp_path / "out", source_format, source_strategy="")), [str(groups)]
            )


def test_groups_that_contradict_the_strategy(directory: Path) -> None:
    groups = directory / "groups.json"
    groups.write_text(json.dumps([[0, 1, 2], [3, 4, 5]]))
    with pytest.raises(
        StrategyError, match="rank_0 and rank_1 hold the same, but the source strategy gives them differ"
    ):
        assess_recovery(SourceRequest.of(request_of(directory)), [str(groups)])
    groups.write_text(json.dumps([[0, 1], [2, 3]]))
    with pytest.raises(StrategyError, match="group info has 4 ranks, the source strategy 6"):
        assess_recovery(SourceRequest.of(request_of(directory)), [str(groups)])
    with pytest.raises(InputError, match="nothing says which ranks hold the same"):
        assess_recovery(SourceRequest.of(request_of(directory, source_strategy="")))


def test_whole_tensors_are_on_no_other_rank(tmp_path: Path) -> None:
    save_file({"w": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps([[0, 1]]))
    for group_info in ([], [str(groups)]):
        with pytest.raises(CatalogError, match="has everything once and so nothing to recover from"):
            assess_recovery(SourceRequest(source=str(tmp_path)), group_info)


def own_stage(directory: Path, drop: Mapping[int, set[str]] | None = None) -> str:
    """The strategy of whole_shards' three first ranks, of which the others are then another stage's or do not fit."""
    whole_shards(directory, drop)
    path = str(directory / "own.ckpt")
    layouts = dict.fromkeys(NAMES, whole_layout(1, 3))
    operators = (OperatorStrategy("op", 0, ((1,),)),)
    write_strategy(Strategy((StageStrategy(0, layouts, operators),), "own", merged=False), path)
    return path


def test_a_lost_rank_under_one_stages_own_strategy(tmp_path: Path) -> None:
    strategy = own_stage(tmp_path)
    for rank in (1, 3, 4, 5):
        shutil.rmtree(file_of(tmp_path, rank).parent)
    report = convert(request_of(tmp_path, source_strategy=strategy, recover=True))
    assert [(each.rank, each.stand_in) for each in report.stand_ins] == [(1, 0)]


def test_removed_redundancy_does_not_hide_a_strategy_of_another_world_size(tmp_path: Path) -> None:
    strategy = own_stage(tmp_path, {r: {*NAMES} - {NAMES[r % 3]} for r in range(6)})
    with pytest.raises(CatalogError, match="has 6 ranks, but the source strategy .* has 3: it is another checkpoint's"):
        convert(request_of(tmp_path, source_strategy=strategy))

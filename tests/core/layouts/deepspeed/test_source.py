"""Checkpoints that DeepSpeed 0.19.8 wrote are read, and are the model and the optimizer that its engine holds."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError
from reshard.core.request.source import SourceRequest
from reshard.core.source.description import describe
from reshard.core.source.opening import open_source
from tests.support.deepspeed_files import DEEPSPEED_CASES, deepspeed_case, made, to_whole
from tests.support.diagnosed import diagnose
from tests.support.loading import load_rank
from tests.support.locked_storage import put_tree
from tests.support.places import FIXTURES
from tests.support.zero_files import ZeroTraining, expected, random_model, write_zero

TWO_GROUPS = deepspeed_case("case_zero2_two_groups_tied_frozen")
PARTITIONED = deepspeed_case("case_zero3_sub_groups_frozen")
MODEL_FILE = "mp_rank_00_model_states.pt"


def test_there_are_cases() -> None:
    assert len(DEEPSPEED_CASES) >= 6


@pytest.mark.parametrize("name", DEEPSPEED_CASES)
def test_the_whole_model_is_what_the_engine_holds(name: str, tmp_path: Path) -> None:
    case = deepspeed_case(name)
    convert(to_whole(case.root, tmp_path / "out", verify="content", check_crc=True))
    assert made(tmp_path / "out") == case.want


@pytest.mark.parametrize("layout", ["dcp", "checkpoint2"])
@pytest.mark.parametrize("case", [TWO_GROUPS, PARTITIONED])
def test_other_layouts_are_written_of_it(case: object, layout: str, tmp_path: Path) -> None:
    assert isinstance(case, type(TWO_GROUPS))
    convert(to_whole(case.root, tmp_path / "out", layout=layout, verify="content"))
    convert(to_whole(tmp_path / "out", tmp_path / "whole"))
    assert made(tmp_path / "whole") == case.want


def test_weights_alone(tmp_path: Path) -> None:
    convert(to_whole(TWO_GROUPS.root, tmp_path / "out", select="weights-only"))
    assert made(tmp_path / "out") == {
        name: each for name, each in TWO_GROUPS.want.items() if not name.startswith("exp_avg")
    }


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    notes = convert(to_whole(TWO_GROUPS.root, tmp_path / "out")).notes
    assert (
        "left out, but for what the target has a place for: skipped_steps, global_samples, "
        "checkpoint_parallel_dimensions, ds_config, the optimizer's steps, settings and loss scale"
    ) in notes


def test_a_tag_may_be_named_itself(tmp_path: Path) -> None:
    convert(to_whole(TWO_GROUPS.tag, tmp_path / "out"))
    assert made(tmp_path / "out") == TWO_GROUPS.want


@pytest.mark.parametrize("name", [MODEL_FILE, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"])
def test_a_part_is_refused_with_the_name_of_the_whole(name: str) -> None:
    path = TWO_GROUPS.tag / name
    message = f"{name}: is a part of a DeepSpeed checkpoint: name the directory of its tag, {TWO_GROUPS.tag}"
    with pytest.raises(CatalogError, match=message):
        open_source(SourceRequest(source=str(path)))
    with pytest.raises(CatalogError, match=message):
        describe(str(path))


def test_a_description_has_the_stage_ranks_and_shards() -> None:
    found = describe(str(PARTITIONED.root))
    assert (found["kind"], found["tag"], found["step"]) == ("DeepSpeed checkpoint", "global_step2", 2)
    assert (found["zero_stage"], found["ranks"], found["deepspeed_version"]) == (3, 3, "0.19.8")
    assert found["optimizer"] == "by names"
    [embedding] = [each for each in found["parameters"] if each["name"] == "model.embed_tokens.weight"]
    assert (embedding["shape"], embedding["dtype"]) == ([37, 16], "Float32")
    assert [(each["start"], each["shape"], each["file"]) for each in embedding["shards"][:3]] == [
        ([0, 0], [12, 16], "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ([12, 0], [1, 6], "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ([12, 6], [1, 10], "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ]


@pytest.mark.parametrize("name", DEEPSPEED_CASES)
def test_doctor_needs_no_strategy(name: str) -> None:
    assert diagnose(str(deepspeed_case(name).root)).fits is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source_strategy": str(FIXTURES / "compiled_strategies" / "strategy_4_npus.ckpt")},
            "whose files say how it is sharded, so leave out",
        ),
        ({"integrated_save": "yes"}, "which says itself what each file holds, and is never encrypted: leave out"),
        ({"source_prefix": "x"}, "whose files have fixed names: leave out"),
        ({"recover": True}, "which has everything once and so nothing to recover from: leave out"),
        ({"recover": True, "fault_ranks": "1"}, "which has everything once and so nothing to recover from: leave out"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        open_source(SourceRequest.model_validate({"source": str(TWO_GROUPS.root)} | options))


def test_latest_chooses_among_tags(tmp_path: Path) -> None:
    root = tmp_path / "ck"
    model, training = random_model(0, [{"a": (3, 4)}]), ZeroTraining(step=3)
    write_zero(root, model, training)
    write_zero(root, model, ZeroTraining(step=7))
    torn = write_zero(root, model, ZeroTraining(step=9))
    (torn / MODEL_FILE).unlink()
    (root / "latest").write_text("global_step3\n")
    opened = open_source(SourceRequest(source=str(root)))
    assert opened.catalog.step == "3"
    assert "step 7 is newer, but skipped: latest names global_step3; step='7' reads it" in opened.catalog.notes
    assert (
        "step 9 is newer, but skipped: it is incomplete: it has no file of the model, mp_rank_00_model_states.pt "
        "or zero_pp_rank_0_…"
    ) in opened.catalog.notes
    assert open_source(SourceRequest(source=str(root), step="7")).catalog.step == "7"
    with pytest.raises(CatalogError, match="has no step 4; it has 9, 7, 3"):
        open_source(SourceRequest(source=str(root), step="4"))
    (root / "latest").write_text("global_step5")
    with pytest.raises(
        CatalogError, match="latest names the tag 'global_step5', which is not there; there are 9, 7, 3"
    ):
        open_source(SourceRequest(source=str(root)))
    (root / "latest").write_text("../x")
    with pytest.raises(CatalogError, match=r"latest: names no tag: '../x'"):
        open_source(SourceRequest(source=str(root)))
    (root / "latest").unlink()
    opened = open_source(SourceRequest(source=str(root)))
    assert "there is no file 'latest': step 7 is the newest complete one" in opened.catalog.notes
    shutil.rmtree(root / "global_step7")
    shutil.rmtree(root / "global_step3")
    with pytest.raises(CatalogError, match="no step is complete: step 9 is skipped: it has no file of the model"):
        open_source(SourceRequest(source=str(root)))


def test_latest_may_name_any_tag(tmp_path: Path) -> None:
    model, training = random_model(0, [{"a": (3, 4)}]), ZeroTraining()
    write_zero(tmp_path / "ck", model, training).rename(tmp_path / "ck" / "best")
    (tmp_path / "ck" / "latest").write_text("best")
    (tmp_path / "ck" / "zero_to_fp32.py").write_text("")
    convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(model, training)
    assert open_source(SourceRequest(source=str(tmp_path / "ck"))).catalog.step == "40"


def test_another_step_than_that_of_a_named_tag_is_refused() -> None:
    with pytest.raises(CatalogError, match="is step 2, not 4: leave out"):
        open_source(SourceRequest(source=str(TWO_GROUPS.tag), step="4"))


def test_a_tag_counts_by_its_own_name(tmp_path: Path) -> None:
    case = TWO_GROUPS.copied(tmp_path / "ck")
    case.tag.rename(case.root / "global_step9")
    (case.root / "latest").write_text("global_step9")
    catalog = open_source(SourceRequest(source=str(case.root))).catalog
    assert catalog.step == "9"
    assert f"{case.root}/global_step9: its files say that they are of step 2" in catalog.notes


def test_a_tag_without_files_of_ranks_is_passed_over(tmp_path: Path) -> None:
    case = TWO_GROUPS.copied(tmp_path / "ck")
    (case.root / "global_step4").mkdir()
    (case.root / "global_step4" / "x").touch()
    opened = open_source(SourceRequest(source=str(case.root)))
    assert opened.catalog.step == "2"
    assert any(note.startswith("step 4 is newer, but skipped: it is incomplete") for note in opened.catalog.notes)
    with pytest.raises(CatalogError, match="global_step4: has no file of a rank: it was not saved completely"):
        open_source(SourceRequest(source=str(case.root), step="4"))


@pytest.mark.parametrize("case", [TWO_GROUPS, PARTITIONED])
def test_an_object_store_is_read_as_a_disk_is(case: object, tmp_path: Path) -> None:
    assert isinstance(case, type(TWO_GROUPS))
    storage = MemoryFileSystem()
    put_tree(storage, case.root, "/zero")
    convert(to_whole("memory://zero", tmp_path / "out", verify="content"))
    storage.rm("/zero", recursive=True)
    assert made(tmp_path / "out") == case.want


def test_whole_tensors_are_loaded_without_a_conversion() -> None:
    loaded = dict(load_rank(str(PARTITIONED.root)))
    assert {name: np.asarray(value).tobytes() for name, value in loaded.items()} == {
        name: data for name, (_, _, data) in PARTITIONED.want.items()
    }


def test_a_wrong_crc_is_found(tmp_path: Path) -> None:
    case = PARTITIONED.copied(tmp_path / "ck")
    path = case.tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = bytearray(path.read_bytes())
    data[16004] ^= 1  # the first flat group
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"rank_1_mp_rank_00_optim_states.pt.*CRC"):
        convert(to_whole(case.root, tmp_path / "out", check_crc=True))

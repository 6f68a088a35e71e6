"""Checkpoints that Megatron-Core 0.16.1 and MindSpeed-LLM wrote are read, and are the model that Megatron holds."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.request.source import SourceRequest
from reshard.core.source.description import describe
from reshard.core.source.opening import open_source
from tests.support.checkpoints import read_safetensors
from tests.support.diagnosed import diagnose
from tests.support.loading import load_rank
from tests.support.locked_storage import put_tree
from tests.support.megatron_sources import MODEL_FILE, OPTIMIZER_FILE, SOURCE_CASES, MegatronSource, megatron_source
from tests.support.places import FIXTURES

DENSE = megatron_source("legacy_tp2_pp2")
TRACKER = "latest_checkpointed_iteration.txt"


def test_there_are_cases() -> None:
    assert len(SOURCE_CASES) >= 14


@pytest.mark.parametrize("name", SOURCE_CASES)
def test_the_whole_model_is_what_megatron_holds(name: str, tmp_path: Path) -> None:
    source = megatron_source(name)
    convert(source.request(tmp_path / "out", verify="content"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


@pytest.mark.parametrize("layout", ["dcp", "checkpoint2"])
def test_other_layouts_are_written_of_it(layout: str, tmp_path: Path) -> None:
    source = megatron_source("legacy_optimizer_tp2")
    convert(source.request(tmp_path / "out", layout=layout, verify="content"))
    other = source.request(tmp_path / "whole", tmp_path / "out")
    convert(other)
    assert read_safetensors(tmp_path / "whole" / "model.safetensors") == source.want


def test_weights_alone(tmp_path: Path) -> None:
    source = megatron_source("legacy_distrib_optim_tp2_dp2")
    convert(source.request(tmp_path / "out", select="weights-only"))
    made = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert made == {name: each for name, each in source.want.items() if not name.startswith("optimizer.")}


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    notes = convert(megatron_source("legacy_optimizer_tp2").request(tmp_path / "out")).notes
    assert "left out: 18 states of modules (_extra_state), which no weights depend on" in notes
    assert (
        "left out, but for what Megatron's layouts take over: opt_param_scheduler, rng_state, "
        "num_floating_point_operations_so_far, the optimizer's steps and settings"
    ) in notes


def test_an_iteration_may_be_named_itself(tmp_path: Path) -> None:
    convert(DENSE.request(tmp_path / "out", DENSE.iteration))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == DENSE.want


@pytest.mark.parametrize("part", ["", MODEL_FILE])
def test_a_part_is_refused_with_the_name_of_the_whole(part: str) -> None:
    path = DENSE.iteration / "mp_rank_00_001" / part
    with pytest.raises(CatalogError, match=f"is a part of a Megatron checkpoint: name .* iteration, {DENSE.iteration}"):
        open_source(SourceRequest(source=str(path)))


def test_a_part_is_not_described_alone() -> None:
    with pytest.raises(CatalogError, match="is a part of a Megatron checkpoint: name the directory of its iteration"):
        describe(str(DENSE.file("mp_rank_00_001")))


def test_a_description_has_sizes_shards_and_the_model() -> None:
    found = describe(str(DENSE.root))
    assert (found["kind"], found["step"], found["tensor_parallel"], found["pipeline_parallel"]) == (
        "Megatron checkpoint",
        3,
        2,
        2,
    )
    assert found["model"]["num_hidden_layers"] == 4
    [gates] = [each for each in found["parameters"] if each["name"] == "decoder.layers.3.mlp.linear_fc1.weight"]
    assert gates["shape"] == [64, 32]
    assert [(each["start"][0], each["file"]) for each in gates["shards"]] == [
        (0, f"mp_rank_00_001/{MODEL_FILE}"),
        (32, f"mp_rank_00_001/{MODEL_FILE}"),
        (16, f"mp_rank_01_001/{MODEL_FILE}"),
        (48, f"mp_rank_01_001/{MODEL_FILE}"),
    ]


def test_doctor_needs_no_strategy() -> None:
    assert diagnose(str(DENSE.root)).fits is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source_strategy": str(FIXTURES / "compiled_strategies" / "strategy_4_npus.ckpt")},
            "whose files say how it is sharded, so leave out",
        ),
        ({"integrated_save": "yes"}, "which says itself what each file holds, and is never encrypted: leave out"),
        ({"source_prefix": "x"}, "whose files have fixed names: leave out"),
        ({"recover": True, "fault_ranks": "1"}, "whose files are not counted as ranks: leave out"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        open_source(SourceRequest.model_validate({"source": str(DENSE.root)} | options))


def test_layers_as_the_count_of_files_shows_them_need_no_virtual_size(tmp_path: Path) -> None:
    source = megatron_source("legacy_tp2_pp2_vpp2").copied(tmp_path / "ck")
    source.change_args(virtual_pipeline_model_parallel_size=...)
    convert(source.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


def test_a_release_is_read(tmp_path: Path) -> None:
    source = DENSE.copied(tmp_path / "ck")
    source.iteration.rename(source.root / "release")
    (source.root / TRACKER).write_text("release")
    convert(source.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


def test_the_tracker_chooses_among_iterations(tmp_path: Path) -> None:
    source = DENSE.copied(tmp_path / "ck")
    shutil.copytree(source.iteration, source.root / "iter_0000005")
    shutil.copytree(source.root / "iter_0000003", source.root / "iter_0000007" / "x", ignore=lambda *_: [MODEL_FILE])
    (source.root / "iter_0000007" / "x").rename(source.root / "iter_0000009")
    (source.root / "iter_0000007").rmdir()
    opened = open_source(SourceRequest(source=str(source.root)))
    assert opened.catalog.step == "3"
    assert "iteration 5 is newer, but skipped: the tracker names 3; step='5' reads it" in opened.catalog.notes
    incomplete = [note for note in opened.catalog.notes if note.startswith("iteration 9")]
    assert incomplete[0].startswith("iteration 9 is newer, but skipped: it is incomplete: model_optim_rng.pt is not")
    (source.root / TRACKER).unlink()
    opened = open_source(SourceRequest(source=str(source.root)))
    assert f"there is no {TRACKER}: iteration 5 is the newest complete one" in opened.catalog.notes
    assert open_source(SourceRequest(source=str(source.root), step="3")).catalog.step == "3"
    with pytest.raises(CatalogError, match="has no iteration 4; it has 9, 5, 3"):
        open_source(SourceRequest(source=str(source.root), step="4"))
    (source.root / TRACKER).write_text("4")
    with pytest.raises(CatalogError, match="names iteration 4, which is not there; there are 9, 5, 3: name one with"):
        open_source(SourceRequest(source=str(source.root)))
    (source.root / TRACKER).write_text("four")
    with pytest.raises(CatalogError, match="names no iteration: 'four'"):
        open_source(SourceRequest(source=str(source.root)))


def test_another_step_than_that_of_a_named_iteration_is_refused() -> None:
    with pytest.raises(CatalogError, match="is iteration 3, not 4: leave out"):
        open_source(SourceRequest(source=str(DENSE.iteration), step="4"))


def test_replicas_substitute_for_a_missing_file(tmp_path: Path) -> None:
    source = megatron_source("legacy_optimizer_tp2").copied(tmp_path / "ck")
    as_two_expert_ranks(source)
    source.file("mp_rank_01_001").unlink()
    missing = "mp_rank_01_001/model_optim_rng.pt is missing. What they hold is in other files as well: recover=True"
    with pytest.raises(CatalogError, match=missing):
        open_source(SourceRequest(source=str(source.root)))
    report = convert(source.request(tmp_path / "out", recover=True))
    assert any("mp_rank_01_001/model_optim_rng.pt is missing; what they hold was in" in note for note in report.notes)
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


def test_replicas_substitute_for_a_damaged_file(tmp_path: Path) -> None:
    source = megatron_source("legacy_optimizer_tp2").copied(tmp_path / "ck")
    as_two_expert_ranks(source)
    path = source.file("mp_rank_00_000")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CatalogError, match=r"mp_rank_00_000/model_optim_rng.pt is damaged: .*recover=True"):
        open_source(SourceRequest(source=str(source.root)))
    convert(source.request(tmp_path / "out", recover=True))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


def as_two_expert_ranks(source: MegatronSource) -> None:
    """Make a checkpoint of two expert-parallel ranks, all of whose tensors are replicas."""
    for path in sorted(source.iteration.iterdir()):
        shutil.copytree(path, path.with_name(f"{path.name}_000"))
        path.rename(path.with_name(f"{path.name}_001"))
    source.change_args(expert_model_parallel_size=2)


def test_a_missing_slice_is_named(tmp_path: Path) -> None:
    source = DENSE.copied(tmp_path / "ck")
    source.file("mp_rank_01_001").unlink()
    (source.iteration / "mp_rank_01_001").rmdir()
    with pytest.raises(CatalogError) as refused:
        open_source(SourceRequest(source=str(source.root)))
    assert str(refused.value).endswith(
        "files cannot be used: mp_rank_01_001/model_optim_rng.pt is missing. The other files do not hold the whole "
        "model: restore these"
    )


def test_a_distributed_optimizer_without_its_file_is_refused(tmp_path: Path) -> None:
    source = megatron_source("legacy_distrib_optim_tp2_dp2").copied(tmp_path / "ck")
    source.file("mp_rank_01", OPTIMIZER_FILE).unlink()
    message = r"mp_rank_01/model_optim_rng.pt: distrib_optim.pt is not beside it; 57 parameters have no names: "
    with pytest.raises(CatalogError, match=message + r".* Convert without them: .*weights-only"):
        convert(source.request(tmp_path / "out"))
    report = convert(source.request(tmp_path / "out", select="weights-only"))
    assert any("left out: the optimizer's states, which have no names" in note for note in report.notes)
    assert read_safetensors(tmp_path / "out" / "model.safetensors").keys() == {
        name for name in source.want if not name.startswith("optimizer.")
    }


@pytest.mark.parametrize("name", ["legacy_moe_tp2_ep2_grouped", "legacy_distrib_optim_tp2_dp2"])
def test_an_object_store_is_read_as_a_disk_is(name: str, tmp_path: Path) -> None:
    source = megatron_source(name)
    storage = MemoryFileSystem()
    put_tree(storage, source.root, f"/{name}")
    convert(source.request(tmp_path / "out", f"memory://{name}", verify="content"))
    storage.rm(f"/{name}", recursive=True)
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == source.want


def test_whole_tensors_are_loaded_without_a_conversion() -> None:
    loaded = dict(load_rank(str(DENSE.root)))
    assert {name: np.asarray(value).tobytes() for name, value in loaded.items()} == {
        name: data for name, (_, _, data) in DENSE.want.items()
    }

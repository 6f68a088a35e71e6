"""Checkpoints that verl wrote with FSDP as sources: the whole model, byte for byte."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError
from reshard.core.layouts.any_layout import numbers_beside
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.survey import survey
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.source.opening import open_source
from tests.support.checkpoints import read_safetensors, write_safetensors
from tests.support.fsdp import FSDP_CASES, FsdpCase, fsdp_case, objects_in
from tests.support.megatron_sources import Tree

OLD = "torch.distributed._tensor"
OLD_NAMES = {
    ("torch.distributed.tensor", "DTensor"): f"{OLD}.api",
    ("torch.distributed.tensor._dtensor_spec", "DTensorSpec"): f"{OLD}.placement_types",
    ("torch.distributed.tensor._dtensor_spec", "TensorMeta"): f"{OLD}.placement_types",
    ("torch.distributed.tensor.placement_types", "Shard"): f"{OLD}.placement_types",
    ("torch.distributed.tensor.placement_types", "Replicate"): f"{OLD}.placement_types",
}


@pytest.mark.parametrize("name", FSDP_CASES)
def test_the_whole_model_byte_for_byte(name: str, tmp_path: Path) -> None:
    case = fsdp_case(name)
    convert(case.request(tmp_path / "out", verify="content"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


@pytest.mark.parametrize("name", FSDP_CASES)
def test_to_ranks_and_other_layouts(name: str, tmp_path: Path) -> None:
    """DCP has no place for what is not a tensor, and takes all of these."""
    case = fsdp_case(name)
    convert(case.request(tmp_path / "dcp", layout="dcp"))
    convert(case.request(tmp_path / "again", source=str(tmp_path / "dcp")))
    assert read_safetensors(tmp_path / "again" / "model.safetensors") == case.want


def test_ranks_are_sure_without_their_configuration(tmp_path: Path) -> None:
    case = fsdp_case("tp_fsdp2").copied(tmp_path / "ck")
    (case.root / "fsdp_config.json").unlink()
    convert(case.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


def test_extra_states_are_never_opened(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_uneven_optim").copied(tmp_path / "ck")
    for rank in range(3):
        case.file(rank, "extra_state").write_bytes(b"cos\nsystem\n(S'x'\ntR.")
    case.file(1, "extra_state").unlink()
    report = convert(case.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want
    assert report.notes[-2:] == (
        (
            "left out, but for what the target has a place for: the optimizer's settings (param_groups), its count of "
            "steps, 2"
        ),
        "left out: extra_state files, the schedules and random states: they are never opened",
    )


def test_adapters_keep_their_names(tmp_path: Path) -> None:
    case = fsdp_case("fsdp1").copied(tmp_path / "ck")
    (case.root / "lora_train_meta.json").write_text(json.dumps({"r": 8, "lora_alpha": 16}))
    report = convert(case.request(tmp_path / "out"))
    assert "lora_train_meta.json is there: adapters keep the names that PEFT gives them, and are not merged" in (
        report.notes
    )


def older(case: FsdpCase, *, lists: bool = True, names: bool = False) -> None:
    """Make meshes those of PyTorch before 2.9, whose tensors of ranks have a list beside them, or not."""

    def change(tree: Tree) -> None:
        for each in list(objects_in(tree)):
            pair = each.made_by.module, each.made_by.name
            if pair[1] == "DeviceMesh" and isinstance(each.state, Pairs):
                each.state = _older_mesh({str(key): value for key, value in each.state}, lists=lists)
            if pair[1] == "DTensorSpec" and isinstance(each.state, Pairs):
                each.state = Pairs(item for item in each.state if item[0] not in ("shard_order", "_hash"))
            if names and pair in OLD_NAMES:
                each.made_by = Global(OLD_NAMES[pair], pair[1])
            if names:
                renamed = (
                    Global(OLD_NAMES[found], found[1]) if (found := _pair(a)) in OLD_NAMES else a
                    for a in each.arguments
                )
                each.arguments = tuple(renamed)

    case.change(change)


def _pair(value: object) -> tuple[str, str]:
    return (value.module, value.name) if isinstance(value, Global) else ("", "")


def _older_mesh(fields: dict[str, Any], *, lists: bool) -> Pairs:
    if "mesh" in fields:
        return Pairs(fields.items())  # several tensors have it
    ranks: PickledObject = fields["_rank_map"]
    axes = [dict(axis.state) for axis in dict(fields["_layout"].state)["axes"]]
    shape = tuple(axis["shape"][0] for axis in axes)
    strides = tuple(axis["stride"][0] for axis in axes)
    storage, start, _, _, *rest = ranks.arguments
    made = PickledObject(ranks.made_by, (storage, start, shape, strides, *rest))
    found = {"device_type": "cuda", "mesh": made, "mesh_dim_names": fields["_mesh_dim_names"]}
    found |= {"_coordinate_on_dim": list(fields["_coordinate_on_dim"]), "_thread_id": None}
    return Pairs((found | ({"_flatten_mesh_list": fields["_flatten_rank_map"]} if lists else {})).items())


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("name", ["fsdp1", "hsdp_2x2"])
def test_meshes_of_older_versions(name: str, lists: bool, tmp_path: Path) -> None:
    case = fsdp_case(name).copied(tmp_path / "ck")
    older(case, lists=lists)
    convert(case.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


def test_names_of_older_versions(tmp_path: Path) -> None:
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")
    older(case, names=True)
    convert(case.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


def test_a_dimension_that_an_older_version_cut_twice(tmp_path: Path) -> None:
    """Before 2.5, tensor parallelism inside FSDP was written as if FSDP came first."""
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")
    shard = PickledObject(Global(f"{OLD}.placement_types", "Shard"), (), Pairs([("dim", 0)]))
    case.change_specs(lambda spec: spec.update(placements=(shard, shard)))
    with pytest.raises(InputError, match=r"sharded twice, by PyTorch before 2\.5, which does not say in which order"):
        survey(str(case.root)).strategy  # noqa: B018


def test_meshes_as_layouts_without_axes(tmp_path: Path) -> None:
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")

    def change(mesh: dict[str, Any]) -> None:
        axes = [dict(axis.state) for axis in dict(mesh["_layout"].state).get("axes", ())]
        if axes:
            fields = [(key, tuple(axis[key][0] for axis in axes)) for key in ("shape", "stride")]
            mesh["_layout"] = PickledObject(mesh["_layout"].made_by, (), Pairs(fields))

    case.change_meshes(change)
    convert(case.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == case.want


def test_the_directory_beside_the_ranks_is_copied(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied").copied(tmp_path / "ck")
    (case.root / "huggingface/tokenizer.json").write_text("{}")
    report = convert(case.request(tmp_path / "out", select="weights-only"))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model_type"], config["torch_dtype"]) == ("qwen3", "bfloat16")
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    assert any(
        note.startswith(f"like {case.root}/huggingface: config.json, tokenizer.json copied") for note in report.notes
    )


def test_moments_do_not_decide_what_dtype_a_model_has(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied").copied(tmp_path / "ck")
    convert(case.request(tmp_path / "out", cast=["exp_avg*=float32"]))
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_another_directory_wins_over_the_one_beside_the_ranks(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied").copied(tmp_path / "ck")
    shutil.copytree(case.root / "huggingface", tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text())
    (tmp_path / "other/config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    convert(case.request(tmp_path / "out", select="weights-only", like=str(tmp_path / "other")))
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "mine"


def test_weights_beside_the_ranks_are_compared(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_uneven_optim").copied(tmp_path / "ck")
    weights = {name: each for name, each in case.want.items() if not name.startswith("exp_avg")}
    write_safetensors(case.root / "huggingface/model.safetensors", weights)
    report = convert(case.request(tmp_path / "out", select="weights-only"))
    assert any("27 tensors have its names, shapes and dtypes" in note for note in report.notes)
    weights.pop("tiny")
    write_safetensors(case.root / "huggingface/model.safetensors", weights)
    with pytest.raises(InputError, match="parameter 'tiny' is not in the reference"):
        convert(case.request(tmp_path / "other", select="weights-only"))


@pytest.mark.parametrize("options", [{"layout": "dcp"}, {"unified_naming": "mindspore"}])
def test_other_targets_have_no_place_for_it(options: dict[str, str], tmp_path: Path) -> None:
    convert(fsdp_case("fsdp2_mixed_tied").request(tmp_path / "out", **options))
    assert not list((tmp_path / "out").glob("config.json"))


def test_a_directory_without_a_configuration_is_none(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied").copied(tmp_path / "ck")
    (case.root / "huggingface/config.json").unlink()
    convert(case.request(tmp_path / "out"))
    assert not (tmp_path / "out/config.json").exists()


def test_its_configuration_serves_presets(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_uneven_optim")
    options = {
        "preset": "qwen3",
        "switch": [
            "names=mcore",
            "use_contiguous_weight_layout_attention=true",
            "use_interleaved_weight_layout_mlp=true",
        ],
        "exclude": ["tiny", "counted"],
        "select": "weights-only",
    }
    report = convert(case.request(tmp_path / "out", **options))
    names = read_safetensors(tmp_path / "out/model.safetensors")
    assert "embedding.word_embeddings.weight" in names, report.notes


def test_numbers_of_the_training(tmp_path: Path) -> None:
    case = fsdp_case("tp_fsdp2").copied(tmp_path / "global_step_40/actor")
    assert numbers_beside(catalog_of(survey(str(case.root)))) == {"global_step": 40, "optimizer_step": 2}
    catalog = catalog_of(survey(str(fsdp_case("fsdp2_mixed_tied").root)))
    assert numbers_beside(catalog) == {"optimizer_step": 2}
    assert numbers_beside(catalog_of(survey(str(fsdp_case("fsdp1").root)))) is None
    convert(case.request(tmp_path / "out", layout="checkpoint2"))
    common = json.loads((tmp_path / "out/iteration_00000040/common.json").read_text())
    assert common["global_step"] == 40


def test_a_model_that_is_named_itself_knows_its_step(tmp_path: Path) -> None:
    case = fsdp_case("fsdp1").copied(tmp_path / "training/global_step_40/actor")
    found = survey(str(case.root))
    assert open_source(SourceRequest(source=str(case.root))).catalog.step == "40"
    with pytest.raises(CatalogError, match=r"actor: is step 40, not 41: leave out"):
        survey(str(case.root), "41")
    assert found.describe()["step"] == 40
    with pytest.raises(CatalogError, match="is one step. Name the directory that training saves all into"):
        found.training_steps()

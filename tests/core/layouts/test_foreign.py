"""Checkpoints of other libraries are called by their names, by what a listing shows."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from reshard.core.errors import CatalogError, StrategyError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.layouts.foreign import FOREIGN_LAYOUTS, find_foreign
from reshard.core.layouts.survey import survey
from reshard.core.request.source import SourceRequest
from reshard.core.source.opening import open_source

TRACKER = "latest_checkpointed_iteration.txt"
LISTINGS: dict[str, tuple[Sequence[str], str]] = {
    "Megatron-LM's zarr": (
        [TRACKER, "iter_0000003/decoder.final_layernorm.weight/.zarray"],
        "a Megatron-LM checkpoint",
    ),
    "a release of Megatron-LM's zarr": ([TRACKER, "release/output_layer.weight/.zarray"], "a Megatron-LM checkpoint"),
    "a rank of Megatron-LM": (
        ["model_optim_rng.pt", "distrib_optim.pt"],
        "one rank's part of a Megatron-LM checkpoint",
    ),
    "DeepSpeed without files": (["latest", "zero_to_fp32.py", "global_step40/x"], "a DeepSpeed training's directory"),
    "DeepSpeed without its script": (["latest", "global_step40/x"], "a DeepSpeed training's directory"),
    "a rank of FSDP": (["model_world_size_0_rank_0.pt"], "one rank's part of an FSDP checkpoint"),
    "a model by verl with Megatron": (["dist_ckpt/common.pt", "huggingface/config.json"], "a model that verl saved"),
    "a model by verl with Megatron in parts": (
        ["ckpt_contents.json", "model/dist_ckpt/x", "optimizer/dist_ckpt/x", "extra/x"],
        "a model that verl saved",
    ),
    "a training by verl with Megatron": (
        [TRACKER, "global_step_40/data.pt", "global_step_40/actor/dist_ckpt/common.pt"],
        "a training's directory of verl's",
    ),
    "GGUF": (["README.md", "model-q4_k_m.gguf"], "a GGUF model"),
    "NumPy": (["weights.npz"], "a NumPy archive"),
    "Orbax": (["_CHECKPOINT_METADATA", "_METADATA", "d/0a", "manifest.ocdbt"], "an Orbax checkpoint"),
    "TensorFlow": (["checkpoint", "net-1.index", "net-1.data-00000-of-00001"], "a TensorFlow checkpoint"),
    "TensorFlow's SavedModel": (["saved_model.pb", "variables/variables.index"], "a TensorFlow checkpoint"),
    "Keras": (["model.weights.h5"], "a Keras model"),
    "Flax": (["config.json", "flax_model.msgpack"], "a Flax model"),
    "PaddlePaddle": (["model_state.pdparams"], "a PaddlePaddle model"),
    "NeMo": (["llama.nemo"], "a NeMo archive"),
}
"""What is listed -> the names below a directory, and what it is called."""
PARTS = (
    "mp_rank_00_model_states.pt",
    "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt",
    "layer_03-model_00-model_states.pt",
    "layer_3_expert_1_mp_rank_00_model_states.pt",
)
"""Files of a checkpoint that is read as a whole."""


def fill(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text({TRACKER: "3", "latest": "global_step40"}.get(name, ""))
    return root


@pytest.mark.parametrize(("names", "title"), LISTINGS.values(), ids=LISTINGS)
def test_a_foreign_checkpoint_is_called_by_its_name(names: Sequence[str], title: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "ck", names)
    with pytest.raises(CatalogError, match=f"ck: is {title}.*, which reshard does not read: "):
        survey(str(root))
    with pytest.raises(CatalogError, match=f"ck: is {title}"):
        open_source(SourceRequest(source=str(root)))


def test_every_layout_has_a_listing_here() -> None:
    tops = [[name.partition("/")[0] for name in names] for names, _ in LISTINGS.values()] + [[name] for name in PARTS]
    assert {layout.title for layout in FOREIGN_LAYOUTS} == {each.title for top in tops if (each := find_foreign(top))}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_checkpoint_is_called_one(name: str) -> None:
    found = find_foreign([name])
    assert found is not None
    assert found.title == "one rank's part of a DeepSpeed checkpoint"


def test_a_foreign_checkpoint_one_folder_further_is_named(tmp_path: Path) -> None:
    root = fill(tmp_path, ["100/manifest.ocdbt", "200/_CHECKPOINT_METADATA"])
    with pytest.raises(CatalogError, match=r"neither rank_N folders nor .*; .*/100: is an Orbax checkpoint"):
        survey(str(root))


def test_what_reshard_reads_is_read_beside_foreign_files(tmp_path: Path) -> None:
    root = fill(tmp_path, ["latest", "global_step40/x", "pytorch_model.bin", "model.safetensors", "training_args.bin"])
    assert survey(str(root)).ranks == (0,)


def test_the_tracker_of_another_library_names_no_strategy(tmp_path: Path) -> None:
    root = fill(tmp_path / "ck", LISTINGS["Megatron-LM's zarr"][0])
    with pytest.raises(StrategyError, match=r"ck: has latest_checkpointed_iteration\.txt, but not the directory iter"):
        read_any_strategy(str(root))

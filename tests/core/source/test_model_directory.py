"""A model's directory: what loaders would miss, drop or refuse of it.

transformers wrote the directories, which it loads completely; what it says of changed ones is compared in
tests/conformance/test_model_directories.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.errors import InputError
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.findings import Finding, Severity
from tests.support.diagnosed import diagnose
from tests.support.families import ALL_FAMILIES, Family, directory_contents
from tests.support.model_directories import changed_directory
from tests.support.safetensors_files import write_safetensors
from tests.support.torch_files import state_dict_file

LLAMA, TIED, DEEPSEEK = Family("llama"), Family("llama_tied"), Family("deepseek3")
"""Several files, an index; a tied head; experts from the second layer on."""


def looked_at(directory: Path, **options: object) -> Diagnosis:
    return diagnose(str(directory), **options)  # type: ignore[arg-type]


def problems(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.severity is Severity.PROBLEM]


def only_problem(diagnosis: Diagnosis, check: str) -> Finding:
    [finding] = problems(diagnosis)
    assert finding.check == check
    assert diagnosis.fits is False
    return finding


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=str)
def test_what_transformers_wrote_is_complete(family: Family) -> None:
    found = looked_at(family.hf)
    assert found.fits is True, found.findings
    assert found.loaded is not None
    assert (found.loaded.missing, found.loaded.dropped) == ((), ())
    assert not found.loaded.renamed
    assert not found.loaded.mismatched
    names = directory_contents(family.hf).keys() - {*found.loaded.speculative}
    assert found.loaded.expected == len(names)
    assert not found.not_checked


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=str)
def test_each_parameter_that_is_lost_is_named(family: Family, tmp_path: Path) -> None:
    names = list(directory_contents(family.hf))
    lost = names[:: max(1, len(names) // 5)]
    found = looked_at(changed_directory(family.hf, tmp_path / "hf", lambda name: None if name in lost else name))
    assert found.loaded is not None
    mtp = {name for name in lost if ".layers.2." in name and family.name == "deepseek3_mtp"}
    assert {*found.loaded.missing} == {*lost} - mtp
    assert found.fits is False


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=str)
def test_names_with_a_prefix_too_many_are_all_dropped(family: Family, tmp_path: Path) -> None:
    found = looked_at(changed_directory(family.hf, tmp_path / "hf", lambda name: f"module.{name}"))
    assert found.loaded is not None
    assert len(found.loaded.missing) == found.loaded.expected
    assert {*found.loaded.dropped} == {f"module.{name}" for name in directory_contents(family.hf)}
    missing, dropped = problems(found)
    assert "(100 %)" in missing.found
    assert "begin with 'module.' in the files" in missing.advice
    assert "not read by any loader" in dropped.found


def test_names_without_the_models_prefix_are_read_by_transformers_only(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf", lambda name: name.removeprefix("model."))
    found = looked_at(directory)
    problem = only_problem(found, "names")
    assert "20 parameters under other names than the model's, such as 'embed_tokens.weight'" in problem.found
    assert problem.means == "transformers still reads them; vLLM refuses to load"
    assert found.loaded is not None
    assert not found.loaded.missing
    assert found.loaded.renamed["norm.weight"] == "model.norm.weight"


def test_a_missing_shard_is_named_with_what_the_index_places_there(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    lost = sorted(directory.glob("*.safetensors"))[1]
    lost.unlink()
    files, names = problems(looked_at(directory))
    assert (files.check, names.check) == ("files", "names")
    assert f"missing: {lost.name}, where the index places" in files.found
    assert "missing: " in names.found


def test_a_truncated_shard_is_a_finding_and_the_others_are_checked(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    cut = sorted(directory.glob("*.safetensors"))[1]
    cut.write_bytes(cut.read_bytes()[:-10])
    files, names = problems(looked_at(directory))
    assert cut.name in files.found
    assert names.check == "names"


def test_an_index_that_is_another_exports_is_found(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    index = directory / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    weights = document["weight_map"]
    files = sorted(set(weights.values()))
    weights["model.norm.weight"] = next(file for file in files if file != weights["model.norm.weight"])
    del weights["model.layers.0.mlp.up_proj.weight"]
    document["metadata"]["total_size"] = 5
    index.write_text(json.dumps(document))
    found = looked_at(directory)
    assert [finding.check for finding in found.findings] == ["index", "index", "index"]
    texts = [finding.found for finding in found.findings]
    assert "lists parameters in the wrong file: 'model.norm.weight' in" in texts[0]
    assert "does not list 1 parameter of its files: 'model.layers.0.mlp.up_proj.weight'" in texts[1]
    assert "has total_size 5, its files hold 34112 bytes" in texts[2]
    assert found.findings[2].severity is Severity.NOTE


def test_shards_without_an_index_are_not_found_by_transformers(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    (directory / "model.safetensors.index.json").unlink()
    finding = only_problem(looked_at(directory), "index")
    assert "transformers finds no weights without it" in finding.means


def test_a_parameter_in_two_files_and_files_beside_them_are_named(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    files = sorted(directory.glob("*.safetensors"))
    index = directory / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["other"] = "model-extra.safetensors"
    index.write_text(json.dumps(document))
    (directory / "model-extra.safetensors").write_bytes(files[0].read_bytes())
    (directory / "old.safetensors").write_bytes(files[1].read_bytes())
    texts = [finding.found for finding in looked_at(directory).findings]
    assert any("several files hold the same parameter: " in text for text in texts)
    assert "beside the model's files: old.safetensors" in texts


def test_a_single_file_beside_an_index_is_read_instead(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    write_safetensors(directory / "model.safetensors", {"model.norm.weight": ("F32", np.ones(2, np.float32))})
    found = looked_at(directory)
    texts = [finding.found for finding in problems(found)]
    assert "model.safetensors is beside an index that does not list it" in texts
    assert any("missing: 20 of 21 parameters (95 %)" in text for text in texts)


def test_an_embedding_that_config_json_ties_may_be_the_head(tmp_path: Path) -> None:
    def with_head(name: str) -> str:
        return "lm_head.weight" if name == "model.embed_tokens.weight" else name

    found = looked_at(changed_directory(TIED.hf, tmp_path / "head", with_head))
    assert (
        "'lm_head.weight' is present and 'model.embed_tokens.weight' is missing" in only_problem(found, "names").found
    )
    untied = looked_at(changed_directory(TIED.hf, tmp_path / "untied", tie_word_embeddings=False))
    assert untied.loaded is not None
    assert untied.loaded.missing == ("lm_head.weight",)
    both = looked_at(changed_directory(LLAMA.hf, tmp_path / "both", tie_word_embeddings=True))
    assert both.fits is True
    assert "although config.json ties the head to the embedding" in both.findings[0].found


def test_layers_are_those_that_config_json_counts(tmp_path: Path) -> None:
    more = looked_at(changed_directory(LLAMA.hf, tmp_path / "more", num_hidden_layers=3)).loaded
    fewer = looked_at(changed_directory(LLAMA.hf, tmp_path / "fewer", num_hidden_layers=1)).loaded
    assert more is not None
    assert fewer is not None
    assert len(more.missing) == 9
    assert all(".layers.2." in name for name in more.missing)
    assert len(fewer.dropped) == 9
    assert all(".layers.1." in name for name in fewer.dropped)


def test_layers_with_experts_are_those_of_config_json(tmp_path: Path) -> None:
    found = looked_at(changed_directory(DEEPSEEK.hf, tmp_path / "hf", first_k_dense_replace=2)).loaded
    assert found is not None
    assert {*found.missing} == {f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    assert "model.layers.1.mlp.gate.weight" in found.dropped


def test_shapes_are_those_of_config_json(tmp_path: Path) -> None:
    found = looked_at(changed_directory(LLAMA.hf, tmp_path / "hf", vocab_size=1000))
    finding = only_problem(found, "shapes")
    assert "shapes that differ from config.json: 'model.embed_tokens.weight' is" in finding.found
    assert found.loaded is not None
    assert {*found.loaded.mismatched} == {"model.embed_tokens.weight", "lm_head.weight"}


def test_biases_are_those_that_config_json_asks_for(tmp_path: Path) -> None:
    found = looked_at(changed_directory(LLAMA.hf, tmp_path / "hf", attention_bias=True, mlp_bias=True)).loaded
    assert found is not None
    assert len(found.missing) == 2 * 7
    assert all(name.endswith(".bias") for name in found.missing)


def test_an_unknown_family_is_not_a_silent_yes(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf", model_type="gemma9")
    found = looked_at(directory)
    assert found.fits is None
    assert found.not_checked == ("names", "shapes")
    assert found.findings[0].found == "there is no preset for the family 'gemma9'"
    named = looked_at(directory, preset="llama", allow_model=["gemma9"])
    assert named.fits is True
    with pytest.raises(InputError, match="a 'gemma9' model's, and preset llama is for llama, mistral"):
        looked_at(directory, preset="llama")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model_type": None}, "config.json has no model_type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "the weights are quantized: gptq"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "the model is a LlamaForSequenceClassification; presets only",
        ),
    ],
)
def test_what_presets_do_not_know_is_not_checked(tmp_path: Path, config: dict[str, Any], text: str) -> None:
    found = looked_at(changed_directory(LLAMA.hf, tmp_path / "hf", **config))
    assert found.fits is None
    assert found.findings[0].found.startswith(text)


def test_problems_of_files_are_told_where_names_cannot_be_checked(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf", model_type="gemma9")
    min(directory.glob("*.safetensors")).unlink()
    assert looked_at(directory).fits is False


def test_the_number_of_layers_has_to_be_known(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf", num_hidden_layers=None)
    with pytest.raises(InputError, match=r"config.json: has no num_hidden_layers: the number of layers is not known"):
        looked_at(directory)
    many = changed_directory(LLAMA.hf, tmp_path / "many", num_hidden_layers=10**6)
    with pytest.raises(InputError, match=r"config.json: asks for more than 1,048,576 parameters, the limit"):
        looked_at(many)


def test_another_dtype_than_config_json_says_is_noted(tmp_path: Path) -> None:
    found = looked_at(changed_directory(LLAMA.hf, tmp_path / "hf", dtype="float16"))
    assert found.fits is True
    assert found.findings[0].found == "config.json says float16, the weights are bfloat16"


def test_scales_of_block_fp8_are_checked(tmp_path: Path) -> None:
    directory = tmp_path / "hf"
    fp8 = {"quant_method": "fp8", "weight_block_size": [4, 4]}
    changed_directory(LLAMA.hf, directory, quantization_config=fp8)
    assert "there are no 8-bit weights" in only_problem(looked_at(directory), "dtypes").found
    index = directory / "model.safetensors.index.json"
    files = sorted(directory.glob("*.safetensors"))
    tensors = {name: ("BF16", np.zeros(shape, np.uint16)) for name, (_, shape, _) in contents(directory).items()}
    for path in (index, *files):
        path.unlink()
    name = "model.layers.0.self_attn.q_proj.weight"
    shape = tensors[name][1].shape
    tensors[name] = ("F8_E4M3", np.zeros(shape, np.uint8))
    write_safetensors(directory / "model.safetensors", tensors)
    assert only_problem(looked_at(directory), "dtypes").found == f"weights without scales: {name!r}"
    wanted = tuple(-(-length // 4) for length in shape)
    tensors[f"{name}_scale_inv"] = ("F32", np.zeros(wanted, np.float32))
    write_safetensors(directory / "model.safetensors", tensors)
    assert looked_at(directory).fits is True
    tensors[f"{name}_scale_inv"] = ("F32", np.zeros((1, 1), np.float32))
    write_safetensors(directory / "model.safetensors", tensors)
    assert "scale shapes do not match weight_block_size [4, 4]: " in only_problem(looked_at(directory), "shapes").found
    (directory / "config.json").write_text((LLAMA.hf / "config.json").read_text())
    texts = [finding.found for finding in problems(looked_at(directory))]
    assert any("1 8-bit weight, but config.json has no quantization_config" in text for text in texts)


def contents(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(each[0]), tuple(each[1]), each[2]) for name, each in directory_contents(directory).items()}


def test_buffers_that_models_compute_are_ignored_by_loaders(tmp_path: Path) -> None:
    directory = changed_directory(TIED.hf, tmp_path / "hf")
    [path] = directory.glob("*.safetensors")
    tensors = {name: ("F16", np.zeros(shape, np.uint16)) for name, (_, shape, _) in contents(directory).items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.zeros(4, np.float32))
    write_safetensors(path, tensors)
    found = looked_at(directory)
    assert found.fits is True
    assert found.findings[0].found.startswith("1 buffer in the files")


def test_pytorchs_files_are_checked_alike(tmp_path: Path) -> None:
    directory = changed_directory(TIED.hf, tmp_path / "hf")
    weights = directory_contents(directory)
    for path in directory.glob("*.safetensors"):
        path.unlink()
    (directory / "pytorch_model.bin").write_bytes(state_dict_file(weights))
    assert looked_at(directory).fits is True
    weights.pop("model.norm.weight")
    (directory / "pytorch_model.bin").write_bytes(state_dict_file(weights))
    found = looked_at(directory).loaded
    assert found is not None
    assert found.missing == ("model.norm.weight",)


def test_switches_have_nothing_to_decide(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a model's directory, which is checked by its config.json alone"):
        looked_at(LLAMA.hf, preset="llama", switch=["qkv_concat=true"])


def test_a_config_json_that_is_none_is_refused(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    (directory / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json: is not valid JSON"):
        looked_at(directory)


def test_layers_for_multi_token_prediction_have_to_be_whole(tmp_path: Path) -> None:
    family = Family("deepseek3_mtp")
    found = looked_at(
        changed_directory(family.hf, tmp_path / "hf", lambda name: None if name.endswith("2.enorm.weight") else name)
    )
    assert "'model.layers.2.enorm.weight'" in only_problem(found, "names").found


def test_an_unfinished_conversion_is_refused(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf")
    (directory / ".reshard").mkdir()
    with pytest.raises(InputError, match="an unfinished conversion"):
        looked_at(directory)


def test_a_number_that_nobody_can_read_is_not_repeated(tmp_path: Path) -> None:
    directory = changed_directory(LLAMA.hf, tmp_path / "hf", lambda name: name)
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 10**4000}))
    with pytest.raises(
        InputError, match="hidden_size is a number of 50 digits or more, more than 1,048,576, the limit"
    ):
        looked_at(directory)

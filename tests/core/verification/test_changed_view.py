"""A checkpoint as a preset changes it, held against another."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.verification.compare import compare_checkpoints
from tests.support.families import Family, switches_of

MTP, QWEN3 = Family("deepseek3_mtp"), Family("qwen3")


def test_a_copy_that_is_none_is_not_taken_for_one(tmp_path: Path) -> None:
    changed = Path(shutil.copytree(MTP.hf, tmp_path / "hf"))
    for file in changed.glob("*.safetensors"):
        tensors = load_file(file)
        names = [name for name in tensors if ".layers." in name and name.endswith("embed_tokens.weight")]
        for name in names:
            tensors[name].reshape(-1)[-1] += 1
        file.chmod(0o600)
        save_file(tensors, file, {"format": "pt"})
    options = {"preset": "deepseek3", "switch": switches_of(MTP, to_mf=True)}
    assert compare_checkpoints(build_comparison(a=str(MTP.hf), b=str(MTP.mf), **options)).same
    with pytest.raises(
        PlanError, match=r"embed_tokens.weight' is to be dropped, and is not a copy of 'model.embed_tokens"
    ):
        compare_checkpoints(build_comparison(a=str(changed), b=str(MTP.mf), **options))


SELECTIONS = {
    "Hugging Face's names": ({"include": ["*q_proj*"]}, {"to MindFormers": 2, "to Hugging Face": 2}),
    "MindFormers' names": ({"include": ["*linear_qkv*"]}, {"to MindFormers": 2, "to Hugging Face": 6}),
    "names of both": ({"include": ["model.norm*", "*linear_fc1*"]}, {"to MindFormers": 3, "to Hugging Face": 5}),
    "without Hugging Face's": ({"exclude": ["model.embed_tokens*"]}, {"to MindFormers": 18, "to Hugging Face": 24}),
    "without MindFormers'": ({"exclude": ["*linear_qkv*"]}, {"to MindFormers": 17, "to Hugging Face": 19}),
    "without some": (
        {"include": ["*self_att*"], "exclude": ["*q_norm*", "*layernorm*"]},
        {"to MindFormers": 4, "to Hugging Face": 8},
    ),
}
"""Patterns, and the number of parameters that are compared then."""


@pytest.mark.parametrize(("options", "counts"), SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("way", ["to MindFormers", "to Hugging Face"])
def test_patterns_of_a_comparison_by_preset_fit_names_of_either_side(
    options: dict[str, list[str]], counts: dict[str, int], way: str
) -> None:
    sides = {"a": QWEN3.mf, "b": QWEN3.hf} if way == "to Hugging Face" else {"a": QWEN3.hf, "b": QWEN3.mf}
    preset = {"preset": "qwen3", "switch": switches_of(QWEN3)}
    report = compare_checkpoints(build_comparison(**{key: str(url) for key, url in sides.items()}, **preset, **options))
    assert report.same, report
    assert report.a.parameters == report.b.parameters == counts[way]


def test_a_pattern_of_a_comparison_by_preset_that_fits_neither_side_is_refused() -> None:
    options = {"preset": "qwen3", "switch": switches_of(QWEN3), "exclude": ["nothing*"]}
    with pytest.raises(InputError, match=r"exclude=\['nothing\*'\]: no parameter of .* has such a name"):
        compare_checkpoints(build_comparison(a=str(QWEN3.mf), b=str(QWEN3.hf), **options))


@pytest.mark.parametrize("pattern", ["*linear_qkv*", "*k_proj*"])
def test_a_difference_that_a_pattern_of_either_side_selects_is_found(pattern: str, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(QWEN3.hf, tmp_path / "hf"))
    tensors = load_file(changed / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"].reshape(-1)[-1] += 1
    (changed / "model.safetensors").chmod(0o600)
    save_file(tensors, changed / "model.safetensors", {"format": "pt"})
    options = {"preset": "qwen3", "switch": switches_of(QWEN3)}
    report = compare_checkpoints(build_comparison(a=str(QWEN3.mf), b=str(changed), include=[pattern], **options))
    assert [each.name for each in report.differences] == ["model.layers.1.self_attn.k_proj.weight"]
    assert compare_checkpoints(build_comparison(a=str(QWEN3.mf), b=str(changed), exclude=[pattern], **options)).same

"""Complete Hugging Face directories: what is copied beside the weights, and what they are held against."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError, TargetError
from reshard.core.layouts.unified.names import COMPANION_NAMES
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.verification.published import verify_target
from tests.support.families import Family, directory_contents, metadata_of

LLAMA = Family("llama")
DEEPSEEK = Family("deepseek3")


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """A writable copy of a model's directory."""
    return Path(shutil.copytree(LLAMA.hf, tmp_path / "reference"))


def request_of(tmp_path: Path, reference: Path, **options: Any) -> ConversionRequest:
    defaults = {"source": str(LLAMA.hf), "target": str(tmp_path / "out"), "layout": "unified", "like": str(reference)}
    return build_request(**(defaults | options))


def companions_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} & {*COMPANION_NAMES}


def refusal(request: ConversionRequest) -> str:
    with pytest.raises(PlanError) as caught:
        make_plan(request)
    return str(caught.value)


def test_a_complete_directory(tmp_path: Path, reference: Path) -> None:
    report = convert(request_of(tmp_path, reference, max_shard_size="16KB", verify="content"))
    out = tmp_path / "out"
    assert directory_contents(out) == directory_contents(LLAMA.hf)
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    assert shards == [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    assert all(metadata_of(out / name) == {"format": "pt"} for name in shards)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (LLAMA.hf / name).read_bytes()
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == json.loads((LLAMA.hf / "model.safetensors.index.json").read_text())["metadata"]
    assert index["weight_map"] == dict(sorted(index["weight_map"].items()))
    assert report.notes[0] == (
        f"like {reference}: config.json, generation_config.json, tokenizer.json, tokenizer_config.json copied, dtype "
        "bfloat16; 21 tensors have its names, shapes and dtypes"
    )
    assert verify_target(str(out), VerifyLevel.CONTENT).problems == ()


@pytest.mark.parametrize("key", ["torch_dtype", "dtype", None])
def test_the_configuration_says_which_dtype_was_written(key: str | None, tmp_path: Path, reference: Path) -> None:
    path = reference / "config.json"
    config = json.loads(path.read_text())
    del config["dtype"]
    path.write_text(json.dumps(config | ({key: "bfloat16"} if key else {}) | {"quantization_config": {"bits": 8}}))
    report = convert(request_of(tmp_path, reference, cast=["*=float32"]))
    assert json.loads((tmp_path / "out/config.json").read_text()) == config | {key or "torch_dtype": "float32"}
    assert "its names, shapes and dtypes but for the model's own, Float32" in report.notes[0]


def test_a_reference_without_weights(tmp_path: Path, reference: Path) -> None:
    for path in reference.glob("model*"):
        path.unlink()
    (reference / "modeling_own.py").write_text("")
    notes = convert(request_of(tmp_path, reference, rename=["lm_head.weight=other"])).notes
    assert notes[0].endswith("copied, dtype bfloat16; not copied: modeling_own.py")
    assert notes[1] == f"{reference}: has no weights: names, shapes and dtypes were not held against it"


def test_names_of_another_program_are_a_matter_of_a_preset(tmp_path: Path, reference: Path) -> None:
    lines = refusal(request_of(tmp_path, reference, rename=["re:(.*)=other.\\1"])).splitlines()
    assert lines[0].endswith("whose names are others. 'preset' converts names: give it the model's family")
    assert lines[1].endswith(" is not in the reference")


def test_a_dtype_that_an_earlier_cast_decides(tmp_path: Path, reference: Path) -> None:
    casts = ["model.norm.*=float32", "model.norm.weight=bfloat16"]
    assert "leave out 'like', and name the model's config.json with 'config_json'" in refusal(
        request_of(tmp_path, reference, cast=casts)
    )


def test_names_shapes_and_dtypes_are_held_against_the_reference(tmp_path: Path, reference: Path) -> None:
    options: dict[str, Any] = {
        "exclude": ["model.layers.1.mlp.up_proj.weight"],
        "rename": ["model.layers.0.input_layernorm.weight=input_norm"],
        "transpose": ["*.0.mlp.up_proj.weight"],
        "cast": ["model.norm.weight=float32"],
    }
    missing = "is missing; what the result can do without is allowed with allow_missing=['PATTERN']"
    surplus = (
        "is not in the reference: it has another name there, or the reference is another model's. Training state is "
        "left out by select='weights-only'"
    )
    cast = "cast=['model.norm.weight=bfloat16'], if it is to be that"
    assert set(refusal(request_of(tmp_path, reference, **options)).splitlines()[1:]) == {
        f"  - parameter 'input_norm', made from 'model.layers.0.input_layernorm.weight', {surplus}",
        f"  - parameter 'model.layers.0.input_layernorm.weight' {missing}",
        "  - parameter 'model.layers.0.mlp.up_proj.weight' has shape [32, 40], the reference's has [40, 32]",
        f"  - parameter 'model.norm.weight' is Float32, the reference's is BFloat16: {cast}",
        f"  - parameter 'model.layers.1.mlp.up_proj.weight' {missing}",
    }
    assert not (tmp_path / "out").exists()


def test_parameters_that_may_be_missing(tmp_path: Path, reference: Path) -> None:
    request = request_of(tmp_path, reference, exclude=["model.norm.weight"], allow_missing=["model.norm.*"])
    assert convert(request).committed


def test_a_dtype_that_is_apart_in_the_reference_stays_so(tmp_path: Path) -> None:
    """The router's bias of DeepSeek is float32 whatever the model is."""
    request = request_of(tmp_path, DEEPSEEK.hf, source=str(DEEPSEEK.hf), cast=["*=bfloat16"])
    assert "e_score_correction_bias' is BFloat16, the reference's is Float32" in refusal(request)


def test_the_reference_decides_about_tied_heads(tmp_path: Path, reference: Path) -> None:
    tied = Family("llama_tied")
    text = refusal(request_of(tmp_path, tied.hf))
    assert (
        "parameter 'lm_head.weight' is not in the reference, whose head is tied to its embedding: if the two are equal "
        "in the source as well, leave it out, exclude=['lm_head.weight']" in text
    )
    path = reference / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    text = refusal(request_of(tmp_path, reference, exclude=["lm_head.weight"]))
    assert "parameter 'lm_head.weight' is missing: the source has none, and the reference's config.json ties it" in text


def test_what_is_no_hugging_face_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no config.json, so that it is not a Hugging Face model's directory"):
        make_plan(request_of(tmp_path, tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_an_unreadable_configuration(text: str, tmp_path: Path, reference: Path) -> None:
    (reference / "config.json").write_text(text)
    with pytest.raises(InputError, match="config.json: is not"):
        make_plan(request_of(tmp_path, reference))


def test_a_finished_directory_is_mended(tmp_path: Path, reference: Path) -> None:
    request, out = request_of(tmp_path, reference), tmp_path / "out"
    convert(request)
    (out / "tokenizer.json").write_text("{}")
    assert verify_target(str(out), VerifyLevel.STRUCTURE).problems == (
        f"{out}/tokenizer.json: is not the file that was written",
    )
    convert(request)
    assert verify_target(str(out), VerifyLevel.CHECKSUM).problems == ()


def test_a_directory_is_replaced_with_its_companions(tmp_path: Path, reference: Path) -> None:
    out = tmp_path / "out"
    (reference / "vocab.json").write_text("{}")
    convert(request_of(tmp_path, reference))
    assert (out / "vocab.json").exists()
    convert(request_of(tmp_path, LLAMA.hf, overwrite=True))
    assert {path.name for path in out.iterdir()} & set(COMPANION_NAMES) == {
        path.name for path in LLAMA.hf.iterdir()
    } & set(COMPANION_NAMES)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


def test_a_users_file_is_never_replaced(tmp_path: Path, reference: Path) -> None:
    """A config.json that no conversion wrote stays, whatever is overwritten."""
    out = tmp_path / "out"
    convert(request_of(tmp_path, reference, like=""))
    (out / "config.json").write_text("mine")
    with pytest.raises(TargetError, match=r"holds foreign files \(config.json\)"):
        convert(request_of(tmp_path, reference, overwrite=True))
    assert (out / "config.json").read_text() == "mine"


def test_a_reference_that_changes_meanwhile(tmp_path: Path, reference: Path) -> None:
    plan = make_plan(request_of(tmp_path, reference))
    (reference / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: has changed since the conversion was planned"):
        convert(request_of(tmp_path, reference), plan_of=lambda _: plan)
    assert not (tmp_path / "out").exists()


def in_cache(tmp_path: Path, model: Path) -> Path:
    """A snapshot in a cache of the Hugging Face Hub, which links to blobs."""
    snapshot, blobs = tmp_path / "hub/models--a--b/snapshots/0123", tmp_path / "hub/models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, blobs / f"hash{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash{number}")
    return snapshot


def test_links_as_in_a_cache_of_the_hub(tmp_path: Path, reference: Path) -> None:
    cache = in_cache(tmp_path, reference)
    convert(request_of(tmp_path, cache, source=str(cache)))
    assert not (tmp_path / "out/config.json").is_symlink()
    assert directory_contents(tmp_path / "out") == directory_contents(LLAMA.hf)


def test_links_inside_the_directory(tmp_path: Path, reference: Path) -> None:
    (reference / "tokenizer.json").rename(reference / "shared")
    (reference / "tokenizer.json").symlink_to("shared")
    convert(request_of(tmp_path, reference))
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (LLAMA.hf / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors.index.json"])
def test_a_link_that_leads_out_of_the_directory_is_refused(tmp_path: Path, reference: Path, name: str) -> None:
    (reference / name).rename(tmp_path / "elsewhere")
    (reference / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{reference}/{name}: is a link to {tmp_path}/elsewhere, outside {reference}"):
        convert(request_of(tmp_path, reference))
    assert not (tmp_path / "out").exists()


def test_a_companion_that_becomes_a_link_is_refused(tmp_path: Path, reference: Path) -> None:
    """Between planning and writing; the digest alone would tell what the file holds."""
    plan = make_plan(request := request_of(tmp_path, reference))
    (reference / "tokenizer.json").rename(tmp_path / "elsewhere")
    (reference / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link to"):
        convert(request, plan_of=lambda _: plan)

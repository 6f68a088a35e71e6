"""Whose names a target gets: `names`, from and to each world of a preset."""

from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from reshard.core.changes.preset import preset_text
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import ConversionRequest
from reshard.core.verification.compare import compare_checkpoints
from tests.core.conversion.test_megatron_names import (
    FROM,
    MCORE,
    MLA,
    bytes_of,
    found_in,
    of_family,
    refusal,
    request,
    source_of,
)
from tests.support.families import Family
from tests.support.megatron_rules import megatron


def test_hugging_face_to_any_world(tmp_path: Path) -> None:
    model = of_family("qwen3")
    hf = model.directory(tmp_path / "hf")
    convert(request(hf, tmp_path / "megatron", "qwen3", names="megatron"))
    assert found_in(tmp_path / "megatron") == bytes_of(megatron(model.hf, model.config))
    for world in ("mindformers", "mcore"):
        convert(request(hf, tmp_path / world, "qwen3", *MCORE, names=world))
        assert found_in(tmp_path / world) == bytes_of(load_file(Family("qwen3").mf))


def test_any_world_to_any_other(tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    convert(request(source, tmp_path / "mf", "qwen3", FROM, *MCORE, names="mindformers"))
    assert found_in(tmp_path / "mf") == bytes_of(load_file(Family("qwen3").mf))
    convert(request(source, tmp_path / "hf", "qwen3", FROM, names="hf"))
    assert found_in(tmp_path / "hf") == bytes_of(model.hf)
    mf = source_of(load_file(Family("qwen3").mf), tmp_path / "of mindformers", model.config)
    convert(request(mf, tmp_path / "back", "qwen3", *MCORE, names="megatron"))
    assert found_in(tmp_path / "back") == bytes_of(megatron(model.hf, model.config))


def test_a_world_of_mindformers_by_its_own_name(tmp_path: Path) -> None:
    hf = of_family("deepseek3").directory(tmp_path / "hf")
    report = convert(request(hf, tmp_path / "legacy", "deepseek3", names="legacy"))
    assert "model.layers.0.attention.l2q_nope_proj.weight" in found_in(tmp_path / "legacy")
    assert not any("unless asked for others" in note for note in report.notes)
    (tmp_path / "legacy/config.json").write_bytes((hf / "config.json").read_bytes())
    text = refusal(request(tmp_path / "legacy", tmp_path / "out", "deepseek3", names="mindformers"))
    assert (
        text == "names='mindformers': the source has MindFormers' names already, legacy: for its others, names='mcore'"
    )
    report = convert(request(tmp_path / "legacy", tmp_path / "mcore", "deepseek3", MCORE[0], MLA, names="mcore"))
    assert found_in(tmp_path / "mcore") == bytes_of(load_file(Family("deepseek3").mf))


def test_b_of_a_comparison_has_these_names(tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    mf = source_of(load_file(Family("qwen3").mf), tmp_path / "mf", model.config)
    asked = {"a": str(source), "b": str(mf), "preset": "qwen3", "switch": [FROM, *MCORE], "names": "mindformers"}
    report = compare_checkpoints(build_comparison(**asked))
    assert report.same, report


def test_names_that_are_refused(tmp_path: Path) -> None:
    hf = of_family("qwen3").directory(tmp_path / "hf")
    out = tmp_path / "out"
    text = refusal(request(hf, out, "qwen3", names="legacy"))
    assert text.startswith("names='legacy': must be one of hf, mindformers, mcore, megatron")
    assert refusal(request(hf, out, "qwen3", names="hf")) == "names='hf': the source has Hugging Face's names already"
    text = refusal(request(hf, out, "qwen3", "to=mcore", names="megatron"))
    assert text == "names='megatron': contradicts switch=['to=mcore']"
    text = refusal(request(hf, out, "qwen3", FROM, names="mcore"))
    assert text == "names='mcore': contradicts switch=['names=megatron'], since the source's names are Hugging Face's"
    with pytest.raises(InputError, match="only valid with 'preset'"):
        request(hf, out, "", names="mcore")


def test_a_family_that_mindformers_does_not_have(tmp_path: Path) -> None:
    """Of several other worlds none is the likely one."""
    document = yaml.safe_load(preset_text("qwen3"))
    mcore = document["names"].pop("mcore")
    document["names"] = {"megatron": mcore | {"whose": "Megatron"}}
    own = tmp_path / "own.yaml"
    hf = of_family("qwen3").directory(tmp_path / "hf")

    def asked(source: Path, target: str, *switch: str) -> ConversionRequest:
        return request(source, tmp_path / target, str(own), *MCORE, *switch, names="")

    own.write_text(yaml.safe_dump(document, sort_keys=False))
    convert(asked(hf, "only"))
    assert found_in(tmp_path / "only") == bytes_of(load_file(Family("qwen3").mf))
    (tmp_path / "only/config.json").write_bytes((hf / "config.json").read_bytes())
    convert(asked(tmp_path / "only", "back"))  # nobody else has these names
    assert found_in(tmp_path / "back") == found_in(hf)
    text = refusal(request(hf, tmp_path / "out", str(own), names="mindformers"))
    assert text == "names='mindformers': must be one of hf, megatron"
    document["names"]["other"] = mcore | {"whose": "Other"}
    own.write_text(yaml.safe_dump(document, sort_keys=False))
    text = refusal(asked(hf, "out"))
    assert text == "preset qwen3: say whose names the target gets: names='megatron' or names='other'"
